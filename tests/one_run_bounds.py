"""Bounds of epsilon in one run, on mechanisms of known epsilon: how much each shows, and how often it shows too much.

``python tests/one_run_bounds.py RESULT.json [RUNS]``: per setting RUNS draws of the coins for the mean bound (200), and
ten times as many to count bounds above the truth. A share of .05 is known to .005 (one standard error) from 2,000 runs,
so .065 is told from .05. The mean bound is known to .01 to .04. All bounds are of 95 %, at delta 1e-5 where noise is
Gaussian. Every mechanism keeps exactly its promise.

Beside the product's bounds stand the corollary of Steinke et al. (2023), and two that take the canaries for
independent: `independent`, our reading of Xiang et al. (2025) from their published code, and `fitted`, normal
distributions fitted to the scores, after the abstract of Agrawal et al. (2026).
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit, ndtr
from scipy.stats import beta, binom

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from mi_core.records import BoolArray, FloatArray  # noqa: E402
from mi_core.validity.one_run import (  # noqa: E402
    Guesses,
    any_time_p_value,
    gaussian_epsilon,
    gaussian_mu,
    gaussian_p_value,
    grid_of,
    guess,
    log_wealth,
    mu_bound,
    p_value,
)

Release = Callable[[np.random.Generator, BoolArray], FloatArray]
DELTA, LEVEL, EPSILONS, SIZES = 1e-5, 0.05, (0.5, 1.0, 4.0, 8.0), (100, 1000, 10_000)


def response(epsilon: float, delta: float = 0.0, told: int = 1) -> Release:
    """Randomised response; in a share m delta / told of the runs that many coins are told."""

    def release(rng: np.random.Generator, inside: BoolArray) -> FloatArray:
        scores = np.where(rng.random(len(inside)) < expit(epsilon), inside, ~inside).astype(np.float64)
        if told == 1:
            some = rng.random(len(inside)) < delta
        else:
            some = rng.permutation(len(inside)) < told * (rng.random() < len(inside) * delta / told)
        return np.where(some, 3.0 * inside - 1, scores)

    return release


def laplace(epsilon: float) -> Release:
    return lambda rng, inside: inside + rng.laplace(scale=1 / epsilon, size=len(inside))


def gaussian(mu: float, directions: float = math.inf) -> Release:
    """Noise on the sum of the canaries, which are random unit vectors in ``directions`` m dimensions; inf: orthogonal."""

    @cache
    def vectors(m: int) -> FloatArray:
        drawn = np.random.default_rng(1).standard_normal((m, round(directions * m)))
        return np.asarray(drawn / np.linalg.norm(drawn, axis=1, keepdims=True))

    def release(rng: np.random.Generator, inside: BoolArray) -> FloatArray:
        if directions == math.inf:
            return mu * inside + rng.standard_normal(len(inside))
        among = vectors(len(inside))
        centred = mu * (inside - 0.5) @ among
        return np.asarray(among @ (centred + rng.standard_normal(among.shape[1])))

    return release


def one_size(mu: float) -> Release:
    """mu-Gaussian privacy whose evidence is of one size for all canaries, drawn once: |x - mu / 2| of x from N(mu, 1)."""

    def release(rng: np.random.Generator, inside: BoolArray) -> FloatArray:
        size = abs(rng.standard_normal() + mu / 2)
        right = rng.random(len(inside)) < expit(mu * size)
        return np.where(right == inside, size, -size)

    return release


def steinke_p_value(found: Guesses, epsilon: float, delta: float) -> float:
    below = np.cumsum(binom.pmf(np.arange(found.correct - 1, -1, -1), found.guesses, expit(epsilon)))
    most = float(np.max(below / np.arange(1, found.correct + 1), initial=0.0))
    tail = float(binom.sf(found.correct - 1, found.guesses, expit(epsilon)))
    return min(1.0, tail + 2 * found.canaries * delta * most)


def independent_p_value(found: Guesses, mu: float) -> float:
    """The chance of so few wrong guesses where the r surest of m independent canaries are guessed."""
    wrong = found.guesses - found.correct
    shares = np.ones(1)
    if found.guesses < found.canaries:
        at = (np.arange(100) + 0.5) / 100
        shares = 1 - beta.ppf(at, found.canaries - found.guesses, found.guesses + 1)
    sizes = np.linspace(0, 9, 4000)
    good, bad = ndtr(mu / 2 - sizes), ndtr(-mu / 2 - sizes)
    rate = np.interp(shares, (good + bad)[::-1], (bad / (good + bad))[::-1])
    return float(np.mean(binom.cdf(wrong, found.guesses, rate)))


def largest(value: Callable[[float], float], top: float = 14.0) -> float:
    """The parameter at which a p-value that grows with it reaches the level."""
    if value(1e-3) > LEVEL:
        return 0.0
    return top if value(top) <= LEVEL else float(brentq(lambda x: value(x) - LEVEL, 1e-3, top, xtol=1e-3))


def epsilon_of(mu: float) -> float:
    return gaussian_epsilon(mu, DELTA) if mu > 2e-3 else 0.0


def fitted_mu(scores: FloatArray, inside: BoolArray) -> float:
    """The lower end of an interval for the distance of two normal distributions in standard deviations."""
    a, b = scores[inside], scores[~inside]
    width = math.sqrt((a.var(ddof=1) * (len(a) - 1) + b.var(ddof=1) * (len(b) - 1)) / (len(scores) - 2))
    d = float(a.mean() - b.mean()) / max(width, 1e-9)
    return max(0.0, d - 1.645 * math.sqrt(1 / len(a) + 1 / len(b) + d * d / (2 * len(scores))))


Drawn = tuple[tuple[Guesses, ...], FloatArray, BoolArray, Any]


def of_counts(value: Callable[[Guesses, float], float], convert: Callable[[float], float] = float) -> Any:
    """(bound, above) of a p-value by numbers of guesses: the best of the grid, at a fourth of the level each."""
    remembered = cache(value)
    bound_of = cache(lambda found, number: largest(lambda x: remembered(found, x) * number, 14.0))
    return (
        lambda drawn: convert(max(bound_of(found, len(drawn[0])) for found in drawn[0])),
        lambda drawn, truth: min(remembered(found, truth) for found in drawn[0]) * len(drawn[0]) <= LEVEL,
    )


def betting(delta: float) -> Any:
    def value(drawn: Drawn, epsilon: float) -> float:
        _, scores, inside, ties = drawn
        return any_time_p_value(log_wealth(scores, inside, ties, epsilon), len(scores), epsilon, delta)

    return lambda drawn: largest(lambda x: value(drawn, x)), lambda drawn, truth: value(drawn, truth) <= LEVEL


def measure(release: Release, truth: float, m: int, methods: dict[str, Any], runs: int) -> dict[str, Any]:
    """Of each method: the mean bound, its standard error, and the share of bounds above the truth."""
    rng = np.random.default_rng([m, round(100 * truth)])
    bounds: dict[str, list[float]] = {}
    above: dict[str, list[bool]] = {}
    for run in range(10 * runs):
        inside = rng.random(m) < 0.5
        scores, ties = release(rng, inside), rng.permutation(m)
        drawn = (tuple(guess(scores, inside, count, ties) for count in grid_of(m)), scores, inside, ties)
        for name, (bound, too_high) in methods.items():
            if run < runs:
                bounds.setdefault(name, []).append(bound(drawn))
            above.setdefault(name, []).append(too_high(drawn, truth))
    return {
        name: {
            "mean": round(float(np.mean(bounds[name])), 3),
            "error": round(float(np.std(bounds[name]) / math.sqrt(runs)), 3),
            "above": round(float(np.mean(above[name])), 4),
        }
        for name in methods
    }


def main(path: Path, runs: int) -> None:
    started, rows = time.process_time(), []

    def add(name: str, m: int, epsilon: float, delta: float, release: Release, truth: float, **methods: Any) -> None:
        found = measure(release, truth, m, methods, runs)
        rows.append({"mechanism": name, "canaries": m, "epsilon": epsilon, "delta": delta, "bounds": found})
        print(json.dumps(rows[-1]), f"{time.process_time() - started:.0f} s", flush=True)

    fitted = (
        lambda drawn: epsilon_of(fitted_mu(drawn[1], drawn[2])),
        lambda drawn, truth: fitted_mu(drawn[1], drawn[2]) > truth,
    )
    recursion = of_counts(gaussian_p_value, epsilon_of)
    independent = of_counts(independent_p_value, epsilon_of)
    for m in SIZES:
        for epsilon in EPSILONS:
            exact = of_counts(lambda found, e: p_value(found, e))
            add("response", m, epsilon, 0.0, response(epsilon), epsilon, exact=exact)
            add("laplace", m, epsilon, 0.0, laplace(epsilon), epsilon, exact=exact)
            for delta in (1e-5, 1e-3):
                both = {
                    "exact": of_counts(lambda found, e, delta=delta: p_value(found, e, delta)),
                    "steinke": of_counts(lambda found, e, delta=delta: steinke_p_value(found, e, delta)),
                }
                add("response", m, epsilon, delta, response(epsilon, delta), epsilon, **both)
                add("told together", m, epsilon, delta, response(epsilon, delta, m // 20), epsilon, **both)
            mu = gaussian_mu(epsilon, DELTA)
            three = {"recursion": recursion, "independent": independent, "fitted": fitted}
            add("gaussian", m, epsilon, DELTA, gaussian(mu), mu, **three)
            add("one size", m, epsilon, DELTA, one_size(mu), mu, **three)
            if m <= 1000:
                add("interfering", m, epsilon, DELTA, gaussian(mu, 0.5), mu, **three)
    path.write_text(json.dumps({"runs": runs, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 200)
