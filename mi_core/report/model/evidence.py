"""The evidence of scores on candidates against controls, as a whole and one by one."""

from __future__ import annotations

from dataclasses import dataclass

from mi_core.records import Estimate
from mi_core.validity.sets.dataset import Needed


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
    """Answers for single candidates in one seed; the first ones, and where all stand."""

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
