"""Score the canaries of a target, whose coins the audit of differential privacy guesses."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mi_core.attacks.base import Attack
from mi_core.hashing import digests64
from mi_core.records import BoolArray, FloatArray
from mi_core.validity.one_run import Guesses, guess, log_wealth
from pipelines.attack.results import Task
from pipelines.config.roles import CANARY_IN
from pipelines.data.draw.splits import Splits
from pipelines.extract.features import read
from pipelines.files import storage

CANARIES = "canaries.parquet"


def score_canaries(task: Task, splits: Splits, method: Attack) -> None:
    """Write id, score and coin (inside) of every canary, where the audit rests on this attack.

    Raises:
        NotApplicable: the features of the canaries carry nothing that the attack could read.
    """
    reading = task.judge.score.canaries
    if reading is None:
        return
    features = read(task.folder, reading, splits)
    inside = splits.among(features.ids, [CANARY_IN])
    columns = {"id": features.ids.tolist(), "score": method.score(features), "inside": inside}
    storage.write_table(_path(task), pa.table(columns))


def guessed(task: Task, counts: Sequence[int]) -> list[Guesses]:
    """The guesses by the scores of one seed, for each of several numbers of them.

    Rejected canaries are not guessed. Canaries of equal scores come in the order of a seeded hash, since the order of
    the file tells the coins.
    """
    scores, inside, ties = _coins(task)
    return [guess(scores, inside, min(count, len(scores)), ties) for count in counts]


def wealth_against(task: Task, epsilon: float) -> FloatArray:
    """The logarithm of the wealth of a gambler who bets against a promise, after each canary of one seed."""
    return log_wealth(*_coins(task), epsilon)


def _coins(task: Task) -> tuple[FloatArray, BoolArray, npt.NDArray[np.uint64]]:
    """Scores and coins of the canaries of one seed, and the numbers that order equal scores."""
    table = storage.read_table(_path(task))
    ties = digests64((task.judge.seed, "guess"), table["id"].to_pylist())
    return np.asarray(table["score"], dtype=np.float64), np.asarray(table["inside"]), ties


def _path(task: Task) -> str:
    return f"{task.path}/{CANARIES}"
