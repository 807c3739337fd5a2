"""The verdict with its numbers, the upper limit of what attacks reach, and the evidence on candidates."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from mi_core.records import Estimate
from mi_core.validity.bound import outcome
from mi_core.validity.sets.dataset import Needed
from mi_core.validity.verdict import Robustness, Validity


@dataclass(frozen=True, kw_only=True)
class OfSeed:
    """The entries of one seed."""

    seed: int


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A verdict as it was reached; see `mi_core.validity.verdict`."""

    attack_auc: Estimate | None = None
    blind_auc: Estimate | None = None
    control_auc: Estimate | None = None
    delta_auc: Estimate | None = None
    delta_control_auc: Estimate | None = None
    semantic_auc: Estimate | None = None
    by: str | None = None
    p_value: float | None = None
    trained: bool | None = None
    factor: float | None = None
    works: bool | None = None
    registered: bool | None = None
    other_attack: str | None = None
    other_p: float | None = None
    robustness: Robustness | None = None
    verdict: str
    reason: str | None = None

    @property
    def validity(self) -> Validity | None:
        """The grounds of the verdict; None: there is no AUC of the attack."""
        if self.attack_auc is None:
            return None
        told = ((part.name, getattr(self, part.name)) for part in fields(Validity))
        return Validity(**{name: part for name, part in told if part is not None})

    @property
    def differing(self) -> dict[str, float]:
        """As `Validity.differing`; empty also without an AUC of the attack."""
        return {} if self.validity is None else self.validity.differing


@dataclass(frozen=True, kw_only=True)
class SeedVerdict(Judged, OfSeed):
    """The verdict of one seed by itself."""


@dataclass(frozen=True, kw_only=True)
class VerdictPart(Judged):
    """The verdict over seeds; ``warning``: why the attacked encoder may not be the one that was meant."""

    per_seed: tuple[SeedVerdict, ...] = ()
    warning: str | None = None


@dataclass(frozen=True, kw_only=True)
class AttackLimits:
    """The AUC of an attack over all seeds, between two limits of which each has 95 % by itself."""

    attack: str
    reference: str
    shadow: str | None = None
    settings: str | None = None
    auc: float
    low: float
    high: float
    n: int


@dataclass(frozen=True, kw_only=True)
class Bound:
    """The upper limit of what all attacks on one output of an encoder reach, at its last checkpoint.

    Args:
        target, output, epoch: what was attacked.
        at_most: the largest upper limit of an attack, with 95 %; attack: whose that is.
        attacks: how many there are; planned: how many were ever registered, if that is known.
        limits: of each attack.
        bound: that the AUC is to stay under, and outcome: whether it does, of `mi_core.validity.bound.OUTCOMES`; None:
            no bound is wanted.
        registered: whether images and bound were fixed before the target was queried; None as ``bound``.
    """

    target: str
    output: str
    epoch: int | None = None
    at_most: float
    attack: str
    attacks: int
    planned: int | None = None
    limits: tuple[AttackLimits, ...]
    bound: float | None = None
    outcome: str | None = None
    registered: bool | None = None

    def outcome_of(self, bound: float) -> str:
        """The outcome for a bound, as `mi_core.validity.bound.outcome`."""
        return outcome([(each.low, each.high) for each in self.limits], bound)


def judged(validity: Validity) -> dict[str, Any]:
    """The fields of `Judged`, from what a verdict rests on."""
    told = {part.name: getattr(validity, part.name) for part in fields(Validity)}
    return told | {"robustness": validity.robustness} | validity.judgement._asdict()


@dataclass(frozen=True, kw_only=True)
class TellingFeature:
    """A feature of files and pixels that tells the groups apart by itself."""

    feature: str
    auc: float


@dataclass(frozen=True, kw_only=True)
class Bursts:
    """Images that seem to be of one scene with others, and such scenes."""

    images: int
    scenes: int


@dataclass(frozen=True, kw_only=True)
class Detectable:
    """The smallest AUC that an audit of this size finds, by the share that was used; None: none is."""

    used: float
    auc: float | None = None


@dataclass(frozen=True, kw_only=True)
class CandidateTest:
    """The test of the candidates as a set by one attack, over seeds."""

    attack: str
    target: str
    output: str
    reference: str
    settings: str | None = None
    primary: bool = False
    seeds: int
    n: int
    groups: int | None = None
    welch_p: float
    permutation_p: float | None = None
    permutations: int | None = None
    p: float
    direction: str
    reversed_p: float | None = None
    effect: Estimate | None = None
    needed: Needed | None = None
    least_share: float | None = None
    share: Estimate | None = None
    holm_p: float
    family: int


@dataclass(frozen=True, kw_only=True)
class TopSample:
    """The answer for one candidate."""

    id: str
    shard: str | None = None
    score: float
    p_value: float
    q_value: float
    posterior: float


@dataclass(frozen=True, kw_only=True)
class SampleAnswers:
    """Answers for single candidates in one seed; the most and the least suspicious ones, and where all stand.

    ``grouped``: whether each group of controls counts once.
    """

    seed: int
    fdr: float
    n_candidate: int
    n_control: int
    flagged: int
    least_flags: int
    needed_controls: int | None = None
    share: float
    share_is_bound: bool | None = None
    grouped: bool = False
    file: str
    top: tuple[TopSample, ...]
    lowest: tuple[TopSample, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Candidates against controls; ``tests`` and ``samples`` only where the groups are exchangeable."""

    exchangeable: bool
    blind_auc: Estimate
    semantic_auc: Estimate | None = None
    control_auc: Estimate | None = None
    telling: tuple[TellingFeature, ...]
    grouped: bool
    bursts: Bursts | None = None
    n_candidate: int
    n_control: int
    fpr_floor: float
    power: tuple[Detectable, ...]
    withheld_because: str | None = None
    tests: tuple[CandidateTest, ...] = ()
    withheld: tuple[str, ...] = ()
    samples: tuple[SampleAnswers, ...] = ()

    @property
    def primary_test(self) -> CandidateTest | None:
        """The test by the attack that was chosen beforehand; None: there is none."""
        return next((row for row in self.tests if row.primary), None)
