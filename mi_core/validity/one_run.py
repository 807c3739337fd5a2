"""Hold a promise of differential privacy against one run of the mechanism.

Canaries are samples that a fair coin each puts into the training set or leaves out. Whoever guesses the coins from what
the training released, and may leave coins unguessed, is right more often than chance only as far as the promise allows.
So many right guesses refute the promise. This holds for every way of guessing: a bad one only shows less.

Two bounds on the chance of v or more right guesses among r, with m canaries:

- `p_value`, for any (epsilon, delta)-private mechanism. In every case that was enumerated, one of them has this chance,
  so guesses show no more there. At delta 0 it is that of Steinke, Nasr, Jagielski, "Privacy auditing with one (1)
  training run" (NeurIPS 2023);
- `gaussian_p_value`, for a mechanism that promises mu-Gaussian differential privacy: Mahloujifar, Melis, Chaudhuri,
  "Auditing f-differential privacy in one run" (2024; ICML 2025), the recursion of their algorithm for k = 2. Such a
  mechanism tells no more than one number of each canary, from N(mu, 1) if it is in and from N(0, 1) if not.

Both are about data sets that differ in one sample that is there or not, as a coin leaves a sample out. A promise about
a replaced sample is another one. With a known number of samples it implies none of a missing one, while an epsilon at
delta of a missing one implies 2 epsilon at (1 + e^epsilon) delta of a replaced one
(`mi_core.defenses.privacy.present_or_not`). `epsilon_bound` and `mu_bound` turn them around: the largest promise
that the guesses still refute. A lower bound is no measure of the epsilon that holds: a better attack may show more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import expit, logsumexp, ndtr, ndtri

from mi_core.checks import ConfigError, check_finite, check_range, check_shape
from mi_core.defenses.privacy import calibrated, guarantee
from mi_core.metrics.delong import mean_ranks
from mi_core.records import BoolArray, FloatArray

GRID = (0.1, 0.2, 0.5, 1.0)
"""Shares of the canaries that are guessed where no number of guesses is given."""
_STEPS = 40  # of a bisection
Ties = npt.NDArray[np.uint64] | npt.NDArray[np.int64]


@dataclass(frozen=True)
class Guesses:
    """How an attacker did: m canaries, r of them guessed, v guessed right.

    Raises ConfigError: unless 0 <= v <= r <= m and m is at least 1.
    """

    canaries: int
    guesses: int
    correct: int

    def __post_init__(self) -> None:
        check_range("canaries", self.canaries, 1)
        check_range(f"guesses of {self.canaries} canaries", self.guesses, 0, self.canaries)
        check_range(f"correct of {self.guesses} guesses", self.correct, 0, self.guesses)

    def __add__(self, other: Guesses) -> Guesses:
        """The guesses of two runs with coins of their own, which together are one mechanism with all these coins."""
        return Guesses(self.canaries + other.canaries, self.guesses + other.guesses, self.correct + other.correct)


@dataclass(frozen=True)
class Bound:
    """The bound that guesses show."""

    guesses: Guesses  # those that show most
    # the mechanism is not (epsilon', delta)-private for any epsilon' below, at the confidence; 0: it shows nothing
    epsilon: float
    mu: float | None = None  # the same of Gaussian differential privacy; None: not asked


def grid_of(canaries: int) -> tuple[int, ...]:
    """The even numbers of guesses that `GRID` stands for, ascending; at least one.

    Raises ConfigError: there are fewer than 2 canaries.

    Example:
        >>> grid_of(1000)
        (100, 200, 500, 1000)
    """
    check_range("canaries", canaries, 2)
    return tuple(sorted({max(2, 2 * math.floor(share * canaries / 2)) for share in GRID}))


def guess(scores: FloatArray, inside: BoolArray, count: int, ties: Ties) -> Guesses:
    """Guess the canaries of the highest scores in and those of the lowest out, and count the right guesses.

    Args:
        scores: (m,), higher: more likely in.
        inside: (m,), how the coins fell.
        count: r, from 0 to m: ceil(r / 2) are guessed in, floor(r / 2) out.
        ties: (m,) numbers that order canaries of equal scores; they must not depend on the coins.

    Raises ShapeError, NumericError: the arrays are not of one length, or a score is not finite; ConfigError: there are
    fewer canaries than guesses.
    """
    m = _checked(scores, inside, ties)
    check_range(f"guesses of {m} canaries", count, 0, m)
    order = np.lexsort((ties, scores))
    called_in, called_out = order[m - (count + 1) // 2 :], order[: count // 2]
    return Guesses(m, count, int(inside[called_in].sum() + (~inside[called_out]).sum()))


def p_value(found: Guesses, epsilon: float, delta: float = 0.0) -> float:
    """The largest chance of so many right guesses that an (epsilon, delta)-private mechanism allows, rounded up.

    Canaries in random order, with coins turned over at random, leave a mechanism as private and as often right. So only
    the chances p_w of w right guesses count, and the promise says: what w p_w exceeds e^epsilon (r - w + 1) p_(w-1) by
    is at most m delta, summed over w. The dual of this linear program has one number t from P[W >= v] to 1. It is
    t + m delta max_w (P[W >= v] - t P[W >= w])+ / (w P[W = w]), w from 1 to v, where W is binomial with r guesses that
    are right with probability 1 / (1 + e^-epsilon) each. Every t gives a bound, and the best one is the chance.

    Raises ConfigError: epsilon is negative, or delta not within [0, 1].
    """
    from scipy.stats import binom  # slow to load, and most processes do without

    check_range("epsilon", epsilon, 0)
    check_range("delta", delta, 0, 1)
    if not found.correct:
        return 1.0
    right = np.arange(1, found.guesses + 1)
    mass = binom.logpmf(right, found.guesses, expit(epsilon))
    tail = np.logaddexp.accumulate(mass[::-1])[::-1]
    least = min(1.0, math.exp(tail[found.correct - 1]))
    if not delta or least > 0.999:
        return 1.0 if delta else least
    # where P[W >= w] is above 1 - 1e-7, no t from 1.000001 P[W >= v] on counts
    first = int(np.searchsorted(-tail, 1e-7))
    cost = (np.log(right) + mass)[first : found.correct] - math.log(found.canaries * delta)
    falls, starts = np.exp(tail[first : found.correct] - cost), np.exp(tail[found.correct - 1] - cost)
    low, high = min(1.0, 1.000001 * least), 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        steepest = int(np.argmax(starts - middle * falls))
        rising = starts[steepest] < middle * falls[steepest] or falls[steepest] < 1
        low, high = (low, middle) if rising else (middle, high)
    return min(1.0, high + max(0.0, float(np.max(starts - high * falls))))


def epsilon_bound(found: Guesses, delta: float = 0.0, confidence: float = 0.95) -> float:
    """The largest epsilon that the guesses refute at ``delta``, rounded down; 0: none.

    With probability ``confidence`` over the coins and the mechanism it is below every epsilon that holds.

    Raises ConfigError: delta or confidence is out of range.

    Example:
        >>> round(epsilon_bound(Guesses(1000, 100, 75), 1e-4), 3)
        0.695
    """
    level = _level(confidence)
    return _largest(lambda epsilon: p_value(found, epsilon, delta) <= level)


def gaussian_p_value(found: Guesses, mu: float) -> float:
    """The largest chance of so many right guesses that a mu-Gaussian private mechanism allows, rounded up.

    Raises ConfigError: mu is negative.
    """
    check_range("mu", mu, 0)
    return tradeoff_p_value(found, lambda mass: float(ndtr(ndtri(mass) - mu)))


def mu_bound(found: Guesses, confidence: float = 0.95) -> float:
    """The largest mu of Gaussian differential privacy that the guesses refute, rounded down; 0: none.

    Raises ConfigError: confidence is out of range.
    """
    level = _level(confidence)
    return _largest(lambda mu: not _possible(found, lambda mass: float(ndtr(ndtri(mass) - mu)), level))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The epsilon at which mu-Gaussian differential privacy holds with ``delta``: 0 for mu = 0.

    Dong, Roth, Su, "Gaussian differential privacy" (JRSS B 2022), corollary 2.13; as `guarantee` of Gaussian noise.

    Raises ConfigError: mu is negative, or delta not within (0, 1).
    """
    check_range("mu", mu, 0)
    return guarantee("gaussian", 1.0, mu, delta=delta).epsilon if mu else 0.0


