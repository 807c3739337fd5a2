"""Encoders in a run folder: stored, adopted from elsewhere, or asked behind an API."""
