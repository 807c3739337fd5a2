"""Metrics of grouped samples whose scores stand in parts, from sums over each group by a database."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mi_core.hashing import digests64
from mi_core.metrics.group_sums import auc_of_groups, design_effect_of_groups, metrics_of_groups
from mi_core.metrics.histograms import Histogram, ScoreHistograms
from mi_core.metrics.intervals import GroupSizes, worth_of
from mi_core.metrics.membership import LOW_FPRS, MembershipMetrics
from mi_core.records import Estimate
from mi_core.validity.dataset import DatasetTest, dataset_test_of_groups
from pipelines.attack.scores import ScoreSums, image_score_column
from pipelines.data.database import database
from pipelines.files import storage

_Sums = npt.NDArray[np.float64]
_ABOVE = [f"above{number}" for number in range(len(LOW_FPRS))]


@dataclass(frozen=True)
class ByGroup:
    """Sums over each of G groups of the samples of an attack.

    Args:
        sums: over all samples, with the groups counted.
        of: name to (2, G): over the members and over the non-members.
        centre: that was subtracted from the scores before they were summed.
        mixed: some groups hold candidates and controls; see `pipelines.attack.evidence.one_sided`.
    """

    sums: ScoreSums
    of: Mapping[str, _Sums]
    centre: float
    mixed: bool

    @classmethod
    def of_parts(cls, sums: ScoreSums, paths: Sequence[str], threshold: float, seed: int) -> ByGroup:
        """The sums over each group of all parts.

        Args:
            sums: over all samples.
            paths: of the parts.
            threshold: from which on a sample is called a member.
            seed: of the draw of one control from each group.
        """
        sides = sums.histograms["score"]
        samples = sum(side.n for side in sides)
        centre = sum(float(side.totals.sum()) for side in sides) / samples
        with database(samples) as connection:
            names: list[str] = []
            for part in _parts(sums, paths, threshold, centre, seed):
                connection.register("part", part)
                how = "INSERT INTO every" if names else "CREATE TABLE every AS"
                names = [name for name in part.column_names if name not in ("grouped", "member", "rank", "drawn")]
                connection.execute(f"{how} {_by_group(names)} FROM part GROUP BY grouped, member")
            found = connection.sql(f"{_by_group(names)} FROM every GROUP BY grouped, member").to_arrow_table()
        groups, codes = np.unique(np.asarray(found["grouped"]), return_inverse=True)
        member = np.asarray(found["member"])
        of = {name: np.zeros((2, len(groups))) for name in names}
        for name, both in of.items():
            both[(~member).astype(int), codes] = np.asarray(found[name], dtype=np.float64)
        mixed = bool(((of["n"] > 0).sum(axis=0) > 1).any())
        drawn = None if mixed else Histogram.of(np.asarray(found["drawn"])[~member])
        inside, outside = (row[row > 0] for row in of["n"])
        counted, worths = (len(inside), len(outside)), (worth_of(inside), worth_of(outside))
        return cls(replace(sums, groups=counted, worths=worths, drawn=drawn), of, centre, mixed)

    @property
    def sizes(self) -> GroupSizes:
        """Members and non-members of each group."""
        return GroupSizes(self.of["n"])

    @property
    def worths(self) -> tuple[float, float]:
        """Independent samples that the members and the non-members are worth."""
        return self.sums.units.worths

    def metrics(self, threshold: float, seed: int) -> MembershipMetrics:
        """All metrics of the attack."""
        above = dict(zip(LOW_FPRS, (self.of[name] for name in _ABOVE), strict=True))
        both = self.sums.both("score")
        return metrics_of_groups(both, self.of["placed"], self.of["called"], above, threshold, self.sizes, seed=seed)

    def test(self, seed: int) -> DatasetTest:
        """The candidates against the controls."""
        inside, outside = (
            np.stack([self.of[name][side][self.of["n"][side] > 0] for name in ("n", "total", "square")])
            for side in (0, 1)
        )
        return dataset_test_of_groups(inside, outside, seed=seed)

    def design_effect(self) -> float:
        """By how much the variance of the AUC grows because samples of a group are alike."""
        return design_effect_of_groups(self.sums.both("score"), self.of["placed"], self.sizes)

    def control_auc(self) -> Estimate:
        """The AUC of the attack on the reference encoders."""
        return auc_of_groups(self.of["beside"], self.sizes)


def _by_group(names: Sequence[str]) -> str:
    summed = ", ".join(f"sum({name}) AS {name}" for name in names)
    return f"SELECT grouped, member, {summed}, min(rank) AS rank, arg_min(drawn, rank) AS drawn"


def _parts(sums: ScoreSums, paths: Sequence[str], threshold: float, centre: float, seed: int) -> Iterator[pa.Table]:
    """One table for each part: sums by group and class, and the sample of each group with the lowest hash."""
    both = sums.both("score")
    beside = sums.both("control") if "control" in sums.histograms else None
    highest = [both.threshold(fpr) for fpr in LOW_FPRS]
    for path in paths:
        table = storage.read_table(path)
        member, scores = np.asarray(table["member"]), np.asarray(table["score"])
        codes, shifted = both.codes_of(scores), scores - centre
        columns: dict[str, Any] = {
            "grouped": table["group"],
            "member": member,
            "n": np.ones(len(table)),
            "placed": _placed(both, codes, member),
            "called": (scores >= threshold).astype(float),
            "total": shifted,
            "square": shifted**2,
            "rank": digests64((seed, "control"), table["id"].to_pylist()),
            "drawn": table[image_score_column(table.column_names)],
        }
        columns |= {name: (codes > high).astype(float) for name, high in zip(_ABOVE, highest, strict=True)}
        if beside is not None:
            columns["beside"] = _placed(beside, beside.codes_of(np.asarray(table["control"])), member)
        yield pa.table(columns)


def _placed(both: ScoreHistograms, codes: npt.NDArray[np.uint64], member: npt.NDArray[np.bool_]) -> _Sums:
    placed = np.empty(len(codes))
    for inside, rows in ((True, member), (False, ~member)):
        placed[rows] = both.placements(codes[rows], of_members=inside)
    return placed
