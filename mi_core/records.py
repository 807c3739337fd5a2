"""The few frozen records that cross a border between folders.

N samples, V views, D width of an embedding, C classes; scores: higher = more likely a member, always.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from mi_core.checks import ShapeError, check_finite

FloatArray = npt.NDArray[np.floating[Any]]
BoolArray = npt.NDArray[np.bool_]
ALL_CALLED = -float(np.finfo(np.float64).max)
"""The threshold that calls every sample a member; finite, as thresholds are."""


def among(ids: Iterable[str], wanted: Container[str]) -> BoolArray:
    """A mask (N,) of the ids that are wanted."""
    return np.array([name in wanted for name in ids], dtype=bool)


class Named(Protocol):
    """A membership feature, of which its column's name is all that counts here."""

    @property
    def name(self) -> str:
        """The name."""


@dataclass(frozen=True)
class Features:
    """Membership features of N samples of one encoder output.

    Args:
        ids: (N,) unique sample names, ``"source/key"``.
        values: name of a measure (``"pairwise:cosine"``, ``"norm:2"``, ...) to a float array whose first axis is N.
        anchors: (A, D) embeddings of further images by the same encoder, for attacks that compare with them.
        labels: (N,) true classes, from 0, for attacks on classifiers.
        population: features of further images by the same encoder, for attacks that compare with what it never saw.
        before: features of the same samples, in the same order, by an earlier version of the encoder.

    Raises:
        ShapeError: an array's first axis is not N, an id stands twice, there are no anchors in ``anchors``, or
            ``before`` has other samples.
        NumericError: a value is NaN or infinite; the message names the samples.
    """

    ids: npt.NDArray[np.str_]
    values: dict[str, FloatArray]
    anchors: FloatArray | None = None
    labels: npt.NDArray[np.int64] | None = None
    population: Features | None = None
    before: Features | None = None

    def __post_init__(self) -> None:
        if len(np.unique(self.ids)) != len(self.ids):
            raise ShapeError(f"features hold {len(self.ids)} rows but {len(np.unique(self.ids))} distinct ids")
        for name, array in self.values.items():
            if len(array) != len(self.ids):
                raise ShapeError(f"feature {name} has {len(array)} rows for {len(self.ids)} samples")
            check_finite(f"feature {name}", array, self.ids)
        if self.labels is not None and self.labels.shape != (len(self.ids),):
            raise ShapeError(f"labels of shape {self.labels.shape} for {len(self.ids)} samples")
        if self.anchors is not None and not len(self.anchors):
            raise ShapeError("anchors are empty")
        if self.before is not None and not np.array_equal(self.before.ids, self.ids):
            raise ShapeError("the features by the earlier version are of other samples, or in another order")

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, measure: Named) -> FloatArray:
        return self.values[measure.name]

    def __contains__(self, measure: Named) -> bool:
        return measure.name in self.values

    def take(self, rows: npt.NDArray[np.intp] | BoolArray) -> Features:
        """The same features of some rows: an index array or a boolean mask."""
        labels = None if self.labels is None else self.labels[rows]
        values = {name: array[rows] for name, array in self.values.items()}
        before = None if self.before is None else self.before.take(rows)
        return Features(self.ids[rows], values, self.anchors, labels, self.population, before)

    def at(self, ids: Sequence[str]) -> Features:
        """The same features of some samples, in their order. Raises KeyError: one is not there."""
        row_of = {name: row for row, name in enumerate(self.ids.tolist())}
        return self.take(np.array([row_of[name] for name in ids], dtype=np.intp))


@dataclass(frozen=True)
class LabelledFeatures:
    """Features of two groups of samples: what an attack is fitted on.

    Args:
        features: of N samples.
        member: (N,) whether the attacker knows a sample for a member; of audited samples, whether it is a candidate.
        audited: whether these are the samples that are judged.
        groups: (N,) numbers of what audited samples belong to; None: each stands for itself.

    Raises:
        ShapeError: the labels are not one per sample, or one class is empty.
    """

    features: Features
    member: BoolArray
    audited: bool = False
    groups: npt.NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        if self.member.shape != (len(self.features),):
            raise ShapeError(f"{self.member.shape} membership labels for {len(self.features)} samples")
        if self.member.all():
            raise ShapeError(f"a reference needs non-members, all of its {len(self.member)} samples are members")


@dataclass(frozen=True)
class Estimate:
    """A number with its 95 % interval and the number of samples it rests on.

    ``supported`` is False where the sample size cannot carry the rate (FPR a with fewer than 10/a non-members);
    ``false_positives`` is set for a true-positive rate at a false-positive rate, ``sd`` for a mean over several seeds:
    the standard deviation over these.
    """

    value: float
    low: float
    high: float
    n: int
    supported: bool = True
    false_positives: int | None = None
    sd: float | None = None

    @property
    def ci95(self) -> tuple[float, float]:
        """The interval."""
        return self.low, self.high

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Estimate:
        """The estimate that `as_json` wrote."""
        low, high = entry["ci95"]
        marks = entry.get("supported", True), entry.get("fp"), entry.get("sd")
        return cls(entry["value"], low, high, entry["n"], *marks)

    def as_json(self) -> dict[str, Any]:
        """The estimate as report.json writes it: ``value``, ``ci95``, ``n`` and, where they apply, the marks."""
        entry: dict[str, Any] = {"value": self.value, "ci95": [self.low, self.high], "n": self.n}
        if self.false_positives is not None:
            entry["fp"] = self.false_positives
        if not self.supported:
            entry["supported"] = False
        if self.sd is not None:
            entry["sd"] = self.sd
        return entry
