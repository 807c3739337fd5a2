"""``python -m pipelines.tune``: the command ``encoder-audit tune``."""

from pipelines.cli.process import run

run("tune")
