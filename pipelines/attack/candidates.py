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

from mi_core.metrics.histograms import codes_of
from mi_core.validity.candidates import answers_of, flags_as_json
from mi_core.validity.conformal import flagged_at, p_values_of_histograms, q_values_of_histograms
from mi_core.validity.posterior import posterior_of_histograms
from pipelines.attack.evidence import one_sided
from pipelines.attack.scores import SCORED, ScoreSums, image_score_column, over_parts, scores_path, sums_of
from pipelines.attack.tasks import Task
from pipelines.config.run_config import RunConfig
from pipelines.files import storage
from pipelines.run.folder import SeedFolder

FLAGGED = "flagged.csv"
TOP = 12  # candidates shown in the report
LISTED = 1000  # flagged candidates that are listed where the scores stand in parts
_NUMBERS = ("score", "p_value", "q_value", "posterior")


def samples_path(folder: SeedFolder, part: int | None = None) -> str:
    """The file of the answers, or of one part of them."""
    whole = f"{folder.path}/validity/candidates"
    return f"{whole}.parquet" if part is None else f"{whole}/{part:05d}.parquet"


def forget_samples(folder: SeedFolder) -> None:
    """Remove the answers that an earlier report wrote and this one must not give."""
    for name in ("candidates.parquet", "candidates", FLAGGED):
        storage.remove(f"{folder.path}/validity/{name}")


def flagged_ids(folder: SeedFolder) -> list[str]:
    """Ids of the flagged candidates, the highest score first; the first ones, where there are many."""
    listed = storage.read_bytes(f"{folder.path}/validity/{FLAGGED}").decode()
    return [row["id"] for row in csv.DictReader(io.StringIO(listed))]


def of_samples(config: RunConfig, folder: SeedFolder, task: Task, share: float, *, bound: bool) -> dict[str, Any]:
    """Compute p-value, q-value and posterior of every candidate, write and summarise them.

    Args:
        config: of the run.
        folder: of the seed.
        task: the primary attack.
        share: of the candidates that was used, in [0, 1].
        bound: whether ``share`` is only a lower bound.
    """
    sums, fdr = sums_of(task), config.validity.fdr
    found = _at_once(folder, task, share, fdr) if sums is None else _in_parts(folder, task, sums, share, fdr)
    return {
        **flags_as_json(found.candidates, found.controls, found.flagged, fdr),
        "share": share,
        "share_is_bound": bound,
        **({"grouped": True} if found.grouped else {}),
        "file": found.path.removeprefix(f"{folder.path.rpartition('/')[0]}/"),
        "top": [
            {"id": row["id"], "shard": row["item"], **{name: float(row[name]) for name in _NUMBERS}}
            for row in found.highest.slice(0, TOP).to_pylist()
        ],
    }


@dataclass(frozen=True)
class _Answers:
    """What was found.

    Args:
        path: of the answers.
        candidates, controls: how many; the controls are groups where samples are grouped.
        flagged: candidates, how many.
        grouped: whether the controls are groups.
        highest: answers of the candidates that score highest, in order.
    """

    path: str
    candidates: int
    controls: int
    flagged: int
    grouped: bool
    highest: pa.Table


def _at_once(folder: SeedFolder, task: Task, share: float, fdr: float) -> _Answers:
    table = storage.read_table(scores_path(task))
    column, member = image_score_column(table.column_names), np.asarray(table["member"])
    scores = np.asarray(table[column], dtype=np.float64)
    groups = one_sided(np.asarray(table["group"]) if "group" in table.column_names else None, member)
    found = answers_of(scores, member, share, fdr=fdr, seed=folder.seed, groups=groups)
    answers = pa.table(
        {
            "id": table["id"].filter(pa.array(member)),
            "item": table["item"].filter(pa.array(member)),
            "score": found.score,
            "p_value": found.p_value,
            "q_value": found.q_value,
            "flagged": found.flagged,
            "posterior": found.posterior,
        }
    ).take(pa.array(found.order))
    path, count = samples_path(folder), int(found.flagged.sum())
    if not storage.exists(path) or not storage.read_table(path).equals(answers):
        storage.write_atomic(f"{folder.path}/validity/{FLAGGED}", _csv(answers.slice(0, count)))
        storage.write_table(path, answers)
    return _Answers(path, len(found.score), found.controls, count, groups is not None, answers)


@dataclass(frozen=True)
class _Bins:
    """The answer of every bin of the candidates' scores (B,)."""

    codes: npt.NDArray[np.uint64]
    dropped: int
    numbers: Mapping[str, npt.NDArray[Any]]

    def of(self, candidates: pa.Table) -> pa.Table:
        """The answers of some candidates: id, item and score."""
        bins = np.searchsorted(self.codes, codes_of(np.asarray(candidates["score"]), self.dropped))
        for name, of in self.numbers.items():
            candidates = candidates.append_column(name, pa.array(of[bins]))
        return candidates


def _in_parts(folder: SeedFolder, task: Task, sums: ScoreSums, share: float, fdr: float) -> _Answers:
    both = sums.image_scores
    controls = both.nonmembers if sums.drawn is None else sums.drawn.coarser(both.nonmembers.dropped)
    p_values = p_values_of_histograms(both.members, controls)
    q_of = q_values_of_histograms(p_values, both.members.counts)
    flagged = flagged_at(q_of, fdr)
    numbers = {"p_value": p_values, "q_value": q_of, "flagged": flagged}
    numbers["posterior"] = posterior_of_histograms(both.members, controls, share)
    bins = _Bins(both.members.codes, both.members.dropped, numbers)
    count = int(both.members.counts[flagged].sum())
    above = both.members.ranked(np.array([max(0, both.members.n - LISTED)]))[0]
    found = over_parts(_answer, task, sums.parts, folder, bins, above, title="answers for single candidates")
    highest = pa.concat_tables(found).sort_by([("score", "descending"), ("id", "ascending")])
    listed = highest.filter(highest["flagged"]).slice(0, LISTED)
    storage.write_atomic(f"{folder.path}/validity/{FLAGGED}", _csv(listed))
    place = samples_path(folder, 0).rpartition("/")[0]
    return _Answers(place, both.members.n, controls.n, count, sums.drawn is not None, highest)


def _answer(paths: Sequence[str], folder: SeedFolder, bins: _Bins, above: np.uint64) -> pa.Table:
    """Write the answers of some parts of the scores; returns those of the bin ``above`` and of higher ones."""
    highest = []
    for path in paths:
        table = storage.read_columns(path, ["id", "item", "member", *SCORED])
        table = table.filter(table["member"])
        scores = table[image_score_column(table.column_names)]
        answers = bins.of(pa.table({"id": table["id"], "item": table["item"], "score": scores}))
        number = int(path.rpartition("/")[2].removesuffix(".parquet"))
        storage.write_table(samples_path(folder, number), answers)
        highest.append(answers.filter(pa.array(codes_of(np.asarray(answers["score"]), bins.dropped) >= above)))
    return pa.concat_tables(highest)


def _csv(answers: pa.Table) -> bytes:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["id", *_NUMBERS])
    for row in answers.to_pylist():
        writer.writerow([row["id"], *(f"{row[name]:.6g}" for name in _NUMBERS)])
    return buffer.getvalue().encode()
