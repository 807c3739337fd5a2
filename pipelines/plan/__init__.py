"""From a config to a plan: every default and every rule of a threat model is decided here, once, in pure functions."""
