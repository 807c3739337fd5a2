"""Summarise the memorisation of the audited samples by the shadows of each attack that measures it."""

from __future__ import annotations

from typing import Any

import numpy as np

from mi_core.validity.conformal import flagged_at
from pipelines.attack.memorised import memorised_path
from pipelines.attack.results import result_of, settings_of
from pipelines.attack.tasks import Task, tasks
from pipelines.config.run_config import RunConfig
from pipelines.files import storage
from pipelines.run.folder import RunFolder

TOP = 12  # samples named in the report


def memorised(config: RunConfig, folder: RunFolder) -> list[dict[str, Any]]:
    """One entry of report.json for each attack, output and seed, at the last checkpoint.

    Shadows do not depend on the target: attacks that differ in it alone have one entry.
    """
    found: dict[str, dict[str, Any]] = {}
    for seed in config.seeds:
        for task in tasks(config, folder.seed(seed)):
            last = task.epoch == config.attacked_epochs(task.attack.target)[-1]
            if last and "memorisation" in result_of(task):
                shadows = config.shadows(task.attack)
                measured = (task.attack.attack, shadows, task.output, seed, str(task.attack.parameters()))
                found.setdefault(str(measured), _entry(config, folder, task))
    return list(found.values())


def _entry(config: RunConfig, folder: RunFolder, task: Task) -> dict[str, Any]:
    table, settings = storage.read_table(memorised_path(task)), settings_of(config, task.attack)
    flagged = flagged_at(np.asarray(table["q_value"]), config.validity.fdr)
    return {
        "attack": task.attack.attack,
        "shadow": task.attack.reference,
        **({"settings": settings} if settings else {}),
        "output": task.output,
        "epoch": config.epoch_beside(config.shadows(task.attack)[0], task.epoch),
        "seed": task.folder.seed,
        "pairs": table["shadows_in"][0].as_py(),
        "mean": result_of(task)["memorisation"],
        "memorised": int(flagged.sum()),
        "fdr": config.validity.fdr,
        "top": [_named(row) for row in table.slice(0, TOP).to_pylist()],
        "file": memorised_path(task).removeprefix(f"{folder.path}/"),
    }


def _named(row: dict[str, Any]) -> dict[str, Any]:
    """One sample."""
    return {
        "id": row["id"],
        "value": row["memorisation"],
        "ci95": [row["low"], row["high"]],
        "q_value": row["q_value"],
    }
