"""Benchmarks: one module per command, each with `run` and `table`."""
