"""Whether a result means what it seems to: controls that need no encoder or another one, and the verdict."""