def gaussian_mu(epsilon: float, delta: float) -> float:
    """The largest mu at which ``epsilon`` holds with ``delta``: the other direction of `gaussian_epsilon`.

    An epsilon below 1e-9, as of overwhelming noise, is read as 1e-9.

    Raises ConfigError: epsilon is negative, or delta not within (0, 1).
    """
    check_range("epsilon", epsilon, 0)
    return 1 / calibrated("gaussian", max(epsilon, 1e-9), 1.0, delta=delta).scale


def log_wealth(scores: FloatArray, inside: BoolArray, ties: Ties, epsilon: float) -> FloatArray:
    """The logarithm of a gambler's wealth after each canary, who bets against an (epsilon, 0)-private mechanism: (m,).

    He guesses the coins one after the other, in by high scores and out by low ones, and stakes the more the more
    extreme a score is. Given all that was released and the coins before, a coin is guessed right with a chance of at
    most e^epsilon / (1 + e^epsilon) (Steinke et al., proof of theorem 5.2). So his wealth is a supermartingale from 1,
    and it ever reaches 1 / p with a chance of at most p (Ville, 1939), however many canaries there are in the end.

    Args:
        scores, inside, ties: (m,) as `guess`; the ties order the bets.
        epsilon: that is promised, 0 or above.

    Raises as `guess`.
    """
    m = _checked(scores, inside, ties)
    check_range("epsilon", epsilon, 0)
    normal = ndtri(mean_ranks(scores) / (m + 1))
    order = np.argsort(ties, kind="stable")
    size, right = np.abs(normal)[order], ((normal > 0) == inside)[order]
    allowed = expit(epsilon)
    paths = []
    for stake in _STAKES:
        chance = expit(epsilon + stake * size)  # at 0, as for scores in the middle, nothing is staked
        paths.append(np.cumsum(np.log(np.where(right, chance / allowed, (1 - chance) / (1 - allowed)))))
    return np.asarray(logsumexp(paths, axis=0) - math.log(len(_STAKES)))


