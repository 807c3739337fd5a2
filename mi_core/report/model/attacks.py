"""Encoders with their utility; results of attacks and inferences: by seed, over seeds, by class, and in sweeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mi_core.records import Estimate


@dataclass(frozen=True)
class UtilityPart:
    """Downstream accuracies by probe, all of the same n test images."""

    probes: Mapping[str, Estimate]
    n: int

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> UtilityPart:
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
    utility: UtilityPart


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
    utility: UtilityPart | None = None
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
    utility: UtilityPart | None = None
    curve: tuple[CurvePoint, ...] = ()
    classifier: Classifier | None = None
    per_seed: tuple[SeedEncoder, ...] = ()

    @property
    def fingerprints(self) -> tuple[str, ...]:
        """The fingerprint in every seed."""
        return tuple(of_seed.fingerprint for of_seed in self.per_seed) or (self.fingerprint,)


@dataclass(frozen=True, kw_only=True)
class Knowledge:
    """Knowledge of the target that the owner of the shadow encoder has."""

    distribution: bool
    architecture: bool
    algorithm: bool

    @property
    def known(self) -> list[str]:
        """The kinds that are known."""
        return [kind for kind, known in vars(self).items() if known]


@dataclass(frozen=True, kw_only=True)
class AttackQueries:
    """Queries of an attack, in one seed or in all."""

    per_sample: int | None = None
    attack_training: int
    evaluation: int


@dataclass(frozen=True, kw_only=True)
class AttackRow:
    """What an attack reached on one output of one checkpoint.

    Args:
        difference: its AUC minus that of the primary attack, paired: both score the same images.
    """

    attack: str
    target: str
    shadow: str | None = None
    output: str
    reference: str
    settings: str | None = None
    epoch: int | None = None
    knowledge: Knowledge | None = None
    primary: bool = False
    n_member: int
    n_nonmember: int
    accuracy: Estimate | None = None
    precision: Estimate | None = None
    recall: Estimate | None = None
    auc: Estimate
    difference: Estimate | None = None
    tpr_at_fpr: Mapping[str, Estimate]
    queries: AttackQueries | None = None
    seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class AttackResult(AttackRow):
    """The same in one seed."""

    seed: int
    threshold: float | None = None


@dataclass(frozen=True, kw_only=True)
class PooledRow(AttackRow):
    """The same over seeds."""

    seeds: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class NotApplicable:
    """An attack that found nothing to read."""

    attack: str
    target: str
    output: str
    epoch: int | None = None
    seed: int
    settings: str | None = None
    reason: str


@dataclass(frozen=True, kw_only=True)
class MethodPart:
    """An attack's threat model and its source."""

    threat_model: str | None = None
    source: str | None = None
    queries_per_sample: int | None = None


@dataclass(frozen=True, kw_only=True)
class ClassRow:
    """The primary attack on one class of the images."""

    name: str = field(metadata={"key": "class"})
    n_member: int
    n_nonmember: int
    auc: Estimate
    recall: Estimate | None = None
    false_positive_rate: Estimate


@dataclass(frozen=True, kw_only=True)
class Inference:
    """An attribute told from embeddings.

    Args:
        values: number of values of the attribute.
        n_auxiliary: samples whose attribute the attacker knew.
    """

    attribute: str
    target: str
    output: str
    settings: str | None = None
    epoch: int
    values: int
    n_auxiliary: int
    accuracy: Estimate
    auxiliary_accuracy: Estimate | None = None
    majority: Estimate


@dataclass(frozen=True, kw_only=True)
class InferenceResult(Inference):
    """The same in one seed.

    Args:
        overlap, auxiliary_overlap: of the attacked samples and of the known ones, as `mi_core.metrics.pooled.pool`.
    """

    seed: int
    overlap: float = 0.0
    auxiliary_overlap: float = 0.0


@dataclass(frozen=True, kw_only=True)
class InferenceRow(Inference):
    """The same over seeds."""

    seeds: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class SweepPoint:
    """The run with one value of what is swept, at the last checkpoints; ``utility`` by encoder."""

    label: str
    rows: tuple[PooledRow, ...]
    attribute_inference: tuple[InferenceRow, ...] = ()
    value: float | None = None
    utility: Mapping[str, UtilityPart] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """The run repeated with some fields changed."""

    name: str
    points: tuple[SweepPoint, ...]
