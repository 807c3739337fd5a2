"""``python -m pipelines.pretrain``: the command ``encoder-audit pretrain``."""

from pipelines.cli.process import run

run("pretrain")
