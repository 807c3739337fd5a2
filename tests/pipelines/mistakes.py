"""Mistakes in the quickstart config: what the message is."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipelines.errors import UserError
from pipelines.plan.load import parse

ROOT = Path(__file__).parents[2]
QUICKSTART = ROOT / "configs" / "quickstart.yaml"


def raw() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(QUICKSTART.read_text())
    return loaded


def message(changes: dict[str, Any]) -> str:
    """The error of the quickstart config with some dotted fields replaced."""
    config = copy.deepcopy(raw())
    for name, value in changes.items():
        place: Any = config
        *parents, last = name.split(".", 1) if name.startswith("encoders..") else name.split(".")
        for parent in parents:
            place = place[int(parent)] if isinstance(place, list) else place[parent]
        place[int(last) if isinstance(place, list) else last] = value
    with pytest.raises(UserError) as caught:
        parse(config, "run.yaml")
    text = str(caught.value)
    assert "\n" not in text
    return text
