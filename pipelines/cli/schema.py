"""``encoder-audit schema``: what an editor needs to complete and check a config."""

from __future__ import annotations

import json


def schema() -> None:
    """Print the JSON Schema of a config, with which editors complete and check it."""
    from pipelines.config.reading.schema import schema as made

    print(json.dumps(made(), indent=1))  # noqa: T201
