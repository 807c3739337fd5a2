"""What a defense tells of itself over several seeds."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from pipelines.config.load import parse
from pipelines.report import defended
from pipelines.run.folder import RunFolder
from tests.conftest import small_config


def test_of_seeds_the_worst_promise_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A mean of epsilons holds for no release; other numbers are means."""
    told = {
        0: {"epsilon": 2.0, "gamma": 0.08, "delta": 1e-5, "scale": 0.1},
        1: {"epsilon": 3.0, "gamma": 0.07, "delta": 1e-5, "scale": 0.3},
    }
    config = parse(small_config(seeds=[0, 1], defenses=[{"defense": "output-noise"}]), "small.yaml")
    monkeypatch.setattr(
        defended, "describe", lambda folder, _: SimpleNamespace(record=SimpleNamespace(defense=told[folder.seed]))
    )
    found = next(iter(defended.defended(config, RunFolder(str(tmp_path)))))
    assert found["numbers"] == pytest.approx({"epsilon": 3.0, "gamma": 0.08, "delta": 1e-5, "scale": 0.2})
