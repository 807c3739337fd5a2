"""Summarise the memorisation of the audited samples by the shadows of each attack that measures it."""

from __future__ import annotations

from typing import Any

import numpy as np

from mi_core.records import Estimate
from mi_core.report.model.promises import Memorisation, MemorisedSample
from mi_core.validity.conformal import flagged_at
from pipelines.attack.judge import memorised_path
from pipelines.attack.results import Task, result_of, settings_of
from pipelines.files import storage
from pipelines.plan.rules import epoch_beside, shadows_of
from pipelines.report.parts.finished import FinishedRun

TOP = 12  # samples named in the report


def memorised(run: FinishedRun) -> tuple[Memorisation, ...]:
    """One part of the report for each attack, output and seed, at the last checkpoint.

    Shadows do not depend on the target: attacks that differ in it alone have one entry.
    """
    found: dict[str, Memorisation] = {}
    for task in run.tasks():
        judge, attack = task.judge, task.judge.attack
        if judge.last and "memorisation" in result_of(task):
            shadows = shadows_of(run.config, attack)
            measured = (attack.attack, shadows, judge.output, judge.seed, str(attack.parameters()))
            found.setdefault(str(measured), _entry(run, task))
    return tuple(found.values())


def _entry(run: FinishedRun, task: Task) -> Memorisation:
    table, settings = storage.read_table(memorised_path(task)), settings_of(task.judge.attack, run.config.attacks)
    flagged = flagged_at(np.asarray(table["q_value"]), run.config.validity.fdr)
    return Memorisation(
        attack=task.judge.attack.attack,
        shadow=task.judge.attack.reference,
        settings=settings or None,
        output=task.judge.output,
        epoch=epoch_beside(run.config, shadows_of(run.config, task.judge.attack)[0], task.judge.epoch),
        seed=task.folder.seed,
        pairs=table["shadows_in"][0].as_py(),
        mean=Estimate.from_json(result_of(task)["memorisation"]),
        memorised=int(flagged.sum()),
        fdr=run.config.validity.fdr,
        top=tuple(map(_sample, table.slice(0, TOP).to_pylist())),
        file=memorised_path(task).removeprefix(f"{run.folder.path}/"),
    )


def _sample(row: dict[str, Any]) -> MemorisedSample:
    interval = row["low"], row["high"]
    return MemorisedSample(id=row["id"], value=row["memorisation"], ci95=interval, q_value=row["q_value"])
