"""``python -m pipelines.extract``: the command ``encoder-audit extract``."""

from pipelines.cli.process import run

run("extract")
