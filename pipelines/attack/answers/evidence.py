"""Test the candidates as a set, with statistics that need no known members, and with these where there are any."""

from __future__ import annotations

from dataclasses import replace

import numpy.typing as npt
from numpy import int64

from mi_core.attacks.base import Attack
from mi_core.records import BoolArray, FloatArray
from mi_core.report.build import SetTest
from mi_core.validity.sets.dataset import one_sided
from mi_core.validity.sets.share import effective_size, share_used
from pipelines.attack.fit import FITTED
from pipelines.attack.reference import names_of
from pipelines.attack.results import Task
from pipelines.data.draw.splits import Splits
from pipelines.extract.features import read

_Groups = npt.NDArray[int64] | None


def set_test(
    task: Task,
    splits: Splits,
    method: Attack,
    scores: FloatArray,
    control: FloatArray | None,
    member: BoolArray,
    groups: _Groups,
) -> SetTest:
    """Test the candidates by an attack's scores, with the share that was used by the rate of known members.

    Attacks that are fitted on several shadows do not say it: none of these was trained on the known members.

    Args:
        task: the attack; splits: of its seed.
        method: as it was fitted.
        scores, control, member, groups: as `SetTest.from_scores`.
    """
    found, reading = SetTest.from_scores(scores, control, member, seed=task.judge.seed, groups=groups), task.judge.known
    if found.test is None or reading is None:
        return found
    units = one_sided(groups, member)
    inside, outside = (
        _called(scores[side] >= method.threshold, None if units is None else units[side]) for side in (member, ~member)
    )
    some = splits.sampled(names_of(reading), FITTED, task.judge.seed)
    known = read(task.folder, reading, some)
    members = _called(method.score(known) >= method.threshold, some.groups(known.ids.tolist()))
    return replace(found, share=share_used(inside, outside, members))


def _called(called: BoolArray, groups: _Groups) -> tuple[float, float]:
    """Number called members and number in all; with groups, both count independent samples."""
    worth = float(len(called)) if groups is None else effective_size(groups)
    return float(called.mean()) * worth, worth
