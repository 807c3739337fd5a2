"""Benchmarks: our speed beside that of published code, as ratios of one run."""
