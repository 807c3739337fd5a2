"""From results to report.json, report.html and the terminal."""
