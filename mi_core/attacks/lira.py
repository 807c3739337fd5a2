"""A likelihood-ratio attack on encoders, calibrated per sample (after Carlini et al., "Membership inference attacks
from first principles", IEEE S&P 2022, sections IV-V; no paper applies it to encoders).

The attacker trains several shadow encoders, each on a random half of the audited samples, so that for every sample some
saw it and some did not. What LiRA does with a classifier's confidence is done with a number that is about Gaussian for
encoders: Fisher's z, atanh of the mean cosine of a sample's views, or the logarithm of its embedding's norm. Online,
the score is the ratio of the two Gaussians that the sample's own shadows give, whose distance is drawn towards the mean
over all samples (`LiRAParameters.shift`; the paper does not, and needs many shadows). Offline, only shadows that did
not see the sample are used, and the score says how far above them the target lies (one-sided, section V-D), in units
of what another such shadow would differ from the mean of these few; the threshold is a quantile of Student's
distribution. Where no shadow stands on one side of a sample, as with a single shadow, that side is the other one moved
by the mean shift.

In simulations with as much noise as shift, AUC with 4 shadows is .745 in this way, .72 offline and .68 to .69 with each
sample's own shift. The last catches up at 64 shadows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

from mi_core.attacks.base import Scores, State
from mi_core.attacks.shadows import Rows, ShadowsAttack, ShadowsParameters
from mi_core.checks import NumericError, check_choice, check_range
from mi_core.records import ALL_CALLED, Features

_LEAST = 1e-12  # below this a deviation is rounding


@dataclass(frozen=True)
class LiRAParameters(ShadowsParameters):
    """Settings of the attack.

    Args:
        shift: online, the difference between a sample's two Gaussians. ``pooled``: each sample's shift is drawn towards
            the mean shift, the more so the less shifts differ beyond what so few shadows make them differ. With 4
            shadows it is about one shift for all. ``per-sample`` (the paper): each sample's own.
        variance: ``pooled`` over samples, better with few shadows (section VI-C), or ``per-sample`` (from 4 shadows).
        location: ``mean`` (the paper) or ``median`` (its code).
        fpr: offline, the share of non-members that may be called members, in (0, 1], if the statistic is Gaussian.
        side: offline, where members lie: ``high`` or ``low``. A sample's views agree more after training; of norms the
            LpLA paper shows members below non-members (figure 4), and small encoders trained here above them.
    """

    variance: str = "pooled"
    location: str = "mean"
    fpr: float = 0.05
    side: str = "high"
    shift: str = "pooled"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("shift", "variance"):
            check_choice(name, getattr(self, name), ("pooled", "per-sample"))
        check_choice("side", self.side, ("high", "low"))
        check_choice("location", self.location, ("mean", "median"))
        check_range("fpr", self.fpr, 0, 1, open_low=True)


class LiRA(ShadowsAttack):
    """Each sample against what shadow encoders with and without it give.

    Some images look like members to every encoder. Attacks with one threshold for all take them for such; this one asks
    of each image what is usual for it. The price is the training of the shadows, on random halves of the audited
    samples themselves (``halves: 4``); with fewer than four, take its threshold for a rough one.
    """

    name = "lira"
    threat_model = (
        "embeddings of views, or one un-normalised embedding; shadow encoders trained on halves of the samples"
    )
    source = "LiRA (IEEE S&P 2022), sections IV-V, on statistics of encoders"
    Parameters = LiRAParameters

    def _fit(self, features: Features, member: npt.NDArray[np.bool_]) -> State:
        rows, values = Rows.from_ids(features.ids), self.statistic(features)
        sides = {
            side: self._side(values[places], rows.sample[places], len(rows.names))
            for side, places in {"in": member, "out": ~member}.items()
        }
        if self.parameters.variance == "per-sample":
            for side in ("in", "out") if self.parameters.mode == "online" else ("out",):
                count = sides[side].count
                if count.min() < 2:  # too few for a deviation of its own
                    raise NumericError(
                        f"lira with variance = 'per-sample' needs 2 shadows {side} of whose training data each sample "
                        f"is; {rows.names[int(np.argmin(count))]} has {count.min()}"
                    )
        if not all(found.degrees for found in sides.values()):
            few = _few(sides["in"], sides["out"], values, member)
            other: dict[str, Any] = {"deviation": np.full(len(rows.names), few[0]), "pooled": few[0], "degrees": few[1]}
            sides = {side: found if found.degrees else replace(found, **other) for side, found in sides.items()}
        outside = _filled(sides["out"], sides["in"])
        state: State = {"names": rows.names, "threshold": np.array(0.0), "out_count": outside.count}
        state |= outside.state("out")
        if self.parameters.mode == "online":
            state |= _filled(sides["in"], sides["out"]).state("in")
            state |= _with_pooled_shift(sides["in"], sides["out"]) if self.parameters.shift == "pooled" else {}
        else:
            degrees = outside.degrees if self.parameters.variance == "pooled" else int(outside.count.min()) - 1
            state["threshold"] = np.array(max(ALL_CALLED, -stdtrit(degrees, self.parameters.fpr)))
        return state

    def _side(self, values: Scores, sample_of: npt.NDArray[np.intp], size: int) -> _Side:
        """Statistics of the shadows on one side."""
        count = np.bincount(sample_of, minlength=size)
        means = np.bincount(sample_of, values, size) / np.maximum(count, 1)
        locations = means
        if self.parameters.location == "median":
            groups = np.split(values[np.argsort(sample_of, kind="stable")], np.cumsum(count)[:-1])
            locations = np.array([np.median(group) if len(group) else 0.0 for group in groups])
        squares = np.bincount(sample_of, (values - means[sample_of]) ** 2, size)
        degrees = len(values) - int((count > 0).sum())
        pooled = np.sqrt(squares.sum() / max(degrees, 1))
        deviations = np.full(size, pooled)
        if self.parameters.variance == "per-sample":
            deviations = np.sqrt(squares / np.maximum(count - 1, 1))
        return _Side(locations, np.maximum(deviations, _LEAST), count, float(max(pooled, _LEAST)), degrees)

    def _score(self, features: Features, state: State) -> Scores:
        place = self._places(state["names"], features.ids)
        value = self.statistic(features)
        outside = (value - state["out_location"][place]) / state["out_deviation"][place]
        if self.parameters.mode == "offline":  # a new value also misses the mean of so few shadows
            side = 1.0 if self.parameters.side == "high" else -1.0
            return np.asarray(side * outside / np.sqrt(1 + 1 / state["out_count"][place]))
        inside = (value - state["in_location"][place]) / state["in_deviation"][place]
        ratio = np.log(state["out_deviation"][place] / state["in_deviation"][place])
        return np.asarray(0.5 * (outside**2 - inside**2) + ratio)


@dataclass(frozen=True)
class _Side:
    """Statistics of the shadows on one side for n samples."""

    location: Scores  # (n,) of a sample's values; meaningless where ``count`` is 0
    deviation: Scores  # (n,) of a sample's values
    count: npt.NDArray[np.intp]  # (n,) shadows
    pooled: float  # deviation within samples
    degrees: int  # of freedom of ``pooled``

    def state(self, side: str) -> State:
        """The two numbers of each Gaussian, as arrays by name."""
        return {f"{side}_location": self.location, f"{side}_deviation": self.deviation}


def _few(inside: _Side, outside: _Side, values: Scores, member: npt.NDArray[np.bool_]) -> tuple[float, int]:
    """A deviation, and its degrees of freedom, where no two shadows stand on one side of a sample.

    With a shadow on either side it is read off their differences, as if all shifts were equal. With one shadow in all
    it is the deviation between samples. Both are at least as large as the noise, so that too few are called members.
    They are the same for all samples, so that the ranking does not depend on them.
    """
    both = (inside.count > 0) & (outside.count > 0)
    residuals = [(inside.location - outside.location)[both]] if both.any() else [values[member], values[~member]]
    degrees = sum(map(len, residuals)) - len(residuals)
    if degrees < 1:
        raise NumericError("lira needs 2 samples to tell a deviation from, got 1")
    squares = sum(float(((part - part.mean()) ** 2).sum()) for part in residuals)
    return max(float(np.sqrt(squares / degrees / (2 if both.any() else 1))), _LEAST), degrees


def _mean_shift(inside: _Side, outside: _Side) -> float:
    """Mean difference between a sample's two locations; between samples where none has two."""
    both = (inside.count > 0) & (outside.count > 0)
    if both.any():
        return float((inside.location - outside.location)[both].mean())
    return float(inside.location[inside.count > 0].mean() - outside.location[outside.count > 0].mean())


