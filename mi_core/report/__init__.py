"""The report of one run: report.json, its figures, one HTML file for people, and tables for the terminal.

`contents` holds the data and the means over seeds, `words` what is said of them and how numbers look, `figures`, `page`
and `terminal` the three ways to show it. ``report.schema.json`` is the contract of report.json.
"""
