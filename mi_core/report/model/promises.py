"""Memorisation of images by encoders, and promises of their training by differential privacy."""

from __future__ import annotations

from dataclasses import dataclass

from mi_core.records import Estimate


@dataclass(frozen=True, kw_only=True)
class MemorisedSample:
    """The memorisation of one sample."""

    id: str
    value: float
    ci95: tuple[float, float]
    q_value: float


@dataclass(frozen=True, kw_only=True)
class Memorisation:
    """Memorisation of the audited samples by shadows, by one attack on one output in one seed."""

    attack: str
    shadow: str
    settings: str | None = None
    output: str
    epoch: int
    seed: int
    pairs: int
    mean: Estimate
    memorised: int
    fdr: float
    top: tuple[MemorisedSample, ...]
    file: str


@dataclass(frozen=True, kw_only=True)
class Guessed:
    """A number of guesses that was tried, and how many were right."""

    guesses: int
    correct: int


@dataclass(frozen=True, kw_only=True)
class Promise:
    """A promise about an encoder, and who makes it."""

    epsilon: float
    delta: float
    by: str
    replaced: float | None = None
    gamma: float | None = None


@dataclass(frozen=True, kw_only=True)
class DpAudit:
    """The promise of one encoder against guessed canaries, all seeds together."""

    target: str
    attack: str
    output: str
    epoch: int
    seeds: tuple[int, ...]
    kind: str
    canaries: int
    inside: int
    tried: tuple[Guessed, ...]
    guesses: int
    correct: int
    confidence: float
    family: str
    delta: float
    epsilon: float
    most: float
    mu: float | None = None
    promised: Promise | None = None
    p_value: float | None = None
    any_time_p_value: float | None = None
    verdict: str