def _filled(own: _Side, other: _Side) -> _Side:
    """One side where samples without a shadow take the other side's location, moved by the mean shift."""
    there = other.location + _mean_shift(own, other)
    location = np.where(own.count > 0, own.location, there)
    return replace(own, location=location, count=np.where(own.count > 0, own.count, other.count))


def _with_pooled_shift(inside: _Side, outside: _Side) -> State:
    """Locations of both Gaussians from all shadows of a sample, where shifts between samples are Gaussian.

    With d the difference of a sample's two locations and s its squared standard error, shifts have the mean of d and
    the variance of d that s does not explain (at least 0). Either location is the posterior mean under this prior: a
    mean of its own side and of the other side moved by the mean shift, weighted by their precisions. A side without a
    shadow has the weight 0.
    """
    both = (inside.count > 0) & (outside.count > 0)
    precision = {side: found.count / found.pooled**2 for side, found in (("in", inside), ("out", outside))}
    shift, between = _mean_shift(inside, outside), 0.0
    if both.sum() > 1:
        difference = (inside.location - outside.location)[both]
        errors = 1 / precision["in"][both] + 1 / precision["out"][both]
        between = max(0.0, float(difference.var(ddof=1) - errors.mean()))
    locations = {}
    for side, mine, other, sign in (("in", inside, outside, 1.0), ("out", outside, inside, -1.0)):
        own, far = precision[side], precision["out" if side == "in" else "in"]
        moved = far / (1 + far * between)
        locations[f"{side}_location"] = (own * mine.location + moved * (other.location + sign * shift)) / (own + moved)
    return locations
