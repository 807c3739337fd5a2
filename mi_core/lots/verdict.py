"""The result of a claim: whether an encoder used what a lot published, which albums, and how much of it.

*Verdict*: ``used`` if the p-value is at most the level, else ``not shown``. A claim on all images has the exact p-value
of the draw. One that stops when it is decided has the p-value that holds at any time. Which of the two counts is fixed
before the first query.

*Level.* `LEVEL` is for all questions that are ever asked about one lot, together: the j-th has LEVEL / (j (j + 1)),
whose sum over all j is LEVEL. A question is one encoder asked in one way. So nobody gains by asking one encoder after
another, or one in many ways. To look again at the same question costs nothing if it stops when it is decided.

*Albums*: the same test within each, with Holm's correction (Scandinavian Journal of Statistics, 1979).

*Share*: a lower bound at 95 %. With images held back it is that of `mi_core.validity.sets.share.least_share`; from
captions alone the published one is held against the next one of the die: of used images at most all have it ahead, of
others a half, so that the share is at least 2 P - 1, with the lower limit of Clopper and Pearson for P.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr, ndtri

from mi_core.checks import ConfigError, check_finite, check_range, check_shape
from mi_core.hashing import digest64
from mi_core.lots import designs
from mi_core.lots.commitment import ALL
from mi_core.lots.draw import CAPTIONS, HELD_BACK, Drawn
from mi_core.metrics.delong import auc
from mi_core.metrics.intervals import clopper_pearson
from mi_core.records import BoolArray, Estimate, FloatArray
from mi_core.validity.sets.share import least_share
from mi_core.validity.verdict import holm

LEVEL = 0.01
"""The chance that any of all questions about one lot ends with a wrong ``used``."""
USED, NOT_SHOWN = "used", "not shown"
_Fits = tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]] | None


@dataclass(frozen=True)
class DesignResult:
    """The result of one design.

    Args:
        design: its name.
        published: units that bear on it; other: units held back, or again the published ones, whose private
            captions were asked about.
        p_value: exact.
        any_time_p_value: valid whenever the owner stops.
        auc: of published against other, with its interval; a caption is compared with those of all images.
    """

    design: str
    published: int
    other: int
    p_value: float
    any_time_p_value: float
    auc: Estimate


@dataclass(frozen=True)
class AlbumResult:
    """The result of one album.

    Args:
        album: its name.
        published, held_back: numbers of units.
        p_value: within the album.
        corrected_p_value: for the number of albums.
        is_used: whether that is at most the level of the claim.
    """

    album: str
    published: int
    held_back: int
    p_value: float
    corrected_p_value: float
    is_used: bool


@dataclass(frozen=True)
class ClaimResult:
    """The result of a claim.

    Args:
        verdict: `USED` or `NOT_SHOWN`.
        counted: `ALL` or `UNTIL_DECIDED`: which p-value the verdict follows.
        level: at which it was judged.
        questions_asked: about this lot so far, this one included.
        p_value: of all designs together, exact if all images were to be asked about.
        any_time_p_value: of all designs together, valid whenever the owner stops.
        units: in the lot; asked: that were asked about.
        waves: after each, how many units were asked about and the any-time p-value by then.
        designs: one by one.
        share: at least this much of what was published was used, with 95 % confidence.
        albums: in the order of their p-values.
    """

    verdict: str
    counted: str
    level: float
    questions_asked: int
    p_value: float
    any_time_p_value: float
    units: int
    asked: int
    waves: tuple[tuple[int, float], ...]
    designs: tuple[DesignResult, ...]
    share: float
    albums: tuple[AlbumResult, ...]

    @property
    def decisive_p_value(self) -> float:
        """The p-value that the verdict follows."""
        return self.p_value if self.counted == ALL else self.any_time_p_value

    def as_json(self) -> dict[str, Any]:
        """The entry of claim.json."""
        entry = asdict(self)
        for part, mine in zip(entry["designs"], self.designs, strict=True):
            part["auc"] = mine.auc.as_json()
        return entry


def level_of(questions_asked: int) -> float:
    """The level of the j-th question about a lot.

    Raises:
        ConfigError: j is below 1.

    Example:
        >>> level_of(1), round(sum(level_of(j) for j in range(1, 10_000)), 5)
        (0.005, 0.01)
    """
    check_range("questions asked", questions_asked, 1)
    return LEVEL / (questions_asked * (questions_asked + 1))


def least_auc(published: int, held_back: int) -> float:
    """The AUC of published against held-back images, at least 1 each, at which 80 % of first claims say ``used``.

    The scores are normal with equal spread, so that the test of normal scores has the power of the z test.

    Example:
        >>> round(least_auc(120, 30), 2), round(least_auc(48_000, 12_000), 2)
        (0.69, 0.51)
    """
    check_range("published", published, 1)
    check_range("held back", held_back, 1)
    apart = (ndtri(1 - level_of(1)) + ndtri(0.8)) * math.sqrt(1 / published + 1 / held_back)
    return float(ndtr(apart / math.sqrt(2)))


def judge_claim(
    drawn: Drawn,
    units: npt.NDArray[np.int64],
    waves: npt.NDArray[np.int64],
    scores: FloatArray,
    caption_scores: FloatArray | None = None,
    *,
    counted: str = ALL,
    questions_asked: int = 1,
    seed: str,
    draws: int = designs.DRAWS,
) -> ClaimResult:
    """Judge what an encoder answered.

    Args:
        drawn: the coins of the N units of the lot.
        units: (M,) numbers of those that were asked about, in an order that does not depend on the coins.
        waves: (M,) ascending numbers of the waves in which they were asked about, from `mi_core.lots.draw.waves_of`.
        scores: (M,) of the images, higher = more likely used.
        caption_scores: (M, K) of the image with each caption; None: captions were not drawn.
        counted: `ALL` or `UNTIL_DECIDED`, as it was fixed before the first query.
        questions_asked: about this lot so far, this one included.
        seed: names the random draws of the p-values; a claim has the nonce of its views.
        draws: how many of a p-value.

    Raises:
        ShapeError, ConfigError, NumericError: arrays do not fit, a unit stands twice, or a score is not finite.
    """
    (count,) = check_shape("units", units, "M")
    check_shape("scores", scores, "M", M=count)
    check_finite("scores", scores)
    if len(np.unique(units)) < count:
        raise ConfigError("a unit is asked about twice")
    images = np.asarray(scores, dtype=np.float64)
    level = level_of(questions_asked)
    mine = Drawn(drawn.strata[units], drawn.albums, drawn.held_back[units])
    found: list[tuple[DesignResult, npt.NDArray[np.float64]]] = []
    if drawn.held_back.any():
        found.append(_judge_held_back(drawn, mine, images, waves, digest64(seed, HELD_BACK), draws))
    fits = _fits_of(drawn, units, caption_scores)
    if fits is not None:
        published = ~mine.held_back & (fits[1] >= 0)
        found.append(_judge_captions(*fits, published, waves, digest64(seed, CAPTIONS), draws))
    # together the bets are a martingale from wave to wave, as those on captions know what a wave holds back
    ends = np.append(np.flatnonzero(np.diff(waves)), count - 1)
    whole = np.sum([path for _, path in found], axis=0)[ends]
    by_wave = tuple((int(end) + 1, designs.any_time_p_value(whole[: at + 1])) for at, end in enumerate(ends))
    exact = designs.joined_p_value([result.p_value for result, _ in found])
    any_time = designs.any_time_p_value(whole)
    decisive = exact if counted == ALL else any_time
    return ClaimResult(
        verdict=USED if decisive <= level else NOT_SHOWN,
        counted=counted,
        level=level,
        questions_asked=questions_asked,
        p_value=exact,
        any_time_p_value=any_time,
        units=len(drawn.strata),
        asked=count,
        waves=by_wave,
        designs=tuple(result for result, _ in found),
        share=_share(mine.held_back, images, fits),
        albums=_albums(mine, images, fits, level, seed, draws),
    )


def support_of(
    drawn: Drawn,
    units: npt.NDArray[np.int64],
    scores: FloatArray,
    caption_scores: FloatArray | None = None,
) -> npt.NDArray[np.float64]:
    """How much each answer speaks for a use: (M,) at least 0, with the sum 1.

    Whoever moves answers until a claim says ``used`` moves much of this sum, however few they are. So a checker who
    picks by it finds them, where one who picks at random misses a few well chosen ones. Half of it is even, for what
    else somebody may move.

    Args:
        drawn, units, scores, caption_scores: as in `judge_claim`.
    """
    images, held = np.asarray(scores, dtype=np.float64), drawn.held_back[units]
    found = np.zeros(len(units))
    if 0 < held.sum() < len(held):
        normal = designs.normal_scores(images)
        found += np.where(held, -normal / held.sum(), normal / (~held).sum()).clip(min=0)
    if (fits := _fits_of(drawn, units, caption_scores)) is not None:
        found += designs.contrasts(fits[0])[np.arange(len(units)), fits[1]].clip(min=0) / len(units)
    even = np.full(len(units), 1 / len(units))
    return (found / found.sum() + even) / 2 if found.any() else even


def _judge_held_back(
    drawn: Drawn, mine: Drawn, scores: npt.NDArray[np.float64], waves: npt.NDArray[np.int64], seed: int, draws: int
) -> tuple[DesignResult, npt.NDArray[np.float64]]:
    """The result, and the logarithm of the wealth after each unit."""
    sizes, back = (
        np.bincount(drawn.strata[rows], minlength=len(drawn.albums)) for rows in (slice(None), drawn.held_back)
    )
    path = designs.wealth(designs.held_back_bets(scores, mine.held_back, mine.strata, waves, sizes, back))
    held = int(mine.held_back.sum())
    published = len(scores) - held
    p_value = designs.held_back_p_value(scores, mine.held_back, mine.strata, seed=seed, draws=draws)
    estimate = auc(scores, ~mine.held_back) if min(held, published) > 1 else _UNKNOWN
    return DesignResult(HELD_BACK, published, held, p_value, designs.any_time_p_value(path), estimate), path


_UNKNOWN = Estimate(0.5, 0.0, 1.0, 0, supported=False)


def _fits_of(drawn: Drawn, units: npt.NDArray[np.int64], caption_scores: FloatArray | None) -> _Fits:
    """The scores (M, K) of all captions, and which is published (M,); None: captions were not drawn."""
    if drawn.caption is None or caption_scores is None:
        return None
    return np.asarray(caption_scores, dtype=np.float64), drawn.caption[units].astype(np.int64)


def _judge_captions(
    scores: npt.NDArray[np.float64],
    chosen: npt.NDArray[np.int64],
    published: BoolArray,
    waves: npt.NDArray[np.int64],
    seed: int,
    draws: int,
) -> tuple[DesignResult, npt.NDArray[np.float64]]:
    """The same of captions; units that are not published bet nothing."""
    gains = np.zeros(len(scores))
    asked = scores[published], chosen[published]
    if published.any():
        mine = designs.wealth(designs.chosen_bets(*asked, waves[published]))
        gains[published] = np.diff(mine, prepend=0.0)
    (count, kinds), path = asked[0].shape, np.cumsum(gains)
    is_own = np.arange(kinds) == asked[1][:, None]
    p_value = designs.chosen_p_value(*asked, seed=seed, draws=draws)
    images = np.repeat(np.arange(count), kinds)
    estimate = auc(asked[0].ravel(), is_own.ravel(), images) if count > 1 else _UNKNOWN
    return DesignResult(CAPTIONS, count, count, p_value, designs.any_time_p_value(path), estimate), path


def _share(held_back: BoolArray, scores: npt.NDArray[np.float64], fits: _Fits) -> float:
    published = ~held_back
    if not published.any():
        return 0.0
    if held_back.any():
        return least_share(scores, published).low
    if fits is None:
        return 0.0
    rows, (values, chosen) = np.flatnonzero(published), fits
    gaps = values[rows, chosen[rows]] - values[rows, (chosen[rows] + 1) % values.shape[1]]
    ahead, behind = int((gaps > 0).sum()), int((gaps < 0).sum())
    return max(0.0, 2 * clopper_pearson(ahead, max(1, ahead + behind))[0] - 1)


def _albums(
    mine: Drawn, scores: npt.NDArray[np.float64], fits: _Fits, level: float, seed: str, draws: int
) -> tuple[AlbumResult, ...]:
    """Every album that was asked about, by its p-value; none where the lot is one album."""
    if len(np.unique(mine.strata)) < 2:
        return ()
    found: list[tuple[float, str, int, int]] = []
    order = np.argsort(mine.strata, kind="stable")
    for together in np.split(order, np.flatnonzero(np.diff(mine.strata[order])) + 1):
        rows = np.sort(together)
        number = int(mine.strata[rows[0]])
        held = mine.held_back[rows]
        p_values = []
        if held.any() and not held.all():
            alone, own = np.zeros(len(rows), dtype=np.int64), digest64(seed, "album", number)
            p_values.append(designs.held_back_p_value(scores[rows], held, alone, seed=own, draws=draws))
        if fits is not None and not held.all():
            asked, own = rows[~held], digest64(seed, CAPTIONS, number)
            p_values.append(designs.chosen_p_value(fits[0][asked], fits[1][asked], seed=own, draws=draws))
        joined = designs.joined_p_value(p_values) if p_values else 1.0
        found.append((joined, mine.albums[number], int((~held).sum()), int(held.sum())))
    results = [
        AlbumResult(album, published, back, p_value, fixed, fixed <= level)
        for (p_value, album, published, back), fixed in zip(found, holm([entry[0] for entry in found]), strict=True)
    ]
    return tuple(sorted(results, key=lambda result: (result.p_value, result.album)))
