"""Test the candidates as a set, with statistics that need no known members."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mi_core.attacks.base import Attack
from mi_core.checks import NumericError
from mi_core.records import BoolArray, FloatArray
from mi_core.validity.sets.dataset import DatasetTest, dataset_test
from mi_core.validity.sets.share import effective_size, least_share, share_used
from pipelines.attack.fit import FITTED
from pipelines.attack.reference import names_of
from pipelines.attack.results import Task
from pipelines.data.draw.splits import Splits
from pipelines.extract.features import read

_Groups = npt.NDArray[np.int64] | None


def of_dataset(
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
    groups = one_sided(groups, member)
    test = test_of(task, scores, member, groups)
    if test is None:
        return {}
    tests = {"test": test.as_json(), "least_share": least_share(scores, member, groups=groups).as_json()}
    sides = [
        called_by(scores[side] >= method.threshold, None if groups is None else groups[side])
        for side in (member, ~member)
    ]
    return tests | share_of(task, splits, method, sides[0], sides[1])


def test_of(task: Task, scores: FloatArray, member: BoolArray, groups: _Groups) -> DatasetTest | None:
    """The test of candidates (``member``, (N,)) against controls; None: all scores are equal.

    Args:
        task: the attack.
        scores, member: (N,).
        groups: (N,) or None, none with candidates and controls; see `one_sided`.
    """
    try:
        return dataset_test(scores, member, seed=task.judge.seed, groups=groups)
    except NumericError:
        return None


def share_of(
    task: Task,
    splits: Splits,
    method: Attack,
    candidates: tuple[float, float],
    controls: tuple[float, float],
) -> dict[str, Any]:
    """The share of the candidates that was used, by the rate of known members; empty where there are none.

    Nor do attacks that are fitted on several shadows say it: none of these was trained on the known members.

    Args:
        candidates, controls: number called members and number in all, as `called_by` gives them.
    """
    reading = task.judge.known
    if reading is None:
        return {}
    some = splits.sampled(names_of(reading), FITTED, task.judge.seed)
    known = read(task.folder, reading, some)
    members = called_by(method.score(known) >= method.threshold, some.groups(known.ids.tolist()))
    return {"share": share_used(candidates, controls, members).as_json()}


def one_sided(groups: _Groups, member: BoolArray) -> _Groups:
    """The groups (N,), or None where some hold candidates and controls.

    These are shards of one source, of which the roles were drawn sample by sample: within a shard it was chance that
    made one image a candidate and another one a control, so that tests need no groups.
    """
    if groups is None:
        return None
    both = np.intersect1d(groups[member], groups[~member])
    return None if len(both) else groups


def called_by(called: BoolArray, groups: _Groups) -> tuple[float, float]:
    """Number called members and number in all; with groups, both count independent samples."""
    worth = float(len(called)) if groups is None else effective_size(groups)
    return float(called.mean()) * worth, worth
