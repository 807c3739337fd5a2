"""Score the canaries of a target, whose coins the audit of differential privacy guesses."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from mi_core.attacks.base import Attack
from mi_core.hashing import digests64
from mi_core.validity.one_run import Guesses, guess
from pipelines.attack.tasks import Task, features_of
from pipelines.config.roles import CANARY_IN, COINS
from pipelines.config.run_config import RunConfig
from pipelines.data.draw.splits import Splits
from pipelines.files import storage

CANARIES = "canaries.parquet"


def guesses_canaries(config: RunConfig, task: Task) -> bool:
    """Whether the audit of differential privacy rests on the scores of an attack: at the last checkpoint."""
    last = task.epoch == config.attacked_epochs(task.attack.target)[-1]
    return last and task.position in config.dp_audits and task.output == config.dp_output(task.position)


def score_canaries(config: RunConfig, task: Task, splits: Splits, method: Attack) -> None:
    """Write id, score and coin (inside) of every canary, where the audit rests on this attack.

    Raises:
        NotApplicable: the features of the canaries carry nothing that the attack could read.
    """
    if not guesses_canaries(config, task):
        return
    features = features_of(config, task, splits, task.attack.target, COINS)
    inside = splits.among(features.ids, [CANARY_IN])
    columns = {"id": features.ids.tolist(), "score": method.score(features), "inside": inside}
    storage.write_table(_path(task), pa.table(columns))


def guessed(task: Task, counts: Sequence[int]) -> list[Guesses]:
    """The guesses by the scores of one seed, for each of several numbers of them.

    Rejected canaries are not guessed. Canaries of equal scores come in the order of a seeded hash, since the order of
    the file tells the coins.
    """
    table = storage.read_table(_path(task))
    scores, inside = np.asarray(table["score"], dtype=np.float64), np.asarray(table["inside"])
    ties = digests64((task.folder.seed, "guess"), table["id"].to_pylist())
    return [guess(scores, inside, min(count, len(scores)), ties) for count in counts]


def _path(task: Task) -> str:
    return f"{task.folder.attack(task.name)}/{CANARIES}"
