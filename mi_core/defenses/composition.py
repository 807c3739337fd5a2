"""The promise of several releases together that were trained on the same data.

Each release is (epsilon, delta)-differentially private, with noise of its own. Together they promise less. Basic
composition adds the epsilons and the deltas (Dwork and Roth, "The algorithmic foundations of differential privacy",
2014, theorem 3.16). Whoever knows the mechanisms does better:

- Gaussian noise of mu = sensitivity / sigma: k of them are one with mu = sqrt(sum of mu_i^2), exactly (Dong, Roth, Su,
  "Gaussian differential privacy", JRSS B 2022, corollary 3.3).
- DP-SGD is so many steps of Poisson-sampled Gaussian noise. The library dp-accounting composes the distributions of
  their privacy loss numerically (Doroshenko et al., "Connect the dots", PoPETs 2022).
- Everything else counts as the worst mechanism of its (epsilon, delta). That is optimal for releases of which nothing
  else is known (Kairouz, Oh, Viswanath, "The composition theorem for differential privacy", ICML 2015, theorem 3.3;
  Murtagh and Vadhan, TCC 2016, theorem 1.5, for different ones).

Promises add up only if they are about the same pairs of data sets, `sensitivity.ADJACENCIES`. Replacing one image is
leaving one out and adding another. So a promise about one image that is there or not becomes one about a replaced image
by two steps; there is no way back.

The gammas of random differential privacy add (the union bound), of releases that were trained on the same data: a gamma
is about pairs drawn from these. Releases of one sampled sensitivity share a gamma, the largest that one of them states:
one pair breaks all of their promises or none. Equal sensitivities about other pairs of data sets are not one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from typing import Any

from mi_core.checks import ConfigError, check_choice, check_range
from mi_core.defenses.base import Defense
from mi_core.defenses.privacy import guarantee, promised
from mi_core.defenses.sensitivity import ADJACENCIES

HINT = "pip install 'encoder-audit[dp]'"
EXACT, NUMERICAL, SUM = METHODS = ("gaussian", "numerical", "sum")
"""How an epsilon was composed: by adding squares of mu, from privacy losses, or by basic composition."""
_REPLACE, LEAVE = ADJACENCIES
_MOST = 50.0  # a sum of epsilons above this promises nothing anyhow, and its privacy losses take long


@dataclass(frozen=True)
class Gaussian:
    """Gaussian noise on a result. ``ratio``: mu, the sensitivity over the standard deviation, above 0."""

    ratio: float

    def __post_init__(self) -> None:
        check_range("ratio", self.ratio, 0, open_low=True)


@dataclass(frozen=True)
class SampledGaussian:
    """DP-SGD: Gaussian noise on sums over Poisson samples, again and again.

    Args:
        noise: standard deviation of the noise, in units of the clipping length, above 0.
        rate: chance of each image to be in a step, in (0, 1].
        steps: at least 1.
    """

    noise: float
    rate: float
    steps: int

    def __post_init__(self) -> None:
        check_range("noise", self.noise, 0, open_low=True)
        check_range("rate", self.rate, 0, 1, open_low=True)
        check_range("steps", self.steps, 1)


@dataclass(frozen=True)
class Release:
    """The promise of one release.

    Args:
        epsilon: 0 or above, finite.
        delta: in [0, 1]; of Gaussian noise above 0.
        adjacencies: of `sensitivity.ADJACENCIES`, the pairs of data sets that the promise is about; at least one.
        mechanism: what it is, where that is known.
        gamma: of random differential privacy; 0: the promise holds for every pair.
        sampled: the sampled sensitivity that gamma is about, above 0. Two releases share gamma that have the same one
            and the same adjacencies.

    Raises:
        ConfigError: a number is out of range, or an adjacency is unknown.
    """

    epsilon: float
    delta: float
    adjacencies: tuple[str, ...]
    mechanism: Gaussian | SampledGaussian | None = None
    gamma: float = 0.0
    sampled: float = 0.0

    def __post_init__(self) -> None:
        check_range("epsilon", self.epsilon, 0)
        check_range("delta", self.delta, 0, 1)
        check_range("gamma", self.gamma, 0, 1)
        check_range("sampled", self.sampled, 0, open_low=self.gamma > 0)
        if isinstance(self.mechanism, Gaussian):
            check_range("delta of Gaussian noise", self.delta, 0, 1, open_low=True)
        if not self.adjacencies:
            raise ConfigError(f"a release names no adjacency, allowed: {', '.join(ADJACENCIES)}")
        for adjacency in self.adjacencies:
            check_choice("adjacency", adjacency, ADJACENCIES)


@dataclass(frozen=True)
class Composed:
    """The promise of several releases together.

    Args:
        epsilon: infinite where nothing is promised: the deltas, or the gammas, add up to 1.
        delta: the total.
        basic: the sum of the epsilons, about the same pairs of data sets; infinite where nothing is promised.
        adjacency: what the promise is about.
        method: of `METHODS`.
        parts: the releases as they were composed, converted to the adjacency where that was needed.
        gamma: the chance that the guarantee fails for a random pair of the data that all releases were trained on; 0:
            it holds for every pair.
        missing: dp-accounting is not installed, and might have found a smaller epsilon.
    """

    epsilon: float
    delta: float
    basic: float
    adjacency: str
    method: str
    parts: tuple[Release, ...]
    gamma: float = 0.0
    missing: bool = False


def release_of(defense: Defense, numbers: Mapping[str, float]) -> Release | None:
    """The release that a fitted defense is; None: it promises nothing.

    Args:
        defense: with its settings.
        numbers: what it reports of itself (`base.numbers`). Where they do not tell the mechanism, its promise remains.

    Example:
        >>> from mi_core.defenses.dp_sgd import DpSgd
        >>> release_of(DpSgd(), {"epsilon_rdp": 2.0, "delta": 1e-5})
        Release(epsilon=2.0, delta=1e-05, adjacencies=('leave-one-out',), mechanism=None, gamma=0.0, sampled=0.0)
    """
    promise = promised(numbers)
    if promise is None or not defense.adjacencies:
        return None
    mechanism: Gaussian | SampledGaussian | None = None
    if defense.mechanism == "gaussian" and {"sensitivity", "scale"} <= numbers.keys():
        mechanism = Gaussian(numbers["sensitivity"] / numbers["scale"])
    elif defense.mechanism == "sampled-gaussian" and {"noise_multiplier", "sample_rate", "steps"} <= numbers.keys():
        mechanism = SampledGaussian(numbers["noise_multiplier"], numbers["sample_rate"], int(numbers["steps"]))
    sampled = {"gamma": numbers["gamma"], "sampled": numbers["sensitivity"]} if "gamma" in numbers else {}
    return Release(*promise, defense.adjacencies, mechanism, **sampled)


def present_or_not(defense: Defense, numbers: Mapping[str, float]) -> tuple[float, float] | None:
    """The (epsilon, delta) of a fitted defense about one image that is there or not; None: it promises none.

    A promise about a replaced image says nothing of it. Only a mechanism that is known may have such an epsilon too.

    Args:
        defense, numbers: as `release_of`.

    Example:
        >>> from mi_core.defenses.additive_noise import AdditiveGaussian, NoiseParameters
        >>> replaced = AdditiveGaussian(NoiseParameters(head="convex", epsilon=1.0))
        >>> told = {"epsilon": 1.0, "delta": 1e-5}
        >>> present_or_not(replaced, told), present_or_not(replaced, told | {"epsilon_leave_one_out": 1.3})
        (None, (1.3, 1e-05))
    """
    if LEAVE in defense.adjacencies:
        return promised(numbers)
    epsilon = numbers.get("epsilon_leave_one_out")
    return None if epsilon is None else (epsilon, numbers.get("delta", 0.0))


def composed(releases: Sequence[Release], delta: float | None = None) -> Composed:
    """The smallest epsilon that is known to hold for all releases together.

    Gaussian noise alone is composed exactly. Other mechanisms take dp-accounting, whose epsilon is rounded up a little
    (by 1e-4 for each release that counts as the worst of its epsilon and delta). Without it, where delta is 0, or where
    the epsilons add up to more than 50, it is their sum. It is never more than the sum.

    Args:
        releases: at least one; the noise of each is independent of that of the others.
        delta: the total delta; default: the sum of the promised deltas. It may be larger, for a smaller epsilon.

    Raises:
        ConfigError: there is no release, or delta is below the sum of the promised deltas, or not below 1.

    Example:
        >>> two = [Release(4.38, 1e-5, ("replace-one",), Gaussian(ratio)) for ratio in (0.6, 0.8)]
        >>> round(composed(two, delta=2e-5).epsilon, 3)  # that of mu = 1
        4.212
    """
    if not releases:
        raise ConfigError("no release to compose; give at least one")
    adjacency, parts = _alike(releases)
    least = math.fsum(part.delta for part in parts)
    shared: dict[tuple[float, tuple[str, ...]], float] = {}
    for release, part in zip(releases, parts, strict=True):
        one = release.sampled, release.adjacencies
        shared[one] = max(part.gamma, shared.get(one, 0.0))
    gamma = min(1.0, math.fsum(shared.values()))
    if least >= 1 or gamma >= 1:
        missing = gamma < 1 and _accounting() is None
        return Composed(math.inf, min(1.0, least), math.inf, adjacency, SUM, parts, gamma, missing)
    total = least if delta is None else delta
    if not least * (1 - 1e-9) <= total < 1:
        raise ConfigError(f"delta = {total:g}, allowed: {least:g}, the sum of the promised deltas, to below 1")
    basic = math.fsum(part.epsilon for part in parts)
    epsilon, method, missing = basic, SUM, False
    ratios = [part.mechanism.ratio for part in parts if isinstance(part.mechanism, Gaussian)]
    if len(ratios) == len(parts):
        epsilon, method = guarantee("gaussian", 1.0, math.hypot(*ratios), delta=total).epsilon, EXACT
    elif total > 0 and basic <= _MOST:
        missing = _accounting() is None
        if not missing:
            epsilon, method = _numerical(parts, adjacency, total), NUMERICAL
    if epsilon > basic:
        epsilon, method = basic, SUM
    return Composed(epsilon, total, basic, adjacency, method, parts, gamma, missing)


def _alike(releases: Sequence[Release]) -> tuple[str, tuple[Release, ...]]:
    """An adjacency that all promises are about, and the releases under it."""
    for adjacency in ADJACENCIES:
        if all(adjacency in release.adjacencies for release in releases):
            return adjacency, tuple(releases)
    return _REPLACE, tuple(map(_replaced, releases))


def _replaced(release: Release) -> Release:
    """The promise of a release about a replaced image.

    Gaussian noise: the sensitivity is at most twice as large. DP-SGD: the privacy losses of a replaced image. Otherwise
    group privacy of two: 2 epsilon and (1 + e^epsilon) delta (Vadhan, "The complexity of differential privacy", 2017,
    lemma 2.2). Both pairs of a random replacement have to keep a sampled sensitivity, so gamma doubles.
    """
    if _REPLACE in release.adjacencies:
        return release
    twice = replace(release, adjacencies=(_REPLACE,), gamma=min(1.0, 2 * release.gamma))
    mechanism = release.mechanism
    if isinstance(mechanism, Gaussian):
        ratio = 2 * mechanism.ratio
        epsilon = guarantee("gaussian", 1.0, ratio, delta=release.delta).epsilon
        return replace(twice, epsilon=epsilon, mechanism=Gaussian(ratio))
    if isinstance(mechanism, SampledGaussian) and release.epsilon <= _MOST and _accounting() is not None:
        return replace(twice, epsilon=float(_sampled(mechanism, _REPLACE).get_epsilon_for_delta(release.delta)))
    delta = min(1.0, (1 + math.exp(min(release.epsilon, 700.0))) * release.delta)
    return replace(twice, epsilon=2 * release.epsilon, delta=delta, mechanism=None)


def _numerical(parts: Sequence[Release], adjacency: str, delta: float) -> float:
    """The epsilon at a delta by the distributions of the privacy losses."""
    common, losses = _accounting()
    ratios = [part.mechanism.ratio for part in parts if isinstance(part.mechanism, Gaussian)]
    found = [losses.from_gaussian_mechanism(1.0, sensitivity=math.hypot(*ratios))] if ratios else []
    for part in parts:
        if isinstance(part.mechanism, SampledGaussian):
            found.append(_sampled(part.mechanism, adjacency))
        elif part.mechanism is None:
            promise = common.DifferentialPrivacyParameters(part.epsilon, part.delta)
            found.append(losses.from_privacy_parameters(promise))
    return float(reduce(lambda one, other: one.compose(other), found).get_epsilon_for_delta(delta))


@lru_cache(maxsize=8)
def _sampled(mechanism: SampledGaussian, adjacency: str) -> Any:
    """The privacy losses of all steps of DP-SGD."""
    _, losses = _accounting()
    relation = losses.NeighborRel.REPLACE_ONE if adjacency == _REPLACE else losses.NeighborRel.ADD_OR_REMOVE_ONE
    one = losses.from_gaussian_mechanism(mechanism.noise, sampling_prob=mechanism.rate, neighboring_relation=relation)
    return one.self_compose(mechanism.steps)


def _accounting() -> Any:
    """The two modules of dp-accounting that are needed; None: it is not installed."""
    try:
        from dp_accounting.pld import common, privacy_loss_distribution
    except ImportError:
        return None
    return common, privacy_loss_distribution
