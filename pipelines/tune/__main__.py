"""``python -m pipelines.tune``: the command ``encoder-audit tune``."""

from pipelines.cli.app import main

main("tune")
