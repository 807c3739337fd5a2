"""From sources to samples with roles."""
