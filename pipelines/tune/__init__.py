"""Search the parameters of a defense."""
