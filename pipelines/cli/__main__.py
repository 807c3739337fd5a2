"""``python -m pipelines.cli``: the command ``encoder-audit``."""

from pipelines.cli.process import run

run()
