"""Judge an attack by the scores of all samples, whatever the number of parts they stand in.

Metrics; a test of the candidates as a set, which needs no known members, with the share that was used where there are
some; and, where the attack measures it on its shadows, the memorisation of every sample: a table beside the scores.
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mi_core.attacks.base import Attack
from mi_core.attacks.memorisation import MemorisationAttack
from mi_core.metrics.membership import evaluate
from mi_core.records import BoolArray, Estimate, FloatArray
from mi_core.report.build import SetTest
from mi_core.validity.conformal import q_values
from mi_core.validity.sets.dataset import one_sided
from mi_core.validity.sets.share import effective_size, share_used
from pipelines.attack.fit import FITTED, Fitted, names_of
from pipelines.attack.results import Result, Task, write_result
from pipelines.attack.scores import groups_in, judged
from pipelines.data.draw.splits import Splits
from pipelines.extract.features import read
from pipelines.files import storage

MEMORISED = "memorisation.parquet"
_Groups = npt.NDArray[np.int64] | None


def judge(task: Task, fitted: Fitted, result: Result, begun: float) -> None:
    """Write the result of an attack.

    Args:
        task: the attack.
        fitted: what its scores came from.
        result: what is known of it already.
        begun: when the attack began, by ``time.time``.
    """
    method, table = fitted.method, judged(task, ("score", "member", "group", "control"))
    scores, member, groups = np.asarray(table["score"]), np.asarray(table["member"]), groups_in(table)
    metrics = evaluate(scores, member, method.threshold, seed=task.judge.seed, groups=groups)
    whole, evidence = task.judge.fold == "all", None
    if whole and task.judge.last:
        control = np.asarray(table["control"]) if "control" in table.column_names else None
        evidence = _set_test(task, method, scores, control, member, groups)
    mean = _write_memorised(task, method) if whole else None
    seconds = round(time.time() - begun, 3)
    found = replace(result, evidence=evidence, memorisation=mean, metrics=metrics)
    write_result(task, replace(found, seconds=seconds, seconds_fit=round(fitted.seconds, 3)))


def _set_test(
    task: Task, method: Attack, scores: FloatArray, control: FloatArray | None, member: BoolArray, groups: _Groups
) -> SetTest:
    """Test the candidates by an attack's scores, with the share that was used by the rate of known members.

    Attacks that are fitted on several shadows do not say it: none of these was trained on the known members.
    """
    found, reading = SetTest.from_scores(scores, control, member, seed=task.judge.seed, groups=groups), task.judge.known
    if found.test is None or reading is None:
        return found
    units = one_sided(groups, member)
    inside, outside = (
        _called(scores[side] >= method.threshold, None if units is None else units[side]) for side in (member, ~member)
    )
    some = Splits.load(task.folder.path).sampled(names_of(reading), FITTED, task.judge.seed)
    known = read(task.folder, reading, some)
    members = _called(method.score(known) >= method.threshold, some.groups(known.ids.tolist()))
    return replace(found, share=share_used(inside, outside, members))


def _called(called: BoolArray, groups: _Groups) -> tuple[float, float]:
    """Number called members and number in all; with groups, both count independent samples."""
    worth = float(len(called)) if groups is None else effective_size(groups)
    return float(called.mean()) * worth, worth


def memorised_path(task: Task) -> str:
    """The table of an attack's memorisation, the most memorised sample first.

    Columns: id, memorisation, low, high, p_value, q_value, shadows_in, shadows_out.
    """
    return f"{task.path}/{MEMORISED}"


def _write_memorised(task: Task, method: Attack) -> Estimate | None:
    """Write the table; the mean, or None where the attack does not measure it."""
    found = method.memorisation if isinstance(method, MemorisationAttack) else None
    if found is None:
        return None
    names = method.state()["names"].tolist()
    columns = {
        "id": names,
        "memorisation": found.value,
        "low": found.low,
        "high": found.high,
        "p_value": found.p_value,
        "q_value": q_values(found.p_value),
        **dict.fromkeys(("shadows_in", "shadows_out"), [found.pairs] * len(names)),  # one of each pair saw it
    }
    table = pa.table(columns).sort_by([("memorisation", "descending"), ("id", "ascending")])
    storage.write_table(memorised_path(task), table)
    return found.mean
