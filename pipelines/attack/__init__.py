"""Fit attacks on their reference, score the audited samples, and run the controls."""
