"""The scores of an attack as they stand in the run folder: one table, or many parts with sums over all of them.

Columns of a table, and of a part: id, member, score; statistic where the attack reads one number; control where
reference encoders are scored, and there, if the groups were chosen, calibrated: the score without what these encoders
explain; group where samples are grouped, a number; class, null where there is none; item, the shard.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mi_core.metrics.histograms import Histogram, ScoreHistograms
from mi_core.metrics.intervals import worth_of
from pipelines.attack.tasks import Task
from pipelines.files import storage
from pipelines.run.ray_session import mapped_or_here

AT_ONCE = 20  # parts that one task reads
SAMPLE_PARTS = 5  # parts of which results by class are computed
PARTS = "scores"  # the folder of the parts
SCORED = ("score", "statistic", "control", "calibrated")
_OF_IMAGES = ("calibrated", "score")  # of which single images are judged: the first that there is


def scores_path(task: Task) -> str:
    """The table of all scores, where it is small."""
    return f"{task.folder.attack(task.name)}/scores.parquet"


def parts_folder(task: Task) -> str:
    """The folder of the scores, where they are many, and of the sums over some of them."""
    return f"{task.folder.attack(task.name)}/{PARTS}"


def part_path(task: Task, number: int) -> str:
    """One part of the scores."""
    return f"{parts_folder(task)}/{number:05d}.parquet"


def chunk_path(task: Task, number: int) -> str:
    """The sums over some parts."""
    return f"{parts_folder(task)}/sums-{number:05d}.npz"


def sums_path(task: Task) -> str:
    """The sums over all parts."""
    return f"{task.folder.attack(task.name)}/sums.npz"


class Units(NamedTuple):
    """What an attack is measured on: members and non-members, or their groups.

    Args:
        counts: how many.
        worths: how many independent ones they are worth; less than ``counts`` where groups differ in size.
    """

    counts: tuple[int, int]
    worths: tuple[float, float]


@dataclass(frozen=True)
class ScoreSums:
    """Sums over all parts of the scores of an attack.

    Args:
        parts: how many.
        histograms: of the members and of the non-members, by column.
        called: members and non-members whose score reaches the attack's threshold.
        groups: of members and of non-members, how many; None where samples are not grouped.
        worths: independent samples that these groups are worth (`mi_core.metrics.intervals.worth_of`); None likewise.
        drawn: of non-members, one drawn from each group: the score by which it is judged; None likewise.
    """

    parts: int
    histograms: Mapping[str, tuple[Histogram, Histogram]]
    called: tuple[int, int]
    groups: tuple[int, int] | None = None
    worths: tuple[float, float] | None = None
    drawn: Histogram | None = None

    @property
    def units(self) -> Units:
        """What the attack is measured on."""
        inside, outside = self.histograms["score"]
        counts = self.groups or (inside.n, outside.n)
        return Units(counts, self.worths or counts)

    @property
    def image_scores(self) -> ScoreHistograms:
        """The histograms of the scores by which single images are judged."""
        return self.both(image_score_column(self.histograms))

    def both(self, column: str) -> ScoreHistograms:
        """The histograms of one column, with bins of one width."""
        return ScoreHistograms(*self.histograms[column])

    def save(self, path: str) -> None:
        """Write them as arrays."""
        arrays: dict[str, Any] = {"parts": self.parts, "called": self.called}
        arrays |= {"groups": self.groups or (), "worths": self.worths or ()}
        named = {f"{column}.{side}": two[side] for column, two in self.histograms.items() for side in (0, 1)}
        for name, histogram in {**named, **({} if self.drawn is None else {"drawn": self.drawn})}.items():
            arrays |= {f"{name}.{part}": array for part, array in histogram.arrays().items()}
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **arrays)
        storage.write_atomic(path, buffer.getvalue())

    @classmethod
    def load(cls, path: str) -> ScoreSums:
        """What `save` wrote; histograms are read when they are asked for."""
        data = storage.read_bytes(path)
        with _opened(data) as arrays:
            parts, called, groups = int(arrays["parts"]), arrays["called"].tolist(), arrays["groups"].tolist()
            drawn = _histogram(arrays, "drawn") if "drawn.codes" in arrays else None
            worths = arrays["worths"].tolist() if "worths" in arrays else groups
            columns = dict.fromkeys(name.partition(".")[0] for name in arrays if name.count(".") > 1)
        of_groups = (int(groups[0]), int(groups[1])) if groups else None
        worth = (float(worths[0]), float(worths[1])) if worths else None
        return cls(parts, _Histograms(data, tuple(columns)), (called[0], called[1]), of_groups, worth, drawn)


@dataclass(frozen=True)
class _Histograms(Mapping[str, tuple[Histogram, Histogram]]):
    """Histograms by column in a file's bytes; a pair is read whenever it is asked for, and not kept."""

    data: bytes
    columns: tuple[str, ...]

    def __getitem__(self, column: str) -> tuple[Histogram, Histogram]:
        if column not in self.columns:
            raise KeyError(column)
        with _opened(self.data) as arrays:
            return _histogram(arrays, f"{column}.0"), _histogram(arrays, f"{column}.1")

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns)


