"""The scores of an attack as they stand in the run folder: parts, each a table of the samples of some shards.

Columns: id, member, score; statistic where the attack reads one number; control where reference encoders are scored,
and there, if the groups were chosen, calibrated: the score without what these encoders explain; group where samples
are grouped, a number; class, null where there is none; item, the shard.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mi_core.hashing import digests64
from mi_core.metrics.intervals import worth_of
from pipelines.attack.results import Task
from pipelines.files import storage
from pipelines.run.ray_session import mapped_or_here

MOST_JUDGED = 20_000_000
"""Samples that metrics are computed of, at most. Drawing them moves an AUC by .00013 (one standard error)."""
SCORES = "scores.parquet"  # the folder of the parts
_AT_ONCE = 20  # parts that one task reads
SCORE_COLUMNS = ("calibrated", "score")  # single images are judged by the first that there is


def scores_folder(task: Task) -> str:
    """The folder of the parts."""
    return f"{task.path}/{SCORES}"


def part_path(task: Task, number: int) -> str:
    """One part of the scores."""
    return f"{scores_folder(task)}/{number:05d}.parquet"


def parts_of(task: Task) -> list[str]:
    """The paths of all parts, in order; empty: nothing is scored yet."""
    return sorted(storage.list_files(scores_folder(task)))


class Units(NamedTuple):
    """The units that an attack is measured on: members and non-members, or their groups.

    Args:
        counts: how many.
        worths: how many independent ones they are worth; less than ``counts`` where groups differ in size.
    """

    counts: tuple[int, int]
    worths: tuple[float, float]


def units_of(task: Task) -> Units:
    """The units that an attack is measured on: samples, or groups."""
    table = judged(task, ("member", "group"))
    member, groups = np.asarray(table["member"]), groups_in(table)
    if groups is None:
        counts = (int(member.sum()), int((~member).sum()))
        return Units(counts, counts)
    inside, outside = (np.unique(groups[side], return_counts=True)[1].astype(np.float64) for side in (member, ~member))
    return Units((len(inside), len(outside)), (worth_of(inside), worth_of(outside)))


def groups_in(table: pa.Table) -> np.ndarray | None:
    """The groups (N,) of some scores; None where samples are not grouped."""
    return np.asarray(table["group"]) if "group" in table.column_names else None


def image_score_column(columns: Collection[str]) -> str:
    """The column among some that has the scores by which single images are judged.

    Example:
        >>> image_score_column(["id", "score"]), image_score_column(["id", "score", "control", "calibrated"])
        ('score', 'calibrated')
    """
    return next(name for name in SCORE_COLUMNS if name in columns)


def judged(task: Task, columns: Sequence[str], most: int = MOST_JUDGED) -> pa.Table:
    """Columns of the scores of all samples, or of about ``most`` that are drawn by their ids where there are more.

    Args:
        task: the attack.
        columns: some may be missing.
        most: samples.
    """
    paths = parts_of(task)
    total = storage.data_set(paths).count_rows()
    found = over_parts(_some_of, paths, columns, most / total, title="scores") if total > most else None
    return pa.concat_tables(found or [storage.read_columns(path, columns) for path in paths])


def rows_of(task: Task, ids: Collection[str]) -> pa.Table:
    """The scores of some samples, as many as one process can hold, sorted by id."""
    found = over_parts(_rows_in, parts_of(task), ids, title="scores of the samples of the blind classifier")
    return pa.concat_tables(found).sort_by("id")


def over_parts(function: Callable[..., Any], paths: Sequence[str], *more: Any, title: str) -> list[Any]:
    """Call a function on the paths of some parts each: of many as Ray tasks, where Ray runs; results in order."""
    given = [(paths[start : start + _AT_ONCE], *more) for start in range(0, len(paths), _AT_ONCE)]
    return mapped_or_here(function, given, "parts", title) if len(given) > 1 else [function(*one) for one in given]


def _some_of(paths: Sequence[str], columns: Sequence[str], share: float) -> pa.Table:
    """Columns of a share of the samples of some parts."""
    found = []
    for path in paths:
        table = storage.read_columns(path, ["id", *(name for name in columns if name != "id")])
        drawn = digests64(("judged",), table["id"].to_pylist()) < share * 2.0**64
        found.append(table.filter(pa.array(drawn)).select([name for name in columns if name in table.column_names]))
    return pa.concat_tables(found)


def _rows_in(paths: Sequence[str], ids: Collection[str]) -> pa.Table:
    wanted = pa.array(sorted(ids), pa.string())
    tables = (storage.read_table(path) for path in paths)
    return pa.concat_tables([table.filter(pc.is_in(table["id"], value_set=wanted)) for table in tables])
