"""Train target and shadow encoders, and fit defenses."""