def _opened(data: bytes) -> Any:
    return np.load(io.BytesIO(data), allow_pickle=False)


def _histogram(arrays: Mapping[str, Any], name: str) -> Histogram:
    fields = {place.removeprefix(f"{name}."): arrays[place] for place in arrays if place.startswith(f"{name}.")}
    return Histogram.from_arrays(fields)


def image_score_column(columns: Collection[str]) -> str:
    """Which of some columns has the scores by which single images are judged.

    Example:
        >>> image_score_column(["id", "score"]), image_score_column(["id", "score", "control", "calibrated"])
        ('score', 'calibrated')
    """
    return next(name for name in _OF_IMAGES if name in columns)


def sums_of(task: Task) -> ScoreSums | None:
    """The sums over the parts of an attack's scores; None where one table holds all scores."""
    return ScoreSums.load(sums_path(task)) if storage.exists(sums_path(task)) else None


def units_of(task: Task) -> Units:
    """What an attack is measured on: samples, or groups."""
    sums = sums_of(task)
    if sums is not None:
        return sums.units
    table = storage.read_table(scores_path(task))
    member = np.asarray(table["member"])
    if "group" not in table.column_names:
        counts = (int(member.sum()), int((~member).sum()))
        return Units(counts, counts)
    groups = np.asarray(table["group"])
    inside, outside = (np.unique(groups[side], return_counts=True)[1].astype(np.float64) for side in (member, ~member))
    return Units((len(inside), len(outside)), (worth_of(inside), worth_of(outside)))


def rows_of(task: Task, ids: Collection[str]) -> pa.Table:
    """The scores of some samples, as many as one process can hold, sorted by id."""
    sums = sums_of(task)
    if sums is None:
        found = [_rows_in([scores_path(task)], ids)]
    else:
        found = over_parts(_rows_in, task, sums.parts, ids, title="scores of the samples of the blind classifier")
    return pa.concat_tables(found).sort_by("id")


def some_of(task: Task, columns: Sequence[str]) -> pa.Table:
    """Columns of all scores, or of some parts drawn at random where there are many; columns may be missing."""
    sums, paths = sums_of(task), [scores_path(task)]
    if sums is not None:
        drawn = np.random.default_rng(task.folder.seed).permutation(sums.parts)[:SAMPLE_PARTS]
        paths = [part_path(task, number) for number in sorted(drawn.tolist())]
    return pa.concat_tables([storage.read_columns(path, columns) for path in paths])


def over_parts(function: Callable[..., Any], task: Task, parts: int, *more: Any, title: str) -> list[Any]:
    """Call a function on the paths of some parts each, as Ray tasks where Ray runs; results in order."""
    paths = [part_path(task, number) for number in range(parts)]
    return mapped_or_here(function, [(some, *more) for some in in_turn(paths)], "parts", title)


def in_turn(paths: Sequence[str]) -> Iterator[list[str]]:
    """Some paths for each task."""
    for start in range(0, len(paths), AT_ONCE):
        yield list(paths[start : start + AT_ONCE])


def _rows_in(paths: Sequence[str], ids: Collection[str]) -> pa.Table:
    wanted = pa.array(sorted(ids), pa.string())
    tables = (storage.read_table(path) for path in paths)
    return pa.concat_tables([table.filter(pc.is_in(table["id"], value_set=wanted)) for table in tables])
