"""``python -m pipelines.cli``: the command ``encoder-audit``."""

from pipelines.cli.app import main

main()
