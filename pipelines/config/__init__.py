"""What to run: the sections of a config, their checks and shorthands. Reads no image."""
