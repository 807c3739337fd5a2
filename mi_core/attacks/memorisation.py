"""Memorisation per image, as an attack: SSLMem and CLIPMem on several shadow encoders.

**SSLMem** (Wang, Kaleem, Dziedzic, Backes, Papernot and Boenisch, "Memorization in self-supervised learning improves
downstream generalization", ICLR 2024, section 3). The alignment loss of an image x under an encoder f is the expected
distance d(f(x'), f(x'')) of two augmentations; memorisation m(x) is its mean over encoders g that were not trained on
x, less its mean over encoders f that were. As in the released code, embeddings are scaled to length 1 and d is the
2-norm. Ours differs in three ways. It takes all pairs of the views, as the definition says, where the code compares the
image itself with five augmentations. Distances are halved, so that they lie in [0, 1] and m(x) in [-1, 1]; the code
divides by the range of m over the set at hand, which makes a value depend on the other images. And encoders are not
trained with and without a single image, but on random halves of all.

**CLIPMem** (Wang, Dziedzic, Hoffmann, Nguyen, Tople, Backes, Papernot and Boenisch, "Captured by captions: on
memorization and its mitigation in CLIP models", ICLR 2025). The alignment of a pair of image I and caption T
is the expected cosine of augmentations of I with T, less the mean cosine of I with captions of pairs that no encoder
saw, less the mean cosine of T with the images of these. m(I, T) is its mean over models trained on the pair less that
over models which were not. Ours augments images and leaves captions as they are, takes the same views of I in all
terms, and does not scale the result by its range over the set.

Both papers measure a training. As an attack on a target, the score of a sample is the target's alignment less the mean
over the shadows without the sample; this use is ours. The threshold lies half-way between the mean alignment without
and with training: half the mean memorisation.

The definition (Feldman, "Does learning require memorization?", STOC 2020; for encoders Wang et al., "Memorization in
self-supervised learning improves downstream generalization", ICLR 2024, section 3): m(x) is the expected alignment of x
under encoders trained with x, less that under encoders trained without it. Alignment is a number per image and
encoder that is higher where the encoder treats the image as it treats what it was trained on.

**The estimate.** Shadows come in pairs that were trained on complementary halves of the images. So of each pair one
saw x and the other did not, and their difference d_k(x), k = 1..P, is one draw of memorisation. Encoders differ in
their alignment of all images alike; so the mean of each encoder over all images, half of which it saw, is subtracted
first. m(x) is the mean of its P differences.

**The interval per image.** Two shadows of a pair are not independent: an image that is like x stands either in the
half with x or in the half without it, and so moves both. Pairs are independent. The interval is therefore that of
P differences, by Student's t with P - 1 degrees of freedom; neither Welch's nor a pooled variance of single shadows
knows of the dependence within pairs. With few pairs the variance of one image is known badly, so it is drawn towards
that of all images (Smyth, "Linear models and empirical Bayes methods for assessing differential expression in
microarray experiments", 2004, sections 4 and 6.2): variances s^2(x) are taken to be draws around s0^2 with the weight
of d0 further degrees of freedom; both are estimated from the spread of log s^2(x) over the images. The interval holds
the truth in 95 % of images on average over images, not for each image by itself.

**The mean over images.** Pairs of shadows are the random units, and the images are those at hand: the interval is
Student's of P means, with P - 1 degrees of freedom. It says what other shadows would give for the same images.

Letters: K shadows, P pairs of them, N images.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import numpy.typing as npt
from scipy.special import polygamma, psi, stdtr, stdtrit

from mi_core.attacks.base import Attack, Scores, State, directions
from mi_core.attacks.shadows import Rows
from mi_core.checks import ConfigError, NumericError, check_finite, check_shape
from mi_core.features import Measure
from mi_core.features.caption_similarity import CaptionEmbedding
from mi_core.features.embedding import Embedding, ViewEmbeddings
from mi_core.features.pairwise_similarity import PairwiseSimilarity
from mi_core.records import BoolArray, Estimate, Features, FloatArray

LEAST_PAIRS = 2
"""Pairs of shadows that an interval takes."""
ALIGNMENT = "alignment"
"""The one number per sample and encoder that stands for all features once they are condensed."""
_ARRAYS = ("value", "low", "high", "p_value")
_Float64 = npt.NDArray[np.float64]
_LEAST = 1e-12  # below this a deviation is rounding
_MOST = 1e6  # degrees of freedom beyond which Student's distribution is the normal one


@dataclass(frozen=True)
class Memorisation:
    """The memorisation of N images."""

    value: _Float64  # (N,) memorisation, in the unit of the alignment; about 0: none
    low: _Float64  # low, high: (N,) the 95 % interval
    high: _Float64
    p_value: _Float64  # (N,) in (0, 1), one-sided, for "at most 0"
    mean: Estimate  # over the images; its n is N
    pairs: int  # P
    degrees: float  # of freedom of each image's interval, P - 1 and those lent by the other images


class MemorisationAttack(Attack):
    """An attack whose score is the memorisation of a sample by the target, and whose fit measures that by shadows."""

    reference = frozenset({"shadows"})
    least_shadows = 2

    @abstractmethod
    def alignment(self, features: Features) -> Scores:
        """(N,) how well an encoder aligns each sample, higher = more like what it was trained on."""

    def statistic(self, features: Features) -> Scores:
        """(N,) the alignment."""
        if ALIGNMENT in features.values:
            return np.asarray(features.values[ALIGNMENT], dtype=np.float64)
        return self.alignment(features)

    def condensed(self, features: Features) -> Features:
        """The alignment in place of all features; of a population its ids alone."""
        beside = None if features.population is None else Features(features.population.ids, {})
        return Features(features.ids, {ALIGNMENT: self.alignment(features)}, population=beside)

    @property
    def memorisation(self) -> Memorisation | None:
        """The memorisation of each sample, in the order of ``state()["names"]``; None with one pair of shadows.

        Raises ConfigError: the attack is not fitted.
        """
        state = self.state()
        if "pairs" not in state:
            return None
        value, low, high = (float(number) for number in state["mean"])
        mean = Estimate(value, low, high, len(state["names"]))
        arrays = {name: state[name] for name in _ARRAYS}
        return Memorisation(**arrays, mean=mean, pairs=int(state["pairs"]), degrees=float(state["degrees"]))

    def _check_needs(self, features: Features) -> None:
        if ALIGNMENT not in features.values:
            super()._check_needs(features)

    def _fit(self, features: Features, member: npt.NDArray[np.bool_]) -> State:
        rows = Rows.from_ids(features.ids)
        shape = (len(rows.shadows), len(rows.names))
        if len(rows.sample) != shape[0] * shape[1]:
            raise ConfigError(f"{self.name} needs every sample by every shadow")
        alignment, inside = np.empty(shape), np.zeros(shape, dtype=bool)
        alignment[rows.shadow, rows.sample] = self._by_shadow(features, rows)
        inside[rows.shadow, rows.sample] = member
        lacking = ~inside.any(axis=0) | inside.all(axis=0)
        if lacking.any():
            raise NumericError(
                f"{self.name} needs a shadow with and one without each sample; {rows.names[int(np.argmax(lacking))]} "
                "has only one kind; take at least 2 shadows"
            )
        outside = np.where(inside, 0.0, alignment).sum(axis=0) / (~inside).sum(axis=0)
        within = np.where(inside, alignment, 0.0).sum(axis=0) / inside.sum(axis=0)
        threshold = np.array((within - outside).mean() / 2)
        state: State = {"names": rows.names, "outside": outside, "threshold": threshold}
        if len(pairs_of(inside)) < LEAST_PAIRS:
            return state
        found = memorisation(alignment, inside)
        state |= {name: getattr(found, name) for name in _ARRAYS}
        mean = np.array([found.mean.value, found.mean.low, found.mean.high])
        return state | {"mean": mean, "pairs": np.array(found.pairs), "degrees": np.array(found.degrees)}

    def _by_shadow(self, features: Features, rows: Rows) -> Scores:
        """(K N,) the alignment of each row, by the shadow it belongs to."""
        if ALIGNMENT in features.values or not self.populated:
            return self.statistic(features)
        population = cast(Features, features.population)
        others = Rows.from_ids(population.ids)
        if not np.array_equal(rows.shadows, others.shadows):
            raise ConfigError(f"{self.name}: the population needs features by every shadow, and by no other encoder")
        found = np.empty(len(features))
        for mine, theirs in zip(rows.by_shadow(), others.by_shadow(), strict=True):
            found[mine] = self.alignment(replace(features.take(mine), population=population.take(theirs)))
        return found

    def _score(self, features: Features, state: State) -> Scores:
        place = self._places(state["names"], features.ids)
        return np.asarray(self.statistic(features) - state["outside"][place])


@dataclass(frozen=True)
class SSLMemParameters:
    """SSLMem has no settings of its own."""


class SSLMem(MemorisationAttack):
    """SSLMem: how much closer the views of an image lie than for encoders that were not trained on it.

    Use it to see which images a training memorises: the report names them, with intervals. That is measured on shadow
    encoders, on random halves of the audited samples (``halves: 8``; 4 is the least for intervals). As an attack it is
    the offline form of `lira` without its scaling. It does not say why an image is memorised.
    """

    name = "sslmem"
    threat_model = "embeddings of views; shadow encoders trained on halves of the samples"
    queries = "10 at 10 views"
    source = "SSLMem (ICLR 2024), section 3, on halves"
    Parameters = SSLMemParameters
    needs = (PairwiseSimilarity(),)

    def alignment(self, features: Features) -> Scores:
        """(N,) in [-1, 0]: minus the mean distance of two views, half the 2-norm between directions.

        The distance is taken from the cosine. In float32 cosines a distance below .0003 is rounding, in float16 ones
        (``queries.feature_precision``) a distance below .02.
        """
        cosines = np.asarray(features[PairwiseSimilarity()], dtype=np.float64)
        return np.asarray(-np.sqrt(np.maximum(2 - 2 * cosines, 0)).mean(axis=1) / 2)


@dataclass(frozen=True)
class CLIPMemParameters:
    """Settings of CLIPMem.

    Args:
        augmented: whether the expected cosine is over augmented views (the paper); else the image itself is asked once,
            which takes a tenth of the queries and of the space.
    """

    augmented: bool = True


class CLIPMem(MemorisationAttack):
    """CLIPMem: how much better image and caption fit than for models that were not trained on the pair.

    Use it as `sslmem`, on encoders with a text tower. It compares each pair with pairs that no model saw, the role
    ``known-nonmember``. It does not say whether the image or the caption is memorised.
    """

    name = "clipmem"
    threat_model = (
        "embeddings of views and of captions; shadow encoders trained on halves of the samples; a population of known "
        "non-members"
    )
    queries = "11 at 10 views"
    source = "CLIPMem (ICLR 2025), on halves"
    outputs = ("projection",)
    populated = True
    Parameters = CLIPMemParameters

    @property
    def needs(self) -> tuple[Measure, ...]:
        """Embeddings of captions, and of views or of images."""
        return ViewEmbeddings() if self.parameters.augmented else Embedding(), CaptionEmbedding()

    def alignment(self, features: Features) -> Scores:
        """(N,) in [-3, 3]: the mean cosine with the own caption, less those with foreign captions and images."""
        population = cast(Features, features.population)
        images, texts = self._directions(features)
        other_images, other_texts = (side.mean(axis=0) for side in self._directions(population))
        return np.asarray((images * (texts - other_texts)).sum(axis=1) - texts @ other_images)

    def _directions(self, features: Features) -> tuple[Scores, Scores]:
        """(N, D) the mean direction of each image's views, and the direction of its caption.

        A mean of cosines with captions is the product of mean directions.
        """
        views, texts = (features[measure] for measure in self.needs)
        each = views if views.ndim == 3 else views[:, None]
        flat = directions(each.reshape(-1, each.shape[-1])).reshape(each.shape)
        return flat.mean(axis=1, dtype=np.float64), directions(texts).astype(np.float64)


def memorisation(alignment: FloatArray, inside: BoolArray) -> Memorisation:
    """Memorisation of each image and in the mean, see the module.

    Args:
        alignment: (K, N) of each image by each shadow, higher = more like what it was trained on.
        inside: (K, N) which shadow was trained on which image. Shadows without a counterpart are left out.

    Raises ShapeError: the two differ in shape; NumericError: fewer than 2 pairs, or an alignment is NaN or infinite.

    Example:
        >>> saw = np.array([[True, False], [False, True]] * 2)
        >>> found = memorisation(np.where(saw, 0.5, 0.25), saw)
        >>> found.value.tolist(), found.pairs
        ([0.25, 0.25], 2)
    """
    shadows, images = check_shape("alignment", alignment, "K N")
    check_shape("inside", inside, "K N", K=shadows, N=images)
    check_finite("alignment", alignment)
    pairs = pairs_of(inside)
    if len(pairs) < LEAST_PAIRS:
        raise NumericError(
            f"memorisation needs {LEAST_PAIRS} pairs of shadows that were trained on complementary halves, "
            f"got {len(pairs)}"
        )
    level = np.asarray(alignment, dtype=np.float64)
    level = level - level.mean(axis=1, keepdims=True)
    first, second = np.array(pairs).T
    # (P, N) alignment by the shadow of each pair that saw the image, less that by the other one
    found = (level[first] - level[second]) * np.where(inside[first], 1, -1)
    value, count = found.mean(axis=0), len(pairs)
    variance, degrees = moderated(found.var(axis=0, ddof=1), count - 1)
    error = np.maximum(np.sqrt(variance / count), _LEAST)
    margin = stdtrit(min(degrees, _MOST), 0.975) * error
    p_value = stdtr(min(degrees, _MOST), -value / error)
    means = found.mean(axis=1)  # the pairs of shadows are the random units
    reach = float(stdtrit(count - 1, 0.975) * means.std(ddof=1) / math.sqrt(count))
    whole = float(means.mean())
    mean = Estimate(whole, whole - reach, whole + reach, images)
    return Memorisation(value, value - margin, value + margin, p_value, mean, count, degrees)


def pairs_of(inside: BoolArray) -> list[tuple[int, int]]:
    """Rows of shadows (K, N) that were trained on complementary halves, each row in one pair at most.

    Example:
        >>> pairs_of(np.array([[True, False], [True, True], [False, True]]))
        [(0, 2)]
    """
    waiting: dict[bytes, list[int]] = {}
    pairs = []
    for row, saw in enumerate(inside):
        partners = waiting.get((~saw).tobytes(), [])
        if partners:
            pairs.append((partners.pop(0), row))
        else:
            waiting.setdefault(saw.tobytes(), []).append(row)
    return sorted(pairs)


def moderated(variances: _Float64, degrees: int) -> tuple[_Float64, float]:
    """Variances drawn towards their common size, and their degrees of freedom with those lent (Smyth 2004, 6.2).

    Args:
        variances: (N,) >= 0, each from ``degrees`` degrees of freedom, at least 1.
        degrees: d.

    Returns (N,) variances, and d0 + d; infinite where the variances differ by no more than chance.
    """
    logs = np.log(np.maximum(variances, max(1e-5 * float(np.median(variances)), _LEAST**2)))
    logs = logs - psi(degrees / 2) + math.log(degrees / 2)
    centre = float(logs.mean())
    excess = float(logs.var(ddof=1)) - float(polygamma(1, degrees / 2)) if len(logs) > 1 else 0.0
    if excess <= float(polygamma(1, _MOST)):
        return np.full(len(variances), math.exp(centre)), math.inf
    from scipy.optimize import brentq  # slow to load, and most processes do without

    half = float(brentq(lambda x: float(polygamma(1, x)) - excess, 1e-6, _MOST))  # the inverse of trigamma
    prior = math.exp(centre + float(psi(half)) - math.log(half))
    lent = 2 * half
    return np.asarray((lent * prior + degrees * variances) / (lent + degrees)), lent + degrees
