"""Encoders behind an API."""
