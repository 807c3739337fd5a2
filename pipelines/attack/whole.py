"""One attack in one process: fitted, all samples scored, and measured exactly."""

from __future__ import annotations

import time

import numpy as np

from mi_core.attacks.base import NotApplicable
from mi_core.metrics.delong import auc
from mi_core.metrics.membership import evaluate
from pipelines.attack.canaries import score_canaries
from pipelines.attack.evidence import of_dataset
from pipelines.attack.fitting import fit, outline, packed, score
from pipelines.attack.memorised import write_memorised
from pipelines.attack.scores import scores_path
from pipelines.attack.tasks import Task
from pipelines.config.run_config import RunConfig
from pipelines.data.splits import Splits
from pipelines.files import storage


def run_whole(config: RunConfig, task: Task) -> None:
    """Fit an attack, score the audited samples and write scores, fit and result."""
    started = time.perf_counter()
    splits = Splits.load(task.folder.path)
    place = task.folder.attack(task.name)
    fitted = None
    try:
        fitted = fit(config, task, splits)
        scored = score(config, task, splits, fitted)
        score_canaries(config, task, splits, fitted.method)
    except NotApplicable as error:
        known = outline(config, task, fitted, (0, None, 0))
        storage.write_json(f"{place}/result.json", known | {"not_applicable": str(error)})
        return
    table = scored.table
    result = outline(config, task, fitted, (len(table), scored.spent, scored.anchors))
    if scored.control_fault:
        result["control_not_applicable"] = scored.control_fault
    scores, member = np.asarray(table["score"]), np.asarray(table["member"])
    groups = np.asarray(table["group"]) if "group" in table.column_names else None
    method, seed = fitted.method, task.folder.seed
    metrics = evaluate(scores, member, method.threshold, seed=seed, groups=groups)
    if config.fold == "all" and task.epoch == config.attacked_epochs(task.attack.target)[-1]:
        result["evidence"] = of_dataset(config, task, splits, method, scores, member, groups)
        if "control" in table.column_names:
            result["evidence"]["control_auc"] = auc(np.asarray(table["control"]), member, groups).as_json()
    mean = write_memorised(task, method) if config.fold == "all" else None
    if mean is not None:
        result["memorisation"] = mean.as_json()
    storage.write_table(scores_path(task), table)
    storage.write_atomic(f"{place}/attack.npz", packed(method))
    result["seconds"] = round(time.perf_counter() - started, 3)
    result["seconds_fit"] = round(fitted.seconds, 3)
    result["metrics"] = metrics.as_json()
    storage.write_json(f"{place}/result.json", result)