_STAKES = (0.2, 0.5, 1.0, 2.0)


def any_time_p_value(log_wealth: FloatArray, canaries: int, epsilon: float, delta: float = 0.0) -> float:
    """A p-value of a promise that holds whenever somebody stops adding canaries and runs: 1 / the most wealth so far.

    With a delta a coin may be guessed right with a chance of (e^epsilon + F) / (1 + e^epsilon). F depends on what is
    released and on the coins before, and is at most delta on average: half of it for guesses of in, half for those of
    out. So wealth divided by all 1 + e^-epsilon F is a supermartingale, and the logarithm of the divisor exceeds u with
    a chance of at most m delta e^-epsilon / u (Markov). Wealth w is reached with a chance of at most that + e^u / w,
    for every u, and of at most 1 / w + m delta, since F alone makes a coin right with a chance of F.

    Args:
        log_wealth: (m,) of `log_wealth`; of several runs one after the other; m is ``canaries``.
        epsilon, delta: of the promise that the gambler bet against.

    Raises ConfigError: epsilon is negative, or delta out of range.
    """
    check_range("epsilon", epsilon, 0)
    check_range("delta", delta, 0, 1)
    most = float(np.max(log_wealth, initial=0.0))
    u = max(most, 1e-9) * np.arange(1, 100) / 100
    many = np.exp(u - most) + canaries * delta * math.exp(-epsilon) / u
    return min(1.0, math.exp(-most) + canaries * delta, float(np.min(many)) if delta else 1.0)


