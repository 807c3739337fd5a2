"""Images changed on purpose, so that a classifier says something else of them. Torch only, batched over images."""
