"""The intervals hold the truth as often as `configs/results/` says, and false leaks are as rare.

The simulation finds out wrong intervals too.
"""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from docs.studies import coverage
from mi_core.metrics.delong import auc, placements
from mi_core.records import Estimate

RECORDED = json.loads((Path(__file__).parents[3] / "configs" / "results" / "coverage.json").read_text())


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_intervals_hold_the_truth_as_often_as_recorded(tmp_path: Path) -> None:
    """Ten minutes of one core; the cells stay in ``cells.json`` of the test's folder."""
    cells = list(coverage.every_cell())
    (tmp_path / "cells.json").write_text(json.dumps(cells))
    supported = [cell["coverage"] for cell in cells if cell["supported"]]
    assert len(supported) == 346
    assert min(supported) >= 0.9415
    assert [of_what(cell) for cell in cells] == [of_what(cell) for cell in RECORDED["cells"]]
    for found, recorded in zip(cells, RECORDED["cells"], strict=True):
        assert found["coverage"] == pytest.approx(recorded["coverage"], abs=0.005), of_what(found)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_false_leaks_are_as_rare_as_recorded() -> None:
    verdicts = [coverage.false_leaks(triple, n, 1000, seed=0) for triple, n in product(coverage.TRIPLES, (200, 1000))]
    assert max(one["ci95"][1] for one in verdicts if one["exchangeable"]) <= 0.01
    for found, recorded in zip(verdicts, RECORDED["verdicts"], strict=True):
        assert (found["setting"], found["n"]) == (recorded["setting"], recorded["n"])
        assert found["leak"] == pytest.approx(recorded["leak"], abs=3), found["setting"]


def of_what(cell: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(cell[name] for name in ("interval", "setting", "n", "simulations", "supported"))


def wald(run: coverage.Sample) -> Estimate:
    """The plain normal interval of DeLong's variance."""
    v10, v01 = placements(run.scores[0], run.member)
    reach = 1.96 * np.sqrt(v10.var(ddof=1) / len(v10) + v01.var(ddof=1) / len(v01))
    return Estimate(v10.mean(), v10.mean() - reach, v10.mean() + reach, len(run.member))


def test_a_wrong_interval_is_found_out() -> None:
    high = coverage.Case("auc", 100, coverage.Population("normal", 0.97))
    assert coverage.count(high, 2000, seed=0, interval=wald)["ci95"][1] < 0.93  # about .91
    assert coverage.count(high, 2000, seed=0)["ci95"][1] > 0.945  # about .948
    grouped = coverage.Case("auc", 100, coverage.Population("normal", 0.8), groups="one class", correlation=0.5)
    ignoring = coverage.count(grouped, 500, seed=0, interval=lambda run: auc(run.scores[0], run.member))
    assert ignoring["ci95"][1] < 0.85
    assert coverage.count(grouped, 500, seed=0)["coverage"] >= 0.93


USUAL = coverage.Population("normal", 0.8)
FEW = (
    *(coverage.Case(name, 100, USUAL) for name in coverage.SIMPLE),
    coverage.Case("auc_difference", 100, coverage.Population("ten levels", 0.8), other=0.6),
    coverage.Case("tpr_at_fpr_0.01", 1000, coverage.Population("heavy-tailed", 0.8)),
    coverage.Case("auc", 100, USUAL, runs=3),
    coverage.Case("auc", 100, USUAL, groups="one class", correlation=0.5),
)


def test_a_few_cells_of_every_interval() -> None:
    cells = [coverage.count(case, 200, seed=0) for case in FEW] + [coverage.count_blind(100, 50, seed=0)]
    assert json.loads(json.dumps(cells)) == cells
    assert {cell["interval"] for cell in cells} == set(coverage.INTERVALS) - {"tpr_at_fpr_0.001"} | {"blind_auc"}
    for cell in cells:
        assert cell["coverage"] >= 0.88  # binomial(200, .95): fewer has probability 1e-4
        assert cell["supported"]
        assert 0 < cell["mean_width"] < 0.5


def test_only_a_shift_that_no_check_sees_passes_for_a_leak() -> None:
    verdicts = [coverage.false_leaks(triple, 200, 100, seed=0) for triple in coverage.TRIPLES]
    for one in verdicts:
        assert one["leak"] + one["confounded"] + one["no-evidence"] == one["simulations"] == 100
        assert not one["exchangeable"] or one["leak"] == 0
    seen = {one["setting"]: one for one in verdicts}["shift seen much less by the controls"]
    assert seen["above_both"] > 50 and seen["leak"] <= 5
    unseen = next(triple for triple in coverage.TRIPLES if triple.name == "shift seen by the attack alone")
    assert coverage.false_leaks(unseen, 1000, 20, seed=0)["leak"] > 15
