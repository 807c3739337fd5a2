"""``python -m pipelines.audit``: the command ``encoder-audit audit``."""

from pipelines.cli.process import run

run("audit")
