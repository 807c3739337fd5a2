"""The robust membership inference attack on encoders (RMIA; Zarifzadeh, Liu and Shokri, "Low-cost high-power membership
inference attacks", ICML 2024; no paper applies it to encoders).

**The paper.** An image x is compared with images z of a population that the target theta did not see. The likelihood
ratio of "theta saw x" to "theta saw z" is, by Bayes' rule (equation 1), LR(x, z) = (Pr(x | theta) / Pr(x)) /
(Pr(z | theta) / Pr(z)), and the score of x is the share of z with LR(x, z) > gamma. Pr(x | theta) is a classifier's
confidence in the true class. Pr(x) is its mean over encoders that saw x and encoders that did not, half and half.
Offline there are only the latter, and Pr_in = a Pr_out + (1 - a) stands for the former, so that
Pr(x) = ((1 + a) Pr_out + (1 - a)) / 2. ``a`` is chosen on the reference models.

**The adaptation.** An encoder has no confidence. As for LiRA, the statistic t is Fisher's z of the mean cosine of
views, or the log of the norm. u = (t - m) / s measures it by mean m and deviation s of the population under the same
encoder, since encoders differ in both. If u is N(0, 1) for images that an encoder did not see and N(d, 1) for those
that it saw, then with even odds it saw an image with the probability 1 / (1 + exp(-d (u - d / 2))), which takes the
place of the confidence Pr(x | theta). Like a confidence it is the logistic function of a Gaussian number. d is the mean
difference of u between samples that shadows saw and did not see; its sign tells on which side members lie.

Where no shadow saw x, or all did, the missing side is the other one moved by d; so one shadow suffices, which saw half
of the samples. A threshold that calls a given share of non-members members needs z to be like such an x. So the
population is treated as if every other shadow had seen it, its u moved by d there. (In simulations of two shadows,
offline, .105 of non-members are called members where .1 is asked for; else it would be .118.) Online this takes images
that training moves alike. An image that it moves less has a smaller Pr(x), so its ratio is too high: with half of the
images moved by twice the shift and the others not at all, .11 to .19 are called members where .1 is asked for, offline
.09 to .11. The population cannot tell how unevenly training moves images, since no shadow was trained on it.

Scores depend on x only through its own ratio Pr(x | theta) / Pr(x), and rise with it. So gamma and the choice of z
decide who is called a member, not who stands above whom; only samples between the same two z share a score. The ratio
itself orders these: it adds less than 1 / Z to the share of Z images.

So InfoRMIA (Tao and Shokri, "Information-theoretic membership inference for granular quantification of memorization",
ICLR 2026) is no attack of its own here. Its score is log(Pr(x | theta) / Pr(x)) + KL(Pr(z) || Pr(z | theta)), the mean
over z of log LR(x, z): it orders samples by their own ratios too. What it gains is the order within ties. The bare
share has AUC .712 and a TPR of .028 at 1 % false positives with 19 images z, InfoRMIA and the score here both .717 and
.071; with 500 the AUC is .730 for all (simulations, offline, four shadows, n 16,000).

**The paper's claim** that with one shadow it is better than LiRA offline holds in simulations where encoders differ as
much in an image as images do (AUC .718 against .691; one shadow without the image): a < 1 draws Pr(x), which rests on
one noisy number, towards the same for all. Where images differ three times as much, LiRA is better (.691 against .648),
and a = 1 comes near it (.687). Online RMIA has .714 and .715. There it is not ahead of LiRA online with a pooled shift:
.721 against .722 with two shadows, .753 against .755 with 64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np
import numpy.typing as npt
from scipy.special import expit, log_expit

from mi_core.attacks.base import Scores, State
from mi_core.attacks.shadows import Places, Rows, ShadowsAttack, ShadowsParameters
from mi_core.attacks.threshold import least_nonmembers
from mi_core.checks import ConfigError, NumericError, check_fields
from mi_core.metrics.delong import auc
from mi_core.records import Features

_LEAST = 1e-12  # below this a deviation is rounding
_STEPS = np.linspace(0, 1, 11)  # of a, where it is chosen


@dataclass(frozen=True)
class RMIAParameters(ShadowsParameters):
    """Settings of the attack.

    Args:
        gamma: by how much x must be likelier than z. Published code takes 1 or 2; confidences differ by orders of
            magnitude, the probabilities here rarely by a factor of 2.
        a: offline, what a shadow that saw an image adds: 1 is nothing, 0 makes it surely a member. Published code takes
            .3. None: the one with the best mean AUC on the shadows, each attacked by means of the others; this takes 4
            shadows.
        fpr: the share of non-members that may be called members, with gamma = 1; online if training moves all images
            alike.
    """

    gamma: float = 1.0
    a: float | None = 0.3
    fpr: float = 0.05

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(self, "gamma", low=0, open_low=True)
        check_fields(self, "a", low=0, high=1)
        check_fields(self, "fpr", low=0, high=1, open_low=True)


class RMIA(ShadowsAttack):
    """Each sample against shadow encoders and against a population that no encoder saw.

    Use it beside `lira` where shadows are few: offline, with one shadow that did not see an image, it found more on
    digits, and online as much. With one shadow in all take ``mode: offline``. It reads the same queries, and those of a
    population, the role ``known-nonmember``: images of the same kind that the target surely did not see, apart from the
    audited ones. Offline it calls about the share ``fpr`` of non-members members, whatever the number of shadows.
    Online that holds only if training moves all images alike; where it memorises them unevenly, it calls more.
    """

    name = "rmia"
    threat_model = (
        "embeddings of views, or one un-normalised embedding; shadow encoders trained on halves of the samples; "
        "a population of known non-members"
    )
    source = "RMIA (ICML 2024), equation 1, on statistics of encoders"
    populated = True
    Parameters = RMIAParameters

    @property
    def needed_nonmembers(self) -> int:
        """Enough for the false-positive rate ``fpr``."""
        return least_nonmembers(self.parameters.fpr)

    def _fit(self, features: Features, member: npt.NDArray[np.bool_]) -> State:
        population = cast(Features, features.population)
        rows, others = Rows.from_ids(features.ids), Rows.from_ids(population.ids)
        if not np.array_equal(rows.shadows, others.shadows):
            raise ConfigError("rmia: the population needs features by every shadow, and by no other encoder")
        levels = self.statistic(population)
        scale = np.array([_scale(levels[places]) for places in others.by_shadow()])
        seen = _Seen(_standard(self.statistic(features), scale[rows.shadow].T), rows.sample, member)
        shift = seen.level[member].mean() - seen.level[~member].mean()
        alternating = (others.sample + others.shadow) % 2 == 0
        level = _standard(levels, scale[others.shadow].T) + shift * alternating
        like = _Seen(level, others.sample, alternating)
        a = _best_a(seen, rows, shift) if self.parameters.a is None else self.parameters.a
        return {
            "names": rows.names,
            "marginal": self._marginal(seen, shift, a),
            "population_names": others.names,
            "population_marginal": self._marginal(like, shift, a),
            "shift": np.array(shift),
            "a": np.array(a),
            "threshold": np.array(self._threshold(len(others.names))),
        }

    def _marginal(self, seen: _Seen, shift: float, a: float) -> Scores:
        """(n,) Pr of each sample."""
        outside = seen.mean(False, shift)
        if self.parameters.mode == "offline":
            return _offline(outside, a)
        return np.asarray((outside + seen.mean(True, shift)) / 2)

    def _threshold(self, count: int) -> float:
        """The share of ``count`` population images that a new, exchangeable one exceeds with a probability of fpr.

        Raises NumericError: they are too few for such a rate.
        """
        rank = math.ceil((1 - self.parameters.fpr) * (count + 1))
        if rank > count:
            raise NumericError(
                f"{self.name} at fpr = {self.parameters.fpr:g} needs {self.needed_nonmembers} images of a population, "
                f"got {count}"
            )
        return float(rank / count)

    def _score(self, features: Features, state: State) -> Scores:
        population = cast(Features, features.population)
        levels = self.statistic(population)
        scale, shift = _scale(levels), float(state["shift"])
        z = state["population_marginal"][self._places(state["population_names"], population.ids)]
        x = state["marginal"][self._places(state["names"], features.ids)]
        ratios = np.sort(_log_ratio(_standard(levels, scale), z, shift))
        ratio = _log_ratio(_standard(self.statistic(features), scale), x, shift)
        beaten = np.searchsorted(ratios, ratio - math.log(self.parameters.gamma))
        return np.asarray((beaten + expit(ratio) / 2) / len(ratios))


class _Seen(NamedTuple):
    """Answers of shadows for samples: a row per shadow and sample, ``inside`` where the shadow was trained on it."""

    level: Scores  # (N,) u
    sample: Places  # (N,)
    inside: npt.NDArray[np.bool_]  # (N,)

    def mean(self, inside: bool, shift: float) -> Scores:
        """(n,) mean probability over the shadows on one side; without any, over the others, moved by the shift."""
        here, count = self.total(self.inside == inside, shift, 0.0)
        there, others = self.total(self.inside != inside, shift, shift if inside else -shift)
        return np.asarray(np.where(count > 0, here, there) / np.where(count > 0, count, others))

    def total(self, rows: npt.NDArray[np.bool_], shift: float, moved: float) -> tuple[Scores, Places]:
        """(n,) sums of probabilities over some rows, and their numbers."""
        sample, size = self.sample[rows], int(self.sample.max()) + 1
        found = expit(_logit(self.level[rows] + moved, shift))
        return np.asarray(np.bincount(sample, found, size), dtype=np.float64), np.bincount(sample, minlength=size)


def _scale(levels: Scores) -> Scores:
    """(2,) mean and deviation of the population under one encoder."""
    return np.array([levels.mean(), max(levels.std(), _LEAST)])


def _standard(values: Scores, scale: Scores) -> Scores:
    mean, deviation = scale
    return np.asarray((values - mean) / deviation)


def _logit(level: Scores, shift: float) -> Scores:
    return np.asarray(shift * (level - shift / 2))


def _log_ratio(level: Scores, marginal: Scores, shift: float) -> Scores:
    """log of Pr(x | theta) / Pr(x)."""
    return np.asarray(log_expit(_logit(level, shift)) - np.log(np.maximum(marginal, np.finfo(np.float64).tiny)))


def _offline(outside: Scores, a: float) -> Scores:
    """Pr(x) from Pr_out, with Pr_in = a Pr_out + (1 - a)."""
    return np.asarray(((1 + a) * outside + (1 - a)) / 2)


def _best_a(seen: _Seen, rows: Rows, shift: float) -> float:
    """The a with the best mean AUC, each shadow attacked by means of the others that did not see a sample."""
    total, count = seen.total(~seen.inside, shift, 0.0)
    if count.min() < 2:
        raise NumericError(
            f"rmia with a = None needs 2 shadows out of whose training data each sample is; "
            f"{rows.names[int(np.argmin(count))]} has {count.min()}"
        )
    logit = _logit(seen.level, shift)
    own = np.where(seen.inside, 0.0, expit(logit))
    outside = (total[seen.sample] - own) / (count[seen.sample] - ~seen.inside)
    found = [
        np.mean([auc(ratio[places], seen.inside[places]).value for places in rows.by_shadow()])
        for ratio in (log_expit(logit) - np.log(_offline(outside, a)) for a in _STEPS)
    ]
    return float(_STEPS[int(np.argmax(found))])
