"""``python -m pipelines.audit``: the command ``encoder-audit audit``."""

from pipelines.cli.app import main

main("audit")
