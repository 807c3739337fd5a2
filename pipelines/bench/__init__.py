"""Benchmarks: our way, the published ways and the limit, side by side in one run."""
