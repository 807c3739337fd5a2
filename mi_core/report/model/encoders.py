"""The encoders of a run: their origin and their utility."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mi_core.records import Estimate


@dataclass(frozen=True)
class Utility:
    """Downstream accuracies by probe, all of the same n test images."""

    probes: Mapping[str, Estimate]
    n: int

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Utility:
        """The utility that `as_json` wrote."""
        n, intervals = entry["n"], entry["ci95"]
        values = {name: value for name, value in entry.items() if name not in ("n", "ci95")}
        return cls(
            {name: Estimate(value, intervals[name][0], intervals[name][1], n) for name, value in values.items()}, n
        )

    def as_json(self) -> dict[str, Any]:
        """Every probe's value under its name, then ``n`` and the intervals by probe."""
        intervals = {name: [probe.low, probe.high] for name, probe in self.probes.items()}
        values = {name: probe.value for name, probe in self.probes.items()}
        return {**values, "n": self.n, "ci95": intervals}


@dataclass(frozen=True, kw_only=True)
class CurvePoint:
    """The utility at one checkpoint."""

    epoch: int
    utility: Utility


@dataclass(frozen=True, kw_only=True)
class Spend:
    """The most that was charged at the address of an encoder."""

    requests: int
    images: int
    money: float


@dataclass(frozen=True, kw_only=True)
class Classifier:
    """The accuracies of a classifier that was trained here, and their difference."""

    train_accuracy: Estimate
    test_accuracy: Estimate
    overfitting: Estimate


@dataclass(frozen=True, kw_only=True)
class SeedEncoder:
    """An encoder in one seed."""

    seed: int
    fingerprint: str
    utility: Utility | None = None
    curve: tuple[CurvePoint, ...] = ()


@dataclass(frozen=True, kw_only=True)
class EncoderPart:
    """An encoder: how it was trained or where it is from, and what it is good for over seeds."""

    objective: str | None = None
    backbone: str | None = None
    epochs: int | None = None
    train_on: str | None = None
    load: str | None = None
    weights: str | None = None
    layout: str | None = None
    used: str | None = None
    ignored: str | None = None
    assumed: str | None = None
    preprocessing: str | None = None
    consistency: str | None = None
    answers: str | None = None
    spend: Spend | None = None
    fingerprint: str
    utility: Utility | None = None
    curve: tuple[CurvePoint, ...] = ()
    classifier: Classifier | None = None
    per_seed: tuple[SeedEncoder, ...] = ()

    @property
    def fingerprints(self) -> tuple[str, ...]:
        """The fingerprint in every seed."""
        return tuple(of_seed.fingerprint for of_seed in self.per_seed) or (self.fingerprint,)
