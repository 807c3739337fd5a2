"""Metrics and evidence of an attack whose scores stand in parts, from sums over the parts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from mi_core.checks import NumericError
from mi_core.metrics.histograms import Histogram
from mi_core.validity.dataset import dataset_test_of_histograms
from mi_core.validity.share import least_share_of_histograms
from pipelines.attack.canaries import score_canaries
from pipelines.attack.evidence import share_of
from pipelines.attack.fitting import Fitted
from pipelines.attack.grouped import ByGroup
from pipelines.attack.scores import SCORED, ScoreSums, chunk_path, sums_path
from pipelines.attack.tasks import Task
from pipelines.config.run_config import RunConfig
from pipelines.data.splits import Splits
from pipelines.files import storage


def add_up(task: Task, number: int, paths: Sequence[str], threshold: float) -> None:
    """Write the sums over some parts.

    Args:
        task: the attack.
        number: of the sums.
        paths: of the parts.
        threshold: from which on a sample is called a member.
    """
    found: dict[str, list[list[Histogram]]] = {}
    called = np.zeros(2, dtype=np.int64)
    for path in paths:
        table = storage.read_table(path)
        member, score = np.asarray(table["member"]), np.asarray(table["score"])
        called += [int((score[side] >= threshold).sum()) for side in (member, ~member)]
        for column in SCORED:
            if column in table.column_names:
                values = np.asarray(table[column], dtype=np.float64)
                sides = found.setdefault(column, [[], []])
                for into, side in zip(sides, (member, ~member), strict=True):
                    into.append(Histogram.of(values[side]))
    both = {column: (Histogram.total(sides[0]), Histogram.total(sides[1])) for column, sides in found.items()}
    ScoreSums(len(paths), both, (int(called[0]), int(called[1]))).save(chunk_path(task, number))


def finish(
    config: RunConfig,
    task: Task,
    fitted: Fitted,
    result: dict[str, Any],
    paths: Sequence[str],
    chunks: int,
    begun: float,
) -> None:
    """Write the metrics of an attack, and the sums over all its parts.

    Args:
        config: of the run.
        task: the attack.
        fitted: what its scores came from.
        result: what is known of it already.
        paths: of all parts.
        chunks: how many `add_up` wrote.
        begun: when the attack began, by ``time.time``.
    """
    sums = _total([chunk_path(task, number) for number in range(chunks)], len(paths))
    splits = Splits.load(task.folder.path)
    method, seed = fitted.method, task.folder.seed
    grouped = None
    if splits.by_group:
        grouped = ByGroup.of_parts(sums, paths, method.threshold, seed)
        sums = grouped.sums
    both = sums.both("score")
    if grouped is None:
        metrics = both.metrics(sums.called, method.threshold, seed=seed)
    else:
        metrics = grouped.metrics(method.threshold, seed)
        result["design_effect"] = grouped.design_effect()
    if task.epoch == config.attacked_epochs(task.attack.target)[-1]:
        result["evidence"] = _evidence(config, task, splits, fitted, sums, grouped)
    score_canaries(config, task, splits, method)
    sums.save(sums_path(task))
    result["metrics"] = metrics.as_json()
    result["seconds"] = round(time.time() - begun + fitted.seconds, 3)
    storage.write_json(f"{task.folder.attack(task.name)}/result.json", result)


def _total(paths: Sequence[str], parts: int) -> ScoreSums:
    """The sums over all parts."""
    both: dict[str, tuple[Histogram, Histogram]] = {}
    called = np.zeros(2, dtype=np.int64)
    for path in paths:
        part = ScoreSums.load(path)
        called += part.called
        for column, (inside, outside) in part.histograms.items():
            before = both.get(column)
            both[column] = (inside, outside) if before is None else (before[0] + inside, before[1] + outside)
    return ScoreSums(parts, both, (int(called[0]), int(called[1])))


def _evidence(
    config: RunConfig,
    task: Task,
    splits: Splits,
    fitted: Fitted,
    sums: ScoreSums,
    grouped: ByGroup | None,
) -> dict[str, Any]:
    """As `pipelines.attack.evidence.of_dataset`, with the AUC on the reference encoders."""
    candidates, controls = sums.histograms["score"]
    found: dict[str, Any] = {}
    if "control" in sums.histograms:
        beside = sums.both("control").auc() if grouped is None else grouped.control_auc()
        found["control_auc"] = beside.as_json()
    if grouped is not None and grouped.mixed:
        grouped = None
    with suppress(NumericError):  # all scores are equal
        test = dataset_test_of_histograms(candidates, controls) if grouped is None else grouped.test(task.folder.seed)
        worths = (float(candidates.n), float(controls.n)) if grouped is None else grouped.worths
        least = least_share_of_histograms(candidates, controls, worths)
        found |= {"test": test.as_json(), "least_share": least.as_json()}
        sides = [
            (hits / side.n * worth, worth)
            for hits, side, worth in zip(sums.called, (candidates, controls), worths, strict=True)
        ]
        found |= share_of(config, task, splits, fitted.method, sides[0], sides[1])
    return found
