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

`mi_core.metrics.memorisation` says how memorisation and its intervals are computed.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import numpy.typing as npt

from mi_core.attacks.base import Attack, Scores, State, directions
from mi_core.attacks.shadows import Rows
from mi_core.checks import ConfigError, NumericError
from mi_core.features import Measure
from mi_core.features.caption_similarity import CaptionEmbedding
from mi_core.features.embedding import Embedding, ViewEmbeddings
from mi_core.features.pairwise_similarity import PairwiseSimilarity
from mi_core.metrics.memorisation import LEAST_PAIRS, Memorisation, memorisation, pairs_of
from mi_core.records import Estimate, Features

ALIGNMENT = "alignment"
"""The one number per sample and encoder that stands for all features once they are condensed."""
_ARRAYS = ("value", "low", "high", "p_value")


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
