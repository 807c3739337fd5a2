"""``python -m pipelines.attack``: the command ``encoder-audit attack``."""

from pipelines.cli.app import main

main("attack")
