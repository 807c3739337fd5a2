"""The memorisation of every audited sample, where an attack measures it on its shadows: a table beside the scores."""

from __future__ import annotations

import pyarrow as pa

from mi_core.attacks.base import Attack
from mi_core.attacks.memorisation import MemorisationAttack
from mi_core.metrics.memorisation import Memorisation
from mi_core.records import Estimate
from mi_core.validity.conformal import q_values
from pipelines.attack.results import Task
from pipelines.files import storage

MEMORISED = "memorisation.parquet"


def memorised_path(task: Task) -> str:
    """The table of an attack's memorisation.

    Columns: id, memorisation, low, high, p_value, q_value, shadows_in, shadows_out.
    """
    return f"{task.path}/{MEMORISED}"


def write_memorised(task: Task, method: Attack) -> Estimate | None:
    """Write the table, the most memorised sample first; the mean, or None where the attack does not measure it."""
    found = method.memorisation if isinstance(method, MemorisationAttack) else None
    if found is None:
        return None
    table = _table(method.state()["names"].tolist(), found)
    storage.write_table(memorised_path(task), table.sort_by([("memorisation", "descending"), ("id", "ascending")]))
    return found.mean


def _table(names: list[str], found: Memorisation) -> pa.Table:
    """One row per sample; one shadow of each pair saw it."""
    return pa.table(
        {
            "id": names,
            "memorisation": found.value,
            "low": found.low,
            "high": found.high,
            "p_value": found.p_value,
            "q_value": q_values(found.p_value),
            "shadows_in": [found.pairs] * len(names),
            "shadows_out": [found.pairs] * len(names),
        }
    )
