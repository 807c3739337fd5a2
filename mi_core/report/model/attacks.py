"""Results of attacks and inferences: by seed, over seeds, by class, and at the points of sweeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mi_core.records import Estimate
from mi_core.report.model.encoders import Utility


@dataclass(frozen=True, kw_only=True)
class Knowledge:
    """Knowledge of the target that the owner of the shadow encoder has."""

    distribution: bool
    architecture: bool
    algorithm: bool


@dataclass(frozen=True, kw_only=True)
class AttackQueries:
    """Queries of an attack in one seed."""

    per_sample: int | None = None
    attack_training: int
    evaluation: int
    mean_per_sample: float | None = None


@dataclass(frozen=True, kw_only=True)
class PooledQueries:
    """Queries of an attack in all seeds."""

    attack_training: int
    evaluation: int
    per_sample: int | None = None
    mean_per_sample: float | None = None


@dataclass(frozen=True, kw_only=True)
class AttackResult:
    """The result of an attack on one output of one checkpoint in one seed."""

    attack: str
    target: str
    output: str
    reference: str
    seed: int
    epoch: int | None = None
    n_member: int
    n_nonmember: int
    accuracy: Estimate | None = None
    precision: Estimate | None = None
    recall: Estimate | None = None
    auc: Estimate
    tpr_at_fpr: Mapping[str, Estimate]
    threshold: float | None = None
    queries: AttackQueries | None = None
    seconds: float | None = None
    shadow: str | None = None
    knowledge: Knowledge | None = None
    settings: str | None = None
    primary: bool = False


@dataclass(frozen=True, kw_only=True)
class PooledRow:
    """The same over seeds."""

    attack: str
    target: str
    shadow: str | None = None
    output: str
    reference: str
    settings: str | None = None
    epoch: int | None = None
    knowledge: Knowledge | None = None
    primary: bool = False
    seeds: tuple[int, ...]
    n_member: int
    n_nonmember: int
    accuracy: Estimate | None = None
    precision: Estimate | None = None
    recall: Estimate | None = None
    auc: Estimate
    tpr_at_fpr: Mapping[str, Estimate]
    queries: PooledQueries | None = None
    seconds: float | None = None


AttackRow = AttackResult | PooledRow


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
class InferenceRow:
    """An attribute told from embeddings, over seeds."""

    attribute: str
    target: str
    output: str
    settings: str | None = None
    epoch: int
    values: int
    seeds: tuple[int, ...]
    n_auxiliary: int
    accuracy: Estimate
    auxiliary_accuracy: Estimate | None = None
    majority: Estimate


@dataclass(frozen=True, kw_only=True)
class SweepPoint:
    """The run with one value of what is swept, at the last checkpoints; ``utility`` by encoder."""

    label: str
    rows: tuple[PooledRow, ...]
    attribute_inference: tuple[InferenceRow, ...] = ()
    value: float | None = None
    utility: Mapping[str, Utility] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """The run repeated with some fields changed."""

    name: str
    points: tuple[SweepPoint, ...]
