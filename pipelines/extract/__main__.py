"""``python -m pipelines.extract``: the command ``encoder-audit extract``."""

from pipelines.cli.app import main

main("extract")
