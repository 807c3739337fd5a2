"""Pre-train an encoder: the loop, its data, its optimizers."""
