"""``python -m pipelines.pretrain``: the command ``encoder-audit pretrain``."""

from pipelines.cli.app import main

main("pretrain")
