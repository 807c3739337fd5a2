"""``python -m pipelines.report``: the command ``encoder-audit report``."""

from pipelines.cli.app import main

main("report")
