"""What a defense tells of itself over several seeds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipelines.encoders.stored import describe, write_record
from pipelines.plan.load import parse
from pipelines.report.attacks import defended
from pipelines.report.finished import FinishedRun
from pipelines.run.folder import RunFolder
from tests.conftest import small_config
from tests.pipelines.report.made import made_run


def test_of_seeds_the_worst_promise_is_told(tmp_path: Path) -> None:
    """A mean of epsilons holds for no release; other numbers are means."""
    told = {
        0: {"epsilon": 2.0, "gamma": 0.08, "delta": 1e-5, "scale": 0.1},
        1: {"epsilon": 3.0, "gamma": 0.07, "delta": 1e-5, "scale": 0.3},
    }
    chosen: dict[str, Any] = {"seeds": list(told), "defenses": [{"defense": "output-noise", "of": ["target"]}]}
    folder = RunFolder(str(made_run(tmp_path / "run", **chosen)))
    for seed, numbers in told.items():
        record = describe(folder.seed(seed), "target+output-noise").record
        write_record(folder.seed(seed), replace(record, defense=numbers))
    (found,) = defended(FinishedRun(parse(small_config(**chosen), "small.yaml"), folder, ()))
    assert found.adaptive
    assert found.numbers == pytest.approx({"epsilon": 3.0, "gamma": 0.08, "delta": 1e-5, "scale": 0.2})


def test_a_defense_that_attacks_do_not_know_is_told(tmp_path: Path) -> None:
    chosen: dict[str, Any] = {"defenses": [{"defense": "output-noise", "of": ["target"], "adaptive": False}]}
    folder = RunFolder(str(made_run(tmp_path / "run", **chosen)))
    (found,) = defended(FinishedRun(parse(small_config(**chosen), "small.yaml"), folder, ()))
    assert found.adaptive is False
