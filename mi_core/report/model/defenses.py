"""Measurements with and without defenses, and searches for their parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mi_core.records import Estimate


@dataclass(frozen=True, kw_only=True)
class UtilityPair:
    """One measure of utility on the plain and on the defended encoder."""

    measure: str
    clean: Estimate
    defended: Estimate
    loss: float | None = None


@dataclass(frozen=True, kw_only=True)
class Membership:
    """The result of an attack on one of both encoders."""

    accuracy: Estimate | None = None
    auc: Estimate


@dataclass(frozen=True, kw_only=True)
class Inferred:
    """How well an attribute is inferred from one of both encoders, and guessed."""

    accuracy: Estimate
    majority: Estimate


@dataclass(frozen=True, kw_only=True)
class AttackPair:
    """One attack on both encoders."""

    attack: str
    output: str
    settings: str | None = None
    clean: Membership
    defended: Membership


@dataclass(frozen=True, kw_only=True)
class AttributePair:
    """One inference from both encoders."""

    attribute: str
    output: str
    settings: str | None = None
    clean: Inferred
    defended: Inferred


@dataclass(frozen=True, kw_only=True)
class DefendedEncoder:
    """A defense of an encoder, with what it tells of itself; ``adaptive``: attacks know it."""

    defense: str
    label: str
    target: str
    served: str
    parameters: Mapping[str, Any]
    adaptive: bool = True
    numbers: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class DefenseRow(DefendedEncoder):
    """The same, with what it leaves of everything measured."""

    utility: tuple[UtilityPair, ...]
    attacks: tuple[AttackPair, ...]
    attributes: tuple[AttributePair, ...]


@dataclass(frozen=True, kw_only=True)
class TrialUtility:
    """The utility that a trial of a search was measured to have."""

    measure: str
    reached: Estimate = field(metadata={"flat": True})


@dataclass(frozen=True, kw_only=True)
class TrialAttack:
    """The result of an attack in a trial, by the metric of the search."""

    attack: str
    output: str
    reached: Estimate = field(metadata={"flat": True})


@dataclass(frozen=True, kw_only=True)
class TrialInference:
    """How well an attribute was inferred in a trial."""

    attribute: str
    output: str
    settings: str | None = None
    accuracy: Estimate
    majority: Estimate


@dataclass(frozen=True, kw_only=True)
class Trial:
    """The measurements of a trial."""

    utility: TrialUtility
    attacks: tuple[TrialAttack, ...]
    inferences: tuple[TrialInference, ...] = ()
    strongest: str
    leak: float
    utility_loss: float | None = None


@dataclass(frozen=True, kw_only=True)
class TrialRow:
    """A trial in one line; one that failed has a ``fault`` and no numbers."""

    id: str
    parameters: Mapping[str, Any]
    seeds: int
    seconds: float
    cpu_seconds: float
    fault: str | None = None
    utility_loss: float | None = None
    leak: float | None = None
    utility: float | None = None
    strongest: str | None = None
    pareto: bool | None = None
    winner: bool | None = None


@dataclass(frozen=True, kw_only=True)
class Undefended:
    """The encoder without any defense, in the search and on images held back."""

    search: Trial
    final: Trial


@dataclass(frozen=True, kw_only=True)
class Winner:
    """The trial that was chosen."""

    id: str
    parameters: Mapping[str, Any]
    within: bool
    search: Trial
    final: Trial


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """A search for the parameters of a defense."""

    target: str
    plain: str
    measure: str
    metric: str
    hides: str | None = None
    allowed: float
    trials: int
    failed: int
    cut: int
    seeds: int
    rows: tuple[TrialRow, ...]
    without: Undefended
    winner: Winner
