"""``python -m pipelines.attack``: the command ``encoder-audit attack``."""

from pipelines.cli.process import run

run("attack")
