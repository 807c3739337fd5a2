"""Test the candidates as a set and one by one, with statistics that need no known members."""

from __future__ import annotations

import csv
import io
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mi_core.attacks.base import Attack
from mi_core.checks import NumericError
from mi_core.records import BoolArray, FloatArray
from mi_core.validity.conformal import benjamini_hochberg, conformal_p_values, least_flags, needed_controls, q_values
from mi_core.validity.dataset import dataset_test
from mi_core.validity.posterior import posterior
from mi_core.validity.share import effective_size, least_share, share_used
from pipelines.attack.tasks import Task, features_of
from pipelines.config.roles import CALIBRATION_ROLE
from pipelines.config.run_config import RunConfig
from pipelines.data.splits import Splits
from pipelines.files import storage
from pipelines.run.folder import SeedFolder

FLAGGED = "flagged.csv"
TOP = 12  # samples shown in the report
_Groups = npt.NDArray[np.int64] | None


def of_dataset(
    config: RunConfig,
    task: Task,
    splits: Splits,
    method: Attack,
    scores: FloatArray,
    member: BoolArray,
    groups: _Groups,
) -> dict[str, Any]:
    """Test the candidates against the controls and estimate the share that was used, as JSON values.

    Empty if all scores are equal.
    """
    try:
        test = dataset_test(scores, member, seed=task.folder.seed, groups=groups)
    except NumericError:
        return {}
    tests = {"test": test.as_json(), "least_share": least_share(scores, member, groups=groups).as_json()}
    if CALIBRATION_ROLE in config.data.roles and task.stopping is None:
        known = features_of(config, task, splits, task.attack.target, [CALIBRATION_ROLE])
        called = [
            _called(scores[member] >= method.threshold, None if groups is None else groups[member]),
            _called(scores[~member] >= method.threshold, None if groups is None else groups[~member]),
            _called(method.score(known) >= method.threshold, splits.groups(known.ids.tolist())),
        ]
        tests["share"] = share_used(*called).as_json()
    return tests


def _called(called: BoolArray, groups: _Groups) -> tuple[float, float]:
    """Number called members and number in all; with groups, both count independent samples."""
    worth = float(len(called)) if groups is None else effective_size(groups)
    return float(called.mean()) * worth, worth


def samples_path(folder: SeedFolder) -> str:
    """The file of the results per candidate."""
    return f"{folder.path}/validity/candidates.parquet"


def forget_samples(folder: SeedFolder) -> None:
    """Remove the results per candidate that an earlier report wrote and this one must not give."""
    for path in (samples_path(folder), f"{folder.path}/validity/{FLAGGED}"):
        storage.remove(path)


def of_samples(config: RunConfig, folder: SeedFolder, task: Task, share: float, *, bound: bool) -> dict[str, Any]:
    """Compute p-value, q-value and posterior of every candidate from the primary attack, write and summarise them.

    Args:
        share: of the candidates that was used, in [0, 1].
        bound: whether ``share`` is only a lower bound.
    """
    table = storage.read_table(f"{folder.attack(task.name)}/scores.parquet")
    scores, member = np.asarray(table["score"], dtype=np.float64), np.asarray(table["member"])
    ids = np.array(table["id"].to_pylist(), dtype=object)
    grouped = Splits.load(folder.path).groups(ids.tolist())
    candidates, controls = scores[member], scores[~member]
    groups = None if grouped is None else grouped[~member]
    p_values = conformal_p_values(candidates, controls, groups=groups, seed=folder.seed)
    flagged = benjamini_hochberg(p_values, config.validity.fdr)
    posteriors = posterior(candidates, controls, share, seed=folder.seed)
    order = np.lexsort((-candidates, p_values))
    columns = {
        "id": ids[member][order].tolist(),
        "score": candidates[order],
        "p_value": p_values[order],
        "q_value": q_values(p_values)[order],
        "flagged": flagged[order],
        "posterior": posteriors[order],
    }
    shown = max(TOP, int(flagged.sum()))
    rows = [
        dict(zip(columns, row, strict=True)) for row in zip(*(part[:shown] for part in columns.values()), strict=True)
    ]
    answers = pa.table(columns)
    if not storage.exists(samples_path(folder)) or storage.read_table(samples_path(folder)) != answers:
        storage.write_atomic(f"{folder.path}/validity/{FLAGGED}", _csv(rows, flagged))
        storage.write_table(samples_path(folder), answers)
    known = len(controls) if groups is None else len(np.unique(groups))
    least = least_flags(known, len(candidates), config.validity.fdr)
    return {
        "fdr": config.validity.fdr,
        "n_candidate": len(candidates),
        "n_control": known,
        "flagged": int(flagged.sum()),
        "least_flags": least,
        **({"needed_controls": needed_controls(len(candidates), config.validity.fdr)} if least > 1 else {}),
        "share": share,
        "share_is_bound": bound,
        **({} if groups is None else {"grouped": True}),
        "file": samples_path(folder).removeprefix(f"{folder.path.rpartition('/')[0]}/"),
        "top": [
            {"id": row["id"], **{name: float(row[name]) for name in ("score", "p_value", "q_value", "posterior")}}
            for row in rows[:TOP]
        ],
    }


def _csv(rows: list[dict[str, Any]], flagged: BoolArray) -> bytes:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["id", "score", "p_value", "q_value", "posterior"])
    for row in rows[: int(flagged.sum())]:
        writer.writerow([row["id"], *(f"{row[name]:.6g}" for name in ("score", "p_value", "q_value", "posterior"))])
    return buffer.getvalue().encode()
