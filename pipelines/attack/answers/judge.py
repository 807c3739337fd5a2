"""Judge an attack: metrics and evidence from the scores of all samples, whatever the number of parts they stand in."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from mi_core.metrics.membership import evaluate
from mi_core.report.model.as_json import part_as_json
from pipelines.attack.answers.evidence import set_test
from pipelines.attack.answers.memorised import write_memorised
from pipelines.attack.fit import Fitted
from pipelines.attack.results import Task
from pipelines.attack.scores import groups_in, judged
from pipelines.data.draw.splits import Splits
from pipelines.files import storage


def judge(task: Task, fitted: Fitted, result: dict[str, Any], begun: float) -> None:
    """Write the result of an attack.

    Args:
        task: the attack.
        fitted: what its scores came from.
        result: what is known of it already.
        begun: when the attack began, by ``time.time``.
    """
    method, splits = fitted.method, Splits.load(task.folder.path)
    table = judged(task, ("score", "member", "group", "control"))
    scores, member, groups = np.asarray(table["score"]), np.asarray(table["member"]), groups_in(table)
    metrics = evaluate(scores, member, method.threshold, seed=task.judge.seed, groups=groups)
    if task.judge.fold == "all" and task.judge.last:
        control = np.asarray(table["control"]) if "control" in table.column_names else None
        result["evidence"] = part_as_json(set_test(task, splits, method, scores, control, member, groups))
    mean = write_memorised(task, method) if task.judge.fold == "all" else None
    if mean is not None:
        result["memorisation"] = mean.as_json()
    result["seconds"] = round(time.time() - begun, 3)
    result["seconds_fit"] = round(fitted.seconds, 3)
    result["metrics"] = metrics.as_json()
    storage.write_json(f"{task.path}/result.json", result)
