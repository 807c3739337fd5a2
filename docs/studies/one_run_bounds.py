"""Bounds of epsilon in one run, on mechanisms of known epsilon: how much each shows, and how often it shows too much.

``python -m docs.studies.one_run_bounds RESULT.json [RUNS]``: bounds of 95 % for RUNS draws of the coins (200; a fifth
with 10,000 canaries), and for ten times as many whether they are above the truth. All mechanisms keep their promise
exactly. Beside the bounds of the product stand those it had before, and two that take canaries for independent:
`independent`, our reading of the code of Xiang et al. (2025), and `fitted`, after the abstract of Agrawal et al.
(2026).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import cache, partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.special import expit, ndtr
from scipy.stats import beta, binom

from docs.studies.shared import Result
from mi_core.records import BoolArray, FloatArray
from mi_core.validity import one_run
from mi_core.validity.one_run import Guesses, any_time_p_value


class Drawn(NamedTuple):
    several: tuple[Guesses, ...]
    scores: FloatArray
    inside: BoolArray
    ties: npt.NDArray[np.int64]


Release = Callable[[np.random.Generator, BoolArray], FloatArray]
Value = Callable[[Guesses, float], float]
Method = tuple[Callable[[Drawn], float], Callable[[Drawn, float], bool]]  # the bound, and whether it is above the truth
DELTA, LEVEL = 1e-5, 0.05


def response(epsilon: float, delta: float = 0.0, share: float = 0.05) -> Release:
    """Randomised response; in a share delta / share of the runs that share of the canaries is told."""

    def release(rng: np.random.Generator, inside: BoolArray) -> FloatArray:
        m = len(inside)
        scores = np.where(rng.random(m) < expit(epsilon), inside, ~inside)
        return np.where(rng.permutation(m) < share * m * (rng.random() < delta / share), 3.0 * inside - 1, scores)

    return release


def laplace(epsilon: float) -> Release:
    return lambda rng, inside: inside + rng.laplace(scale=1 / epsilon, size=len(inside))


def gaussian(mu: float) -> Release:
    return lambda rng, inside: mu * inside + rng.standard_normal(len(inside))


def interfering(mu: float) -> Release:
    """Gaussian noise on the sum of canaries, random unit vectors in half as many dimensions."""

    @cache
    def vectors(m: int) -> FloatArray:
        drawn = np.random.default_rng(1).standard_normal((m, m // 2))
        return np.asarray(drawn / np.linalg.norm(drawn, axis=1, keepdims=True))

    def release(rng: np.random.Generator, inside: BoolArray) -> FloatArray:
        among = vectors(len(inside))
        return np.asarray(among @ (mu * (inside - 0.5) @ among + rng.standard_normal(among.shape[1])))

    return release


def one_size(mu: float) -> Release:
    """mu-Gaussian privacy whose evidence is as large for all canaries: |x - mu / 2| of one x from N(mu, 1)."""

    def release(rng: np.random.Generator, inside: BoolArray) -> FloatArray:
        size = abs(rng.standard_normal() + mu / 2)
        return np.where((rng.random(len(inside)) < expit(mu * size)) == inside, size, -size)

    return release


def steinke_p_value(found: Guesses, epsilon: float, delta: float) -> float:
    below = np.cumsum(binom.pmf(np.arange(found.correct - 1, -1, -1), found.guesses, expit(epsilon)))
    most = float(np.max(below / np.arange(1, found.correct + 1), initial=0.0))
    return one_run.p_value(found, epsilon) + 2 * found.canaries * delta * most


def independent_p_value(found: Guesses, mu: float) -> float:
    """The chance of so few wrong guesses where the r surest of m independent canaries are guessed."""
    shares = np.ones(1)
    if found.guesses < found.canaries:
        shares = 1 - beta.ppf((np.arange(100) + 0.5) / 100, found.canaries - found.guesses, found.guesses + 1)
    sizes = np.linspace(0, 9, 4000)
    good, bad = ndtr(mu / 2 - sizes), ndtr(-mu / 2 - sizes)
    rate = np.interp(shares, (good + bad)[::-1], (bad / (good + bad))[::-1])
    return float(np.mean(binom.cdf(found.guesses - found.correct, found.guesses, rate)))


def fitted_mu(drawn: Drawn) -> float:
    """The lower end of an interval for the distance of two normal distributions in standard deviations."""
    a, b, n = drawn.scores[drawn.inside], drawn.scores[~drawn.inside], len(drawn.scores)
    width = math.sqrt((a.var(ddof=1) * (len(a) - 1) + b.var(ddof=1) * (len(b) - 1)) / (n - 2))
    d = float(a.mean() - b.mean()) / max(width, 1e-9)
    return max(0.0, d - 1.645 * math.sqrt(1 / len(a) + 1 / len(b) + d * d / (2 * n)))


def epsilon_of(mu: float) -> float:
    return one_run.gaussian_epsilon(mu, DELTA) if mu > 2e-3 else 0.0


def largest(value: Callable[[float], float], level: float, top: float = 14.0) -> float:
    """The parameter at which a p-value that grows with it reaches the level."""
    if value(1e-3) > level:
        return 0.0
    return top if value(top) <= level else float(brentq(lambda x: value(x) - level, 1e-3, top, xtol=1e-3))


def method_by_counts(value: Value, bound: Value | None = None, convert: Callable[[float], float] = float) -> Method:
    """Of a p-value by numbers of guesses: the best bound of the grid, at a fourth of the level each."""
    bound_of = cache(bound or (lambda found, level: largest(lambda x: value(found, x), level)))

    @cache
    def least(m: int, r: int, level: float, truth: float) -> int:
        """The number of right guesses that refutes the truth."""
        low, high = -1, r + 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if value(Guesses(m, r, middle), truth) <= level else (middle, high)
        return high

    def bound_from(drawn: Drawn) -> float:
        return convert(max(bound_of(one, LEVEL / len(drawn.several)) for one in drawn.several))

    def above(drawn: Drawn, truth: float) -> bool:
        level = LEVEL / len(drawn.several)
        return any(one.correct >= least(one.canaries, one.guesses, level, truth) for one in drawn.several)

    return bound_from, above


def betting(delta: float, *, before: bool) -> Method:
    def value(drawn: Drawn, epsilon: float) -> float:
        path, m = one_run.log_wealth(drawn.scores, drawn.inside, drawn.ties, epsilon), len(drawn.scores)
        return any_time_p_value(path, m, epsilon, 0 if before else delta) + 2 * m * delta * before

    return lambda drawn: largest(partial(value, drawn), LEVEL), lambda drawn, truth: value(drawn, truth) <= LEVEL


def measure(release: Release, truth: float, m: int, methods: dict[str, Method], runs: int) -> dict[str, Any]:
    """Of each method: the mean bound, its standard error, and the share of bounds above the truth."""
    rng, means = np.random.default_rng([m, round(100 * truth)]), runs if m < 10_000 else runs // 5
    found: dict[str, tuple[list[float], list[bool]]] = {name: ([], []) for name in methods}
    for run in range(10 * runs):
        inside = rng.random(m) < 0.5
        scores, ties = release(rng, inside), rng.permutation(m)
        several = tuple(one_run.guess(scores, inside, count, ties) for count in one_run.grid_of(m))
        drawn = Drawn(several, scores, inside, ties)
        for name, (bound, above) in methods.items():
            found[name][1].append(above(drawn, truth))
            if run < means:
                found[name][0].append(bound(drawn))
    return {
        name: [round(float(x), 4) for x in (np.mean(bounds), np.std(bounds) / math.sqrt(means), np.mean(above))]
        for name, (bounds, above) in found.items()
    }


def main(path: str, runs: int = 200) -> None:
    result = Result(path, runs=runs)
    fitted = (lambda drawn: epsilon_of(fitted_mu(drawn))), lambda drawn, truth: fitted_mu(drawn) > truth
    known = method_by_counts(
        one_run.gaussian_p_value, lambda found, level: one_run.mu_bound(found, 1 - level), epsilon_of
    )
    gaussians = {
        "ours": known,
        "independent": method_by_counts(independent_p_value, None, epsilon_of),
        "fitted": fitted,
    }
    for m, epsilon in product((100, 1000, 10_000), (0.5, 1.0, 4.0, 8.0)):
        mu, pure = one_run.gaussian_mu(epsilon, DELTA), {"ours": method_by_counts(one_run.p_value)}
        settings = [(of.__name__, 0.0, of(epsilon), epsilon, pure) for of in (response, laplace)]
        for delta in (1e-5, 1e-3):
            ours, before = (method_by_counts(partial(of, delta=delta)) for of in (one_run.p_value, steinke_p_value))
            bets = {f"any time{', before' * old}": betting(delta, before=old) for old in (False, True)}
            told = {"ours": ours, "before": before, **bets}
            settings.append(("told together", delta, response(epsilon, delta), epsilon, told))
        families = (gaussian, one_size, interfering)[: 3 if m <= 1000 else 2]
        settings += [(of.__name__, DELTA, of(mu), mu, gaussians) for of in families]
        for name, delta, release, truth, methods in settings:
            found = measure(release, truth, m, methods, runs)
            result.keep({"mechanism": name, "m": m, "epsilon": epsilon, "delta": delta, **found})


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
