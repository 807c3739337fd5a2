"""Answer for every candidate by itself, from the scores of the primary attack: p-value, q-value and posterior."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mi_core.report.build import TOP, SeedTest, sample_answers
from mi_core.report.model.judgement import SampleAnswers, TopSample
from mi_core.validity.candidates import NUMBERS, answers_of
from mi_core.validity.sets.dataset import one_sided
from pipelines.attack.results import Task
from pipelines.attack.scores import SCORE_COLUMNS, groups_in, image_score_column, judged, over_parts, parts_of
from pipelines.files import storage
from pipelines.run.folder import SeedFolder

FLAGGED = "flagged.csv"
SAMPLES = "candidates.parquet"
LISTED = 100_000  # flagged candidates that are listed, at most


def samples_folder(folder: SeedFolder) -> str:
    """The folder of the answers: a table for each part of the scores."""
    return f"{folder.path}/validity/{SAMPLES}"


def forget_samples(folder: SeedFolder) -> None:
    """Remove the answers that an earlier report wrote and this one must not give."""
    for name in (SAMPLES, FLAGGED):
        storage.remove(f"{folder.path}/validity/{name}")


def flagged_ids(folder: SeedFolder) -> list[str]:
    """Ids of the flagged candidates, the highest score first; the first ones, where there are many."""
    listed = storage.read_bytes(f"{folder.path}/validity/{FLAGGED}").decode()
    return [row["id"] for row in csv.DictReader(io.StringIO(listed))]


def answer_candidates(task: Task, test: SeedTest, fdr: float) -> SampleAnswers:
    """Compute p-value, q-value and posterior of every candidate, write and summarise them.

    Of very many samples these follow from those that metrics are computed of; see `pipelines.attack.scores.judged`.

    Args:
        task: the primary attack.
        test: of the candidates as a set by the same scores.
        fdr: false discovery rate at which candidates are flagged.
    """
    table, folder = judged(task, (*SCORE_COLUMNS, "member", "group")), task.folder
    column, member = image_score_column(table.column_names), np.asarray(table["member"])
    scores, groups = np.asarray(table[column], dtype=np.float64), one_sided(groups_in(table), member)
    share, _ = test.result.best_share
    found = answers_of(scores, member, share, fdr=fdr, seed=folder.seed, groups=groups)
    kept = {_path_beside(folder, part) for part in parts_of(task)}
    for path in storage.list_files(samples_folder(folder)):
        if path not in kept:  # an earlier report wrote it of other parts
            storage.remove(path)
    score, rows = np.unique(found.score, return_index=True)  # candidates of one score have one answer
    columns = ("p_value", "q_value", "flagged", "posterior")
    by_score = _ByScore(score, {name: getattr(found, name)[rows] for name in columns})
    parts = over_parts(_write, parts_of(task), folder, column, by_score, title="answers for single candidates")
    highest = pa.concat_tables([one.highest for one in parts]).sort_by([("score", "descending"), ("id", "ascending")])
    lowest = pa.concat_tables([one.lowest for one in parts]).sort_by([("score", "ascending"), ("id", "descending")])
    flagged = sum(one.flagged for one in parts)
    buffer = io.StringIO()
    listed = csv.writer(buffer, lineterminator="\n")
    listed.writerow(["id", *NUMBERS])
    for row in highest.slice(0, min(flagged, LISTED)).to_pylist():
        listed.writerow([row["id"], *(f"{row[name]:.6g}" for name in NUMBERS)])
    _write_changed(f"{folder.path}/validity/{FLAGGED}", buffer.getvalue().encode())
    return sample_answers(
        test,
        candidates=sum(one.candidates for one in parts),
        controls=found.controls,
        flagged=flagged,
        fdr=fdr,
        grouped=groups is not None,
        file=samples_folder(folder).removeprefix(f"{folder.path.rpartition('/')[0]}/"),
        top=_top_samples(highest),
        lowest=_top_samples(lowest),
    )


def _top_samples(rows: pa.Table) -> tuple[TopSample, ...]:
    return tuple(
        TopSample(id=row["id"], shard=row["item"], **{name: float(row[name]) for name in NUMBERS})
        for row in rows.slice(0, TOP).to_pylist()
    )


@dataclass(frozen=True)
class _ByScore:
    """The answers of candidates by their scores (K,), ascending and each once."""

    score: npt.NDArray[np.float64]
    answers: Mapping[str, npt.NDArray[Any]]

    def at(self, scores: npt.NDArray[np.float64]) -> dict[str, npt.NDArray[Any]]:
        """The answers at some scores (N,): of the next lower score where one is not known, which claims less."""
        rows = np.maximum(np.searchsorted(self.score, scores, "right") - 1, 0)
        return {name: of[rows] for name, of in self.answers.items()}


@dataclass(frozen=True)
class _Written:
    """The outcome of writing some parts: numbers of candidates and flagged ones, and the scores at both ends."""

    candidates: int
    flagged: int
    highest: pa.Table
    lowest: pa.Table


def _write(paths: Sequence[str], folder: SeedFolder, column: str, by_score: _ByScore) -> _Written:
    """Write the answers of some parts of the scores, the highest first."""
    found = []
    for path in paths:
        table = storage.read_columns(path, ["id", "item", "member", column])
        table = table.filter(table["member"]).sort_by([(column, "descending"), ("id", "ascending")])
        scores = np.asarray(table[column], dtype=np.float64)
        answers = pa.table({"id": table["id"], "item": table["item"], "score": scores, **by_score.at(scores)})
        _write_changed(_path_beside(folder, path), storage.table_bytes(answers))
        flagged = int(pc.sum(answers["flagged"]).as_py() or 0)
        highest, lowest = answers.slice(0, max(TOP, min(flagged, LISTED))), answers.slice(max(0, len(answers) - TOP))
        found.append(_Written(len(answers), flagged, highest, lowest))
    highest, lowest = (pa.concat_tables([getattr(one, end) for one in found]) for end in ("highest", "lowest"))
    return _Written(sum(one.candidates for one in found), sum(one.flagged for one in found), highest, lowest)


def _path_beside(folder: SeedFolder, part: str) -> str:
    """Where the answers of a part of the scores stand."""
    return f"{samples_folder(folder)}/{part.rpartition('/')[2]}"


def _write_changed(path: str, data: bytes) -> None:
    """Write a file, unless it stands there."""
    if storage.file_or_none(path) != data:
        storage.write_atomic(path, data)
