"""Attacks on the image-text pairs of CLIP (Ko et al., "Practical membership inference attacks against large-scale
multi-modal models", ICCV 2023, section 4).

CSA, the cosine-similarity attack: a pair was trained on if image and text lie close. Their weak-supervision attack is
left out: it learns from pairs that CSA takes for members.

The loss attack asks more than CSA of the same answers: not how close image and text lie, but how much closer than to
other texts and images. That is the loss that CLIP is trained on, with known non-members as the rest of the batch.

Gomez ("Rethinking membership inference attacks for CLIP", AAAI 2026) attacks by that loss and by the norm of its
gradient. The released code takes the gradient at the two embeddings, so answers suffice. There the negatives are the
other pairs of a batch, which holds members only or non-members only. Small CLIPs tell what that adds. A CLIP that saw
neither side shows nothing where both are drawn by lot: AUC .51, as with a bank. But where one side holds all digits and
the other two of them, the loss in batches has AUC .77, with a bank .51. And on members by lot the norm gains .02 to .03
over mixed batches, from negatives that only somebody who knows the members can choose. So the bank here is fixed, of
known non-members. The norm was nowhere ahead of the loss with the same bank, and is left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp

from mi_core.attacks.base import Scores, State, directions
from mi_core.attacks.threshold import ConformalAttack, ConformalParameters, conformal_threshold
from mi_core.checks import NumericError, check_range
from mi_core.features.caption_similarity import CaptionEmbedding, CaptionSimilarity
from mi_core.features.embedding import Embedding
from mi_core.records import Features, FloatArray

_AT_ONCE = 4096  # pairs that are compared with the bank together


class CaptionCosine(ConformalAttack):
    """CSA: cosine of image and caption, with a conformal threshold from known non-members.

    One query per image, as it is. It takes the captions that the images had on the web (``.txt`` beside the image in
    shards), and an encoder whose text tower is at hand.
    """

    name = "clip-cosine"
    threat_model = "embeddings of an image and of its caption; some known non-members"
    source = "Ko et al. (ICCV 2023), section 4, cosine-similarity attack; conformal threshold"
    outputs = ("projection",)
    Parameters = ConformalParameters
    needs = (CaptionSimilarity(),)

    def statistic(self, features: Features) -> Scores:
        """(N,) cosine of an image and its caption."""
        return np.asarray(features[CaptionSimilarity()], dtype=np.float64)


@dataclass(frozen=True)
class PairLossParameters:
    """Settings of the loss attack.

    Args:
        temperature: by which cosines are divided, above 0; best that of the last epochs, .01 for published CLIPs.
        bank: known non-members that are the negatives, at most, from 2. On digits 64 gained as much as 500, 19 nothing.
        fpr: share of non-members that may be called members, in (0, 1]; .05 takes 19 known ones, .01 takes 99.
    """

    temperature: float = 0.02
    bank: int = 512
    fpr: float = 0.05

    def __post_init__(self) -> None:
        check_range("temperature", self.temperature, 0, open_low=True)
        check_range("bank", self.bank, 2)
        check_range("fpr", self.fpr, 0, 1, open_low=True)


class PairLoss(ConformalAttack):
    """The loss of CLIP on a pair, among known non-members as the other pairs of its batch.

    Use it in place of `clip-cosine` where 64 non-members and more are known: it asks for no more. It needs captions and
    a text tower as that does. It does not take the other pairs in question as negatives: what they are would tell as
    much as the pair itself.
    """

    name = "clip-loss"
    threat_model = "embeddings of an image and of its caption; known non-members"
    source = "CLIP (ICML 2021), figure 3, on a fixed bank; conformal threshold"
    outputs = ("projection",)
    Parameters = PairLossParameters
    needs = (Embedding(), CaptionEmbedding())

    @property
    def needed_nonmembers(self) -> int:
        """Enough for the false-positive rate ``fpr``, and two, each of which is the other's bank."""
        return max(2, super().needed_nonmembers)

    def statistic(self, features: Features) -> Scores:
        """(N,) minus the loss."""
        return self._score(features, self.state())

    def _fit(self, features: Features, member: npt.NDArray[np.bool_]) -> State:
        known = np.random.default_rng(self.seed).permutation(np.flatnonzero(~member))
        if len(known) < 2:
            raise NumericError(f"{self.name} needs 2 known non-members, got {len(known)}")
        bank = features.take(known[: self.parameters.bank])
        images, texts = _pairs(bank)
        state: State = {"bank": bank.ids, "bank_images": images, "bank_texts": texts}
        scores = self._score(features.take(known), state)
        return state | {"threshold": np.array(conformal_threshold(scores, self.parameters.fpr, self.name))}

    def _score(self, features: Features, state: State) -> Scores:
        place_of = {name: place for place, name in enumerate(state["bank"].tolist())}
        own = np.array([place_of.get(name, -1) for name in features.ids.tolist()], dtype=np.intp)
        images, texts = _pairs(features)
        bank, tau = (state["bank_images"], state["bank_texts"]), self.parameters.temperature
        losses = np.empty(len(own))
        for rows in (slice(at, at + _AT_ONCE) for at in range(0, len(own), _AT_ONCE)):
            losses[rows] = bank_losses(images[rows], texts[rows], *bank, tau, own[rows])
        return -losses


def bank_losses(
    images: FloatArray,
    texts: FloatArray,
    bank: FloatArray,
    bank_texts: FloatArray,
    temperature: float,
    own: npt.NDArray[np.intp],
) -> Scores:
    """The loss of CLIP (figure 3) on each pair, with a bank as the other pairs of its batch.

    A pair that stands in the bank is not its own negative: the others count A / (A - 1) times, so that losses of pairs
    in the bank and of others compare.

    Args:
        images, texts: (N, D) of length 1; row i of both is one pair.
        bank, bank_texts: (A, D) of length 1, A at least 2.
        temperature: tau > 0.
        own: (N,) where each pair stands in the bank, -1 for nowhere.

    Returns (N,) at least 0.

    Example:
        >>> one, two = np.eye(3)[:1], np.eye(3)[1:]
        >>> bank_losses(one, one, two, two, 1.0, np.array([-1])).round(4)
        array([0.5514])
    """
    positive = (images * texts).sum(axis=1, dtype=np.float64) / temperature
    inside = np.flatnonzero(own >= 0)
    losses = np.zeros(len(positive))
    for side, others in ((images, bank_texts), (texts, bank)):
        negative = (side @ others.T).astype(np.float64) / temperature
        negative[inside, own[inside]] = -np.inf
        negatives = logsumexp(negative, axis=1)
        negatives[inside] += math.log(len(bank) / (len(bank) - 1))
        losses += (np.logaddexp(positive, negatives) - positive) / 2
    return losses


def _pairs(features: Features) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """(N, D) directions of images and of captions."""
    return directions(features[Embedding()]), directions(features[CaptionEmbedding()])
