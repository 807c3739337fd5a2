"""Attacks on the image-text pairs of CLIP (Ko et al., "Practical membership inference attacks against large-scale
multi-modal models", ICCV 2023, section 4).

CSA, the cosine-similarity attack: a pair was trained on if image and text lie close. WSA, the weak-supervision attack:
pairs of unknown membership that lie closer than mean + lambda standard deviations of known non-members are taken for
members, and a network learns to tell them from the non-members by the embeddings of image and text.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import nn

from mi_core import mlp
from mi_core.attacks.base import Scores, State, directions
from mi_core.attacks.network import NetworkAttack, TrainingParameters
from mi_core.attacks.threshold import ConformalAttack
from mi_core.checks import NumericError, check_range
from mi_core.features.caption_similarity import CaptionEmbedding, CaptionSimilarity
from mi_core.features.embedding import Embedding
from mi_core.records import Features

_WIDTHS = (512, 256, 128)


@dataclass(frozen=True)
class CaptionCosineParameters:
    """Settings of CSA.

    Args:
        fpr: share of non-members that may be called members, in (0, 1]; .05 takes 19 known ones, .01 takes 99.
    """

    fpr: float = 0.05

    def __post_init__(self) -> None:
        check_range("fpr", self.fpr, 0, 1, open_low=True)


class CaptionCosine(ConformalAttack):
    """CSA: cosine of image and caption, with a conformal threshold from known non-members.

    One query per image, as it is. It takes the captions that the images had on the web (``.txt`` beside the image in
    shards), and an encoder whose text tower is at hand.
    """

    name = "clip-cosine"
    threat_model = "embeddings of an image and of its caption; some known non-members"
    source = "Ko et al. (ICCV 2023), section 4, cosine-similarity attack; conformal threshold"
    outputs = ("projection",)
    Parameters = CaptionCosineParameters
    needs = (CaptionSimilarity(),)

    def statistic(self, features: Features) -> Scores:
        """(N,) cosine of an image and its caption."""
        return np.asarray(features[CaptionSimilarity()], dtype=np.float64)


@dataclass(frozen=True)
class WeakSupervisionParameters(TrainingParameters):
    """Settings of WSA.

    Args:
        deviations: lambda: by how many standard deviations the cosine of a pair must exceed the mean of known
            non-members for the pair to be taken for a member; the paper tries -2.5 to 2.5.
        epochs: passes over the pairs; all are run, where the released script stops after 3 without improvement.
        batch_size: pairs per step.
    """

    deviations: float = 0.0
    learning_rate: float = 1e-3
    epochs: int = 15
    batch_size: int = 32


class WeakSupervision(NetworkAttack):
    """WSA: a network that learned from pairs close enough to be taken for members.

    What is taken for a member need not be one, so the network may learn whatever else tells close pairs from the known
    non-members: these must be of the kind of the pairs in question.
    """

    name = "clip-weak-supervision"
    threat_model = "embeddings of images and captions; some known non-members, and pairs of unknown membership"
    source = "Ko et al. (ICCV 2023), section 4, weak-supervision attack"
    reference = frozenset({"unlabelled"})
    outputs = ("projection",)
    Parameters = WeakSupervisionParameters
    needs = (CaptionSimilarity(), CaptionEmbedding(), Embedding())

    def _fit(self, features: Features, member: npt.NDArray[np.bool_]) -> State:
        cosines = np.asarray(features[CaptionSimilarity()], dtype=np.float64)
        outside = cosines[~member]
        least = outside.mean() + self.parameters.deviations * outside.std()
        pseudo = member & (cosines >= least)
        if not pseudo.any():
            raise NumericError(
                f"{self.name}: none of {member.sum()} unlabelled pairs reaches {least:.4g}; lower deviations"
            )
        kept = pseudo | ~member
        state = super()._fit(features.take(kept), pseudo[kept])
        return state | {"pseudo_members": np.array(pseudo.sum())}

    def _inputs(self, features: Features) -> npt.NDArray[np.float32]:
        """(N, 2 D) embeddings of images and of captions, each scaled to length 1."""
        return np.concatenate([directions(features[side]) for side in (Embedding(), CaptionEmbedding())], axis=1)

    def _network(self, width: int) -> nn.Module:
        return mlp.layers(width, *_WIDTHS, 1)
