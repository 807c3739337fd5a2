"""Are a few images still known in full, although the encoder forgot the others? The upper tail of the scores tells.

A mean hides them: where a tenth of the images is kept, nine tenths of what an attack knew are gone. If the share w is
kept, the scores after are those before for the share w, and those on an encoder that never saw the images for the
others: F = (1 - w) F unseen + w F before. Encoders differ in the scale of their scores, so a score counts by its rank
among the controls of its own encoder.

- `Tail.least` is a lower bound of w at the 95th and the 99th percentile of the images on the encoder that never saw
  them, by the test of `mi_core.validity.sets.share.least_share`. It takes the scores of an image after and unseen as
  independent, and the images as 1 / (1 / images + 1 / controls) samples, as the ranks are among a sample of controls.
  Both make it conservative where the encoders agree.
- `Tail.excess` compares a mean of exp(z) over the images, where z is the normal quantile of an image's rank. This is
  the locally most powerful score for a small share of images that lie one standard deviation above the others (Hajek
  and Sidak, "Theory of rank tests", 1967, section II.4). Beyond, it still puts the weight where few images stand out.
- `Tail.kept_at_most` is the smallest share w such that the interval of after - w before - (1 - w) unseen, of these
  means, lies below 0 for it and for all larger ones. Its variance is that of the placements' influence, as DeLong's.

Letters: N samples = M images + K controls, S scores of each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri, stdtrit

from mi_core.checks import check_range
from mi_core.metrics.delong import placements
from mi_core.metrics.intervals import Groups
from mi_core.metrics.pooled import pool
from mi_core.records import BoolArray, Estimate, FloatArray
from mi_core.validity.sets.share import effective_size, least_share_above

PERCENTILES = (0.95, 0.99)
"""Of the images on the encoder that never saw them."""
_LEVEL = 0.025  # of the upper bound, and of all signs of kept images together
_STEPS = 200  # of the share that is kept
_Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Scored:
    """Scores of one seed: (N,) each, of the same samples in the same order, higher = more likely a member."""

    before: FloatArray  # before, after: of the attack on the encoder before and after
    after: FloatArray
    unseen: FloatArray  # of the attack on an encoder that never saw the images
    blind: FloatArray  # of the blind classifier
    member: BoolArray  # whether a sample is one of the images to be forgotten; else it is a control
    groups: npt.NDArray[np.int64] | None = None  # numbers of what the samples belong to; None: all are independent


@dataclass(frozen=True)
class Tail:
    """The evidence of the upper tail of one attack's scores that images are kept in full."""

    above: tuple[float, ...]  # share of the images that are after above each of `PERCENTILES`
    least: float  # at least this share is kept, in [0, 1]
    percentile: float | None  # of `PERCENTILES`, at which ``least`` was found; None where it is 0
    excess: Estimate  # mean weight after minus unseen
    excess_blind: Estimate  # mean weight after minus that of the blind classifier
    kept_at_most: float | None  # at most this share is kept, in steps of .005, at 97.5 % confidence; None: all may be

    @property
    def sign(self) -> str:
        """The test that found kept images: ``percentile-95``, ``percentile-99``, ``weights``; empty: none did."""
        if self.percentile is not None:
            return f"percentile-{round(100 * self.percentile)}"
        return "weights" if self.excess.low > 0 else ""

    def as_json(self) -> dict[str, Any]:
        """All fields, and ``sign`` where there is one."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        told = {name: one.as_json() if isinstance(one, Estimate) else one for name, one in values.items()}
        return {**told, "above": list(self.above), **({"sign": self.sign} if self.sign else {})}


def tail(seeds: Sequence[Scored], *, overlap: float = 0.0, attacks: int = 1) -> Tail:
    """The evidence of the upper tail, from one or more seeds.

    Args:
        seeds: at least one.
        overlap: share of a seed's samples that another seed has too, as `mi_core.metrics.pooled.pool`.
        attacks: how many are looked at. All signs of kept images together are false in at most 2.5 % (Bonferroni): each
            attack takes its part, one half of it ``least`` and one half ``excess``.

    Raises ConfigError: attacks or overlap is out of range, or ``member`` is not boolean; ShapeError, NumericError: no
    seed, scores of different lengths or not finite, or fewer than 2 samples of a kind.
    """
    check_range("attacks", attacks, 1)
    level = _LEVEL / attacks / 2
    shares = np.arange(_STEPS + 1) / _STEPS
    beyond = [[-share, 1.0, share - 1, 0.0] for share in shares.tolist()]
    found, after, unseen, worth = [], [], [], 0.0
    for one in seeds:
        scores = (one.before, one.after, one.unseen, one.blind)
        wanted = [([0.0, 1.0, -1.0, 0.0], level), ([0.0, 1.0, 0.0, -1.0], level)]
        found.append(weight_contrasts(scores, [*wanted, *((row, _LEVEL) for row in beyond)], one.member, one.groups))
        after.append(placements(one.after, one.member)[0])
        unseen.append(placements(one.unseen, one.member)[0])
        sides = (one.member, ~one.member)
        counts = [float(s.sum()) if one.groups is None else effective_size(np.asarray(one.groups)[s]) for s in sides]
        worth += 1 / sum(1 / count for count in counts)  # as how many images count whose ranks are among its controls
    excess, excess_blind, *kept = (pool(of_seeds, overlap=overlap) for of_seeds in zip(*found, strict=True))
    worth /= 1 + (len(seeds) - 1) * overlap
    least, above = least_share_above(np.concatenate(after), np.concatenate(unseen), PERCENTILES, worth, level)
    percentile = None if least.threshold is None else PERCENTILES[int(least.threshold)]
    return Tail(above, least.low, percentile, excess, excess_blind, lowest_below(shares, kept))


def lowest_below(shares: _Float64, bounds: Sequence[Estimate]) -> float | None:
    """The lowest of ascending shares from which on all intervals lie below 0; None where that of the last does not."""
    most = None
    for share, bound in zip(shares[::-1].tolist(), bounds[::-1], strict=True):
        if bound.high >= 0:
            break
        most = share
    return most


def weight_contrasts(
    scores: Sequence[FloatArray],
    wanted: Sequence[tuple[Sequence[float], float]],
    member: BoolArray,
    groups: npt.NDArray[np.int64] | None = None,
) -> list[Estimate]:
    """Weighted sums of the images' mean weights by several scores of the same samples, each with its interval.

    The weight of an image is exp(z), z = Phi^-1((K p + 1/2) / (K + 1)), where p is the share of the controls below it.

    Args:
        scores: S arrays (N,), higher = more likely a member.
        wanted: S numbers for each sum, and the chance at which its interval may miss on either side, in (0, 1/2).
        member, groups: as `mi_core.metrics.delong.auc`.

    Raises as `mi_core.metrics.delong.auc`, for any of them.

    Example:
        >>> member = np.arange(40) % 2 == 0
        >>> both = [np.arange(40.0), np.arange(40.0)]
        >>> weight_contrasts(both, [([1.0, -1.0], 0.025)], member)[0].value
        0.0
    """
    parts = [_weighed(np.asarray(one, dtype=np.float64), member) for one in scores]
    values, influences = np.array([value for value, _ in parts]), np.stack([own for _, own in parts])
    grouped = None if groups is None else Groups.from_codes(groups, member)
    estimates = []
    for row, level in wanted:
        weights = np.asarray(row, dtype=np.float64)
        own = weights @ influences
        if grouped is None:
            variance = sum(float(own[side].var(ddof=1)) * int(side.sum()) for side in (member, ~member))
            degrees = math.inf
        else:
            inside, outside = grouped.sums(own)
            variance = float(grouped.covariance(inside[None], outside[None])[0, 0])
            shares = (grouped.counts / grouped.totals[:, None]).sum(axis=0)
            degrees = grouped.degrees(shares, inside + outside) if (inside + outside).any() else math.inf
        quantile = -float(ndtri(level)) if math.isinf(degrees) else float(stdtrit(degrees, 1 - level))
        value, reach = float(weights @ values), quantile * math.sqrt(variance)
        estimates.append(Estimate(value, value - reach, value + reach, len(member)))
    return estimates


def _weighed(scores: _Float64, member: BoolArray) -> tuple[float, _Float64]:
    """The images' mean weight, and the influence (N,) of every sample on it, which sums to 0 over each kind.

    That of a control is the mean slope of the weights of the images above it, over K.
    """
    below, _ = placements(scores, member)
    images, controls = scores[member], scores[~member]
    count = len(controls)
    normal = ndtri((below * count + 0.5) / (count + 1))
    weights = np.exp(normal)
    slopes = weights * math.sqrt(2 * math.pi) * np.exp(normal**2 / 2) * count / (count + 1)
    order = np.argsort(images)
    above = np.append(np.cumsum(slopes[order][::-1])[::-1], 0.0)
    lower, upper = (np.searchsorted(images[order], controls, side) for side in ("left", "right"))
    moved = (above[lower] + above[upper]) / 2 / len(images)
    influence = np.empty(len(scores))
    influence[member] = (weights - weights.mean()) / len(images)
    influence[~member] = (moved - moved.mean()) / count
    return float(weights.mean()), influence
