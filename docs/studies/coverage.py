"""How often a report's 95 % intervals hold the truth, on simulated scores whose truth is known exactly.

Scores are normal, heavy-tailed (Student's t with 3 degrees of
freedom) or discrete (ten levels); members lie higher by the gap that gives the wanted AUC. Samples are independent, or
come in groups of 1 to 10 whose latent normal scores correlate. A cell is one interval on one population, n per class.

The verdict of `mi_core.validity.verdict` is counted on triples of scores without a leak: how often it finds one.

N samples = n members + n non-members, S scores of each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.stats import norm
from scipy.stats import t as student

from mi_core.hashing import digest64
from mi_core.metrics.delong import auc, auc_difference
from mi_core.metrics.intervals import clopper_pearson
from mi_core.metrics.membership import accuracy, precision, recall, tpr_at_fpr
from mi_core.metrics.pooled import pool
from mi_core.records import BoolArray, Estimate
from mi_core.validity.blind import blind_scores
from mi_core.validity.verdict import judge

SHAPES = ("normal", "heavy-tailed", "ten levels")
GROUPS = ("none", "one class", "both classes")  # what a group of samples may hold
LARGEST_GROUP = 10
THRESHOLD_FPR = 0.1  # of the threshold at which accuracy, precision and recall are taken
SIMULATIONS, BLIND_SIMULATIONS = 2000, 500
REQUIRED, SIZES, SIMPLE = 0.94, (100, 500, 2000), ("auc", "accuracy", "precision", "recall")
AREAS, PAIRS = (0.5, 0.6, 0.8, 0.95), ((0.5, 0.5), (0.6, 0.5), (0.8, 0.6), (0.95, 0.8), (0.95, 0.95))
_FREEDOM, _PAIRED = 3, 0.5  # of heavy tails; correlation of the latent scores of a difference
_Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Population:
    """What scores are drawn from: one of `SHAPES` and the true AUC in [0.5, 1)."""

    scores: str
    auc: float

    @property
    def gap(self) -> float:
        """How much higher members lie."""
        return _gap(self.scores, self.auc)

    def above(self, threshold: float) -> tuple[float, float]:
        """The true- and the false-positive rate of ``score >= threshold``."""
        return _tail(self.scores, threshold, self.gap, self.gap), _tail(self.scores, threshold, 0.0, self.gap)

    def threshold(self, fpr: float) -> float:
        """The lowest threshold whose false-positive rate is at most ``fpr``."""
        return _threshold(self, fpr)

    def shown(self, latent: _Float64, member: BoolArray, generator: np.random.Generator) -> _Float64:
        """The scores (S, N) that standard normal ones turn into; heavy tails are shared by the S scores of a sample."""
        if self.scores == "heavy-tailed":
            latent = latent / np.sqrt(generator.chisquare(_FREEDOM, latent.shape[-1]) / _FREEDOM)
        moved = latent + self.gap * member
        return np.searchsorted(_cuts(self.gap), moved, "right").astype(np.float64) if "levels" in self.scores else moved


@dataclass(frozen=True)
class Sample:
    """One simulated run: scores (S, N), members (N,), groups (N,) or None, and a threshold fixed beforehand."""

    scores: _Float64
    member: BoolArray
    groups: npt.NDArray[np.int64] | None
    threshold: float
    seed: int


Interval = Callable[[Sample], Estimate | None]
INTERVALS: dict[str, Interval] = {
    "auc": lambda run: auc(run.scores[0], run.member, run.groups),
    "auc_difference": lambda run: auc_difference(run.scores[0], run.scores[1], run.member, run.groups),
    "accuracy": lambda run: accuracy(run.scores[0], run.member, run.threshold, run.groups),
    "precision": lambda run: precision(run.scores[0], run.member, run.threshold, run.groups),
    "recall": lambda run: recall(run.scores[0], run.member, run.threshold, run.groups),
    "tpr_at_fpr_0.01": lambda run: tpr_at_fpr(run.scores[0], run.member, 0.01, seed=run.seed, groups=run.groups),
    "tpr_at_fpr_0.001": lambda run: tpr_at_fpr(run.scores[0], run.member, 0.001, seed=run.seed, groups=run.groups),
}


@dataclass(frozen=True)
class Case:
    """One cell: an interval, the population it is taken on, and how.

    Args:
        interval: key of `INTERVALS`.
        n: samples per class.
        population: of the scores.
        other: AUC of the second score of a difference.
        groups: one of `GROUPS`; correlation: of the latent scores within a group.
        runs: number of independent runs that are pooled.
    """

    interval: str
    n: int
    population: Population
    other: float | None = None
    groups: str = "none"
    correlation: float = 0.0
    runs: int = 1

    @property
    def setting(self) -> dict[str, Any]:
        """What the cell is taken on, as JSON."""
        grouped = {"groups": self.groups, "correlation": self.correlation, "runs": self.runs}
        return {"scores": self.population.scores, "auc": self.population.auc, "other_auc": self.other, **grouped}

    @property
    def truth(self) -> float:
        """What the interval should hold."""
        population = self.population
        if self.interval == "auc":
            return population.auc
        if self.interval == "auc_difference":
            return population.auc - (population.auc if self.other is None else self.other)
        if self.interval.startswith("tpr"):
            return population.above(population.threshold(float(self.interval.rsplit("_", 1)[1])))[0]
        tpr, fpr = population.above(population.threshold(THRESHOLD_FPR))
        return {"accuracy": (tpr + 1 - fpr) / 2, "precision": tpr / (tpr + fpr), "recall": tpr}[self.interval]

    def draw(self, generator: np.random.Generator) -> Sample:
        """One simulated run."""
        member, groups = _grouped(self.n, self.groups, generator)
        latent = _latent(2 if self.interval == "auc_difference" else 1, groups, self.correlation, generator)
        scores = self.population.shown(latent, member, generator)
        if self.interval == "auc_difference" and self.other is not None:
            scores[1] = replace(self.population, auc=self.other).shown(latent, member, generator)[1]
        known = None if self.groups == "none" else groups
        return Sample(scores, member, known, self.population.threshold(THRESHOLD_FPR), int(generator.integers(2**31)))


def count(case: Case, simulations: int, *, seed: int, interval: Interval | None = None) -> dict[str, Any]:
    """Simulate one cell.

    Args:
        case: the cell.
        simulations: at least 1; those without an estimate (no sample called a member) are left out.
        seed: the cell draws from a stream of its own.
        interval: in place of the case's own, to see whether a wrong one is found out.

    Returns:
        ``interval``, ``setting``, ``n`` (per class), ``simulations``, ``coverage``, ``ci95`` (Clopper-Pearson),
        ``mean_width``, and ``supported``: whether every run says that it carries what it estimates.
    """
    estimate = interval or INTERVALS[case.interval]
    generator = np.random.default_rng(digest64(seed, case.interval, case.n, repr(case.setting)))
    found = []
    for _ in range(simulations):
        runs = [estimate(case.draw(generator)) for _ in range(case.runs)]
        known = [run for run in runs if run is not None]
        if len(known) == case.runs:
            found.append(pool(known))
    return _cell(case.interval, case.setting, case.n, found, case.truth)


def count_blind(n: int, simulations: int, *, seed: int, groups: str = "none") -> dict[str, Any]:
    """The cell of the blind classifier's AUC, as `count`, on 70 correlated features that do not differ: 0.5 is true.

    Every simulation trains 5 models. With groups (one of `GROUPS`) features correlate by 0.5 within them.
    """
    setting: dict[str, Any] = {"groups": groups, "correlation": 0.0 if groups == "none" else 0.5}
    generator = np.random.default_rng(digest64(seed, "blind_auc", n, groups))
    mixing = np.eye(70) + generator.normal(size=(70, 70)) / math.sqrt(70)
    found = []
    for _ in range(simulations):
        member, codes = _grouped(n, groups, generator)
        known, features = None if groups == "none" else codes, _latent(70, codes, setting["correlation"], generator)
        summaries, pixels = np.split((mixing @ features).T, [6], axis=1)
        drawn = int(generator.integers(2**31))
        scores = blind_scores(summaries, pixels.astype(np.float32), member, seed=drawn, groups=known)
        found.append(auc(scores, member, known))
    return _cell("blind_auc", setting, n, found, 0.5)


@dataclass(frozen=True)
class Triple:
    """Scores of an attack, the blind classifier and the control, none of which rests on membership itself.

    Their AUCs are above 0.5 where the two classes differ by themselves. ``correlation`` is that of the attack's and the
    control's latent scores within a class, ``blind_correlation`` that of the blind classifier's with both.
    """

    name: str
    aucs: tuple[float, float, float] = (0.5, 0.5, 0.5)
    correlation: float = 0.0
    blind_correlation: float = 0.0

    @property
    def exchangeable(self) -> bool:
        """Whether members and non-members are alike."""
        return max(self.aucs) == 0.5


TRIPLES = (
    Triple("exchangeable, independent"),
    Triple("exchangeable, attack and control correlate", correlation=0.8),
    Triple("exchangeable, all correlate", correlation=0.8, blind_correlation=0.5),
    Triple("shift seen alike", (0.65, 0.65, 0.65), 0.5, 0.3),
    Triple("shift seen a little less by the controls", (0.65, 0.62, 0.62), 0.5, 0.3),
    Triple("shift seen much less by the controls", (0.65, 0.55, 0.55), 0.5, 0.3),
    Triple("shift seen by the attack alone", (0.65, 0.5, 0.5), 0.5, 0.3),
    Triple("shift seen by the control, not by the blind classifier", (0.65, 0.5, 0.65), 0.5, 0.3),
)


def false_leaks(triple: Triple, n: int, simulations: int, *, seed: int) -> dict[str, Any]:
    """How often the verdict is ``leak`` where there is none, on normal scores.

    References count as trained.

    Returns:
        ``setting``, ``exchangeable``, ``n`` (per class), ``simulations``; how often each verdict was found; ``ci95`` of
        the rate of leaks (Clopper-Pearson); ``above_both``: how often the attack was merely above both checks.
    """
    generator = np.random.default_rng(digest64(seed, "verdict", triple.name, n))
    r, b = triple.correlation, triple.blind_correlation
    factor = np.linalg.cholesky(np.array([[1.0, b, r], [b, 1.0, b], [r, b, 1.0]]))
    gaps = np.array([Population("normal", one).gap for one in triple.aucs])
    member = np.arange(2 * n) < n
    verdicts, above = [], 0
    for _ in range(simulations):
        attack, blind, control = factor @ generator.standard_normal((3, 2 * n)) + gaps[:, None] * member
        judged = judge(attack, blind, control, member, trained=True)
        verdicts.append(judged.verdict)
        assert judged.delta_auc is not None and judged.delta_control_auc is not None
        above += judged.delta_auc.low > 0 and judged.delta_control_auc.low > 0
    found = {verdict: verdicts.count(verdict) for verdict in ("leak", "confounded", "no-evidence")}
    setting = {"setting": triple.name, "exchangeable": triple.exchangeable, "n": n, "simulations": simulations}
    return {**setting, **found, "ci95": list(clopper_pearson(found["leak"], simulations)), "above_both": above}


def every_cell(seed: int = 0) -> Iterator[dict[str, Any]]:
    """All cells, as `count` describes them; about 10 minutes of one core.

    A cell of up to 2,000 samples per class whose 2,000 simulations leave open whether it reaches 94 % (their interval
    holds 94 %) is simulated 10,000 times: of an interval of exactly 95 %, 2,000 find less than 94 % in 1 of 50 cells.
    """
    for case in _cases():
        cell = count(case, SIMULATIONS, seed=seed)
        if case.n <= SIZES[-1] and cell["ci95"][0] < REQUIRED <= cell["ci95"][1]:
            cell = count(case, 5 * SIMULATIONS, seed=seed)
        yield cell
    for n, groups in ((100, "none"), (500, "none"), (500, "one class")):
        yield count_blind(n, BLIND_SIMULATIONS, seed=seed, groups=groups)


def _cases() -> Iterator[Case]:
    for shape, area, n in product(SHAPES, AREAS, SIZES):
        population = Population(shape, area)
        yield from (Case(name, n, population) for name in SIMPLE)
        if shape == "normal" or n == SIZES[-1]:
            yield Case("tpr_at_fpr_0.01", n, population)
    for shape, (area, other), n in product(SHAPES, PAIRS, SIZES):
        if shape == "normal" or n < SIZES[-1]:
            yield Case("auc_difference", n, Population(shape, area), other=other)
    yield from (Case("tpr_at_fpr_0.001", 10_000, Population(shape, 0.8)) for shape in SHAPES)
    yield from (Case("auc", n, Population("normal", area), runs=3) for area, n in product(AREAS, SIZES[:2]))
    for name, n in (("accuracy", 100), ("precision", 100), ("recall", 100), ("tpr_at_fpr_0.01", 2000)):
        yield Case(name, n, Population("normal", 0.8), runs=3)
    yield from _grouped_cases()


def _grouped_cases() -> Iterator[Case]:
    for correlation, area, n in product((0.0, 0.5), (0.5, 0.8, 0.95), SIZES):
        population = Population("normal", area)
        yield from (Case(name, n, population, None, "one class", correlation) for name in SIMPLE)
    for (shape, groups), n in product([*product(SHAPES[1:], GROUPS[1:]), ("normal", "both classes")], SIZES[:2]):
        yield from (Case(name, n, Population(shape, 0.95), None, groups, 0.5) for name in SIMPLE)
    for groups, correlation, (area, other), n in product(GROUPS[1:], (0.0, 0.5), PAIRS[2:], SIZES[:2]):
        yield Case("auc_difference", n, Population("normal", area), other, groups, correlation)
    for n in (500, 8000):
        yield Case("tpr_at_fpr_0.01", n, Population("normal", 0.8), groups="one class", correlation=0.5)


def _cell(interval: str, setting: dict[str, Any], n: int, found: Sequence[Estimate], truth: float) -> dict[str, Any]:
    held = sum(estimate.low - 1e-12 <= truth <= estimate.high + 1e-12 for estimate in found)
    return {
        "interval": interval,
        "setting": setting,
        "n": n,
        "simulations": len(found),
        "coverage": held / len(found),
        "ci95": list(clopper_pearson(held, len(found))),
        "mean_width": math.fsum(estimate.high - estimate.low for estimate in found) / len(found),
        "supported": all(estimate.supported for estimate in found),
    }


def _grouped(n: int, groups: str, generator: np.random.Generator) -> tuple[BoolArray, npt.NDArray[np.int64]]:
    """Who is a member (2n,), n of them, and each sample's group; groups of 1 to 10, or of 1 for ``none``."""
    member = np.arange(2 * n) < n
    if groups == "none":
        return member, np.arange(2 * n)
    starts = np.zeros(2 * n, dtype=np.int64)
    edges = generator.integers(1, LARGEST_GROUP + 1, 2 * n).cumsum()
    starts[edges[edges < 2 * n]] = 1
    if groups == "both classes":
        return generator.permutation(member), starts.cumsum()
    starts[n] = 1
    return member, starts.cumsum()


