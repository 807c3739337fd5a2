"""Mistakes of all kinds in every shipped config: it loads, or one line says what is wrong, in words for users."""

from __future__ import annotations

import cProfile
import pstats
import random
import re
import time
from pathlib import Path

import pytest
import yaml

from mi_core.encoders.clip import import_open_clip
from pipelines.errors import UserError
from pipelines.plan.load import load
from tests.pipelines.config.reading.test_schema import whole
from tests.pipelines.mutations import broken_text, mutated, override

CONFIGS = Path(__file__).parents[3] / "configs"
SHIPPED = sorted([*CONFIGS.glob("*.yaml"), *(CONFIGS / "papers").glob("*.yaml")])
NOT_FOR_USERS = re.compile(
    r"Config\b|Parameters\b|Options\b|nput should|validation error|NoneType|instance of|pydantic|<class"
)
SECONDS = 30  # for one load, which takes tenths, on a busy machine


def judge(path: Path, place: Path, rounds: int, seed: int) -> None:
    raw, chance = whole(path), random.Random(f"{seed} {path.name}")
    text = yaml.safe_dump(raw, sort_keys=False)
    for number in range(rounds):
        overrides = [override(raw, chance)] if number % 3 == 2 else []
        values = yaml.safe_dump(mutated(raw, chance), sort_keys=False) if number % 3 == 0 else text
        place.write_text(broken_text(text, chance) if number % 3 == 1 else values)
        began = time.monotonic()
        try:
            load(str(place), overrides)
        except UserError as error:
            said = str(error)
            assert said.startswith(str(place)), said
            assert "\n" not in said
            assert len(said) < 2000
            assert not NOT_FOR_USERS.search(said), said
        assert time.monotonic() - began < SECONDS, overrides


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_mistakes_are_one_line(path: Path, tmp_path: Path) -> None:
    judge(path, tmp_path / "run.yaml", rounds=6 if path.parent == CONFIGS else 3, seed=0)


SLOWEST = ("contrastiveleaks-cifar10", "contrastiveleaks-defenses-cifar10", "alm-cifar10-cpu")


@pytest.mark.parametrize(
    "paths", [[path for path in SHIPPED if path.stem in SLOWEST], pytest.param(SHIPPED, marks=pytest.mark.slow)]
)
def test_loading_a_shipped_config_takes_few_calls(paths: list[Path]) -> None:
    """Four million calls take less than a second. Calls are counted: seconds depend on what else the machine does."""
    if any("open_clip:" in path.read_text() for path in paths):
        import_open_clip()  # 3 to 4 s, which the run needs anyway
    for path in paths:
        overrides = [
            f"data.sources.{name}={yaml.safe_dump(one, default_flow_style=True, width=9999).strip()}"
            for name, one in whole(path)["data"]["sources"].items()
        ]
        with cProfile.Profile() as calls:
            load(str(path), overrides)
        assert pstats.Stats(calls).total_calls < 4_000_000, path  # type: ignore[attr-defined]
