"""``python -m pipelines.report``: the command ``encoder-audit report``."""

from pipelines.cli.process import run

run("report")