def tradeoff_p_value(found: Guesses, inverse: Callable[[float], float]) -> float:
    """The largest chance of so many right guesses that a trade-off function f allows, rounded up.

    Args:
        found: the guesses.
        inverse: of the function 1 - f: the smallest x in [0, 1] with 1 - f(x) >= y, for y in [0, 1].
    """
    if _possible(found, inverse, 1.0):
        return 1.0
    possible, impossible = 0.0, 1.0
    for _ in range(_STEPS):
        middle = (possible + impossible) / 2
        possible, impossible = (middle, impossible) if _possible(found, inverse, middle) else (possible, middle)
    return impossible


def _possible(found: Guesses, inverse: Callable[[float], float], chance: float) -> bool:
    """True if v or more right guesses may have this chance (Mahloujifar et al., 2024).

    ``right`` and ``wrong`` are, over the runs with i or more right guesses, the chance that a canary is guessed right,
    and that it is guessed wrong. A canary's coin turned over makes a right guess wrong. So ``right`` of i + 1 is at
    most 1 - f of ``wrong`` of i, which forces the runs with fewer right guesses to be as likely as they
    are. If all together are likelier than 1, the chance is impossible.
    """
    share = found.guesses / found.canaries
    right = chance * found.correct / found.canaries
    wrong = chance * (found.guesses - found.correct) / found.canaries
    for i in range(found.correct - 1, -1, -1):
        forced = max(wrong, inverse(right))
        right += i / (found.guesses - i) * (forced - wrong)
        wrong = forced
        if right + wrong > share:
            return False
    return True


def best_bound(
    several: Sequence[Guesses], *, delta: float = 0.0, confidence: float = 0.95, gaussian: bool = False
) -> Bound:
    """The best bound that several numbers of guesses give, each at 1 - (1 - confidence) / their number.

    So the bound holds at ``confidence`` although the best one is chosen after looking (Bonferroni's correction).

    Args:
        several: at least one; how many, and how many guesses each, is fixed before the coins fall.
        delta: in [0, 1]; with ``gaussian`` in (0, 1).
        confidence: in (0, 1).
        gaussian: the mechanism promises Gaussian differential privacy.

    Raises ConfigError: there are no guesses, or a number is out of range.
    """
    each = 1 - corrected_level(several, confidence)
    bounds = [mu_bound(found, each) if gaussian else epsilon_bound(found, delta, each) for found in several]
    best = int(np.argmax(bounds))
    if gaussian:
        return Bound(several[best], gaussian_epsilon(bounds[best], delta), bounds[best])
    return Bound(several[best], bounds[best])


def corrected_level(several: Sequence[Guesses], confidence: float) -> float:
    """The p-value at which each of several numbers of guesses is judged.

    Raises ConfigError: there are no guesses, or confidence is out of range.
    """
    if not several:
        raise ConfigError("no number of guesses is given; give at least one")
    return _level(confidence) / len(several)


def corrected_p_value(
    several: Sequence[Guesses], epsilon: float, delta: float = 0.0, *, gaussian: bool = False
) -> float:
    """The p-value of a promise under several numbers of guesses: the smallest times their number, at most 1.

    Takes and raises what `best_bound` does; epsilon is promised, 0 or above.
    """
    corrected_level(several, 0.5)
    mu = gaussian_mu(epsilon, delta) if gaussian else 0.0
    values = [gaussian_p_value(found, mu) if gaussian else p_value(found, epsilon, delta) for found in several]
    return min(1.0, len(several) * min(values))


def _checked(scores: FloatArray, inside: BoolArray, ties: Ties) -> int:
    (m,) = check_shape("scores", scores, "m")
    check_shape("inside", inside, "m", m=m)
    check_shape("ties", ties, "m", m=m)
    check_finite("scores", scores)
    return m


def _level(confidence: float) -> float:
    return 1 - check_range("confidence", confidence, 0, 1, open_low=True, open_high=True)


def _largest(refuted: Callable[[float], bool]) -> float:
    """The largest number, from 0 on, of which a condition holds that fails for all larger ones; rounded down."""
    if not refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while refuted(high):
        low, high = high, 2 * high
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low
