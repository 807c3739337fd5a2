"""The membership feature of the attacks on CLIP (Ko et al., ICCV 2023, section 3): how well an image fits its caption.

CLIP is trained to raise the cosine of an image and its text, so pairs it was trained on lie closer than others.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from mi_core.checks import check_shape
from mi_core.features.measure import Measure


@dataclass(frozen=True)
class CaptionSimilarity(Measure):
    """The cosine of an image and its caption."""

    kind = "caption:cosine"
    consumes = "image"
    output = "projection"
    captions = True

    def values(self, answer: torch.Tensor, texts: torch.Tensor | None = None) -> torch.Tensor:
        """Cosines, see `caption_similarity`."""
        assert texts is not None
        return caption_similarity(answer, texts)


@dataclass(frozen=True)
class CaptionEmbedding(Measure):
    """The embedding of an image's caption."""

    kind = "caption:embedding"
    consumes = "image"
    output = "projection"
    captions = True

    def shape(self, views: int, width: int) -> tuple[int, ...]:
        """(D,)."""
        return (width,)

    def values(self, answer: torch.Tensor, texts: torch.Tensor | None = None) -> torch.Tensor:
        """Embeddings of the captions."""
        assert texts is not None
        return texts


def caption_similarity(images: torch.Tensor, texts: torch.Tensor) -> torch.Tensor:
    """Cosine of each image's embedding with that of its own caption, or of each of its captions.

    Takes images (N, D) and texts (N, D) or (N, K, D) of any length; returns (N,) or (N, K) in [-1, 1]; with an
    embedding of length 0 it is 0.
    Raises ShapeError: the shapes differ.

    Example:
        >>> caption_similarity(torch.tensor([[2.0, 0.0]]), torch.tensor([[1.0, 1.0]]))
        tensor([0.7071])
    """
    count, width = check_shape("images", images, "N D")
    check_shape("texts", texts, "N D" if texts.ndim == 2 else "N K D", N=count, D=width)
    images = images if texts.ndim == 2 else images[:, None]
    return (F.normalize(images, dim=-1) * F.normalize(texts, dim=-1)).sum(dim=-1).clamp(-1, 1)