def _latent(count: int, groups: npt.NDArray[np.int64], correlation: float, generator: np.random.Generator) -> _Float64:
    """Standard normal scores (count, N); they correlate within a group and the first two with each other."""
    latent = generator.standard_normal((count, len(groups)))
    if correlation > 0:
        shared = generator.standard_normal((count, groups[-1] + 1))[:, groups]
        latent = math.sqrt(correlation) * shared + math.sqrt(1 - correlation) * latent
    if count > 1:
        latent[1] = _PAIRED * latent[0] + math.sqrt(1 - _PAIRED**2) * latent[1]
    return latent


@cache
def _threshold(population: Population, fpr: float) -> float:
    if population.scores == "ten levels":
        return float(next(level for level in range(11) if population.above(level)[1] <= fpr))
    return float(norm.isf(fpr) if population.scores == "normal" else student.isf(fpr, _FREEDOM))


@cache
def _gap(scores: str, wanted: float) -> float:
    return float(brentq(lambda gap: _true_auc(scores, gap) - wanted, 0.0, 50.0, xtol=1e-12)) if wanted > 0.5 else 0.0


def _true_auc(scores: str, gap: float) -> float:
    """The chance that a member is above a non-member, ties half: exact, or by quadrature for heavy tails."""
    if scores == "normal":
        return float(norm.cdf(gap / math.sqrt(2)))
    if scores == "heavy-tailed":
        below = quad(lambda x: student.pdf(x, _FREEDOM) * student.cdf(x + gap, _FREEDOM), -np.inf, np.inf)
        return float(below[0])
    inside, outside = (-np.diff([_tail(scores, level, moved, gap) for level in range(11)]) for moved in (gap, 0.0))
    return float(sum(inside[level] * (outside[:level].sum() + outside[level] / 2) for level in range(10)))


@cache
def _tail(scores: str, threshold: float, moved: float, gap: float) -> float:
    """The chance of a score at or above a threshold, for samples moved up by ``moved``."""
    if scores == "normal":
        return float(norm.sf(threshold - moved))
    if scores == "heavy-tailed":
        return float(student.sf(threshold - moved, _FREEDOM))
    edges = [-math.inf, *_cuts(gap), math.inf]
    return float(norm.sf(edges[int(threshold)] - moved))


def _cuts(gap: float) -> _Float64:
    """The 9 edges between ten levels."""
    return np.linspace(-1.5, 1.5 + gap, 9)
