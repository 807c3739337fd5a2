"""The embedding itself, of an image or of its views: what networks of an attack learn from. V views, D width.

The membership feature of LpLA (AsiaCCS 2025, section 4.2, equation 12): the p-norm of one embedding.

It needs the embedding before any normalisation of its length. The paper's formula omits the absolute value.

How densely other images lie around an image: the mean cosine with its k nearest neighbours in a bank.

Contrastive training pushes its images away from each other, so members lie in sparser places than images that it never
saw. The bank holds images of the attacker's own, which neither group contains. N images, A in the bank, D width.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from mi_core.checks import check_range, check_shape
from mi_core.features.measure import Measure, Oracle
from mi_core.features.pairwise_similarity import check_drawn


@dataclass(frozen=True)
class Embedding(Measure):
    """The embedding of the image itself, un-normalised; of a classifier its logits."""

    kind = "embedding"
    consumes = "image"

    def shape(self, views: int, width: int) -> tuple[int, ...]:
        """(D,)."""
        return (width,)


@dataclass(frozen=True)
class ViewEmbeddings(Measure):
    """The embedding of each view of an image."""

    kind = "view-embeddings"
    consumes = "views"
    shares_views = True

    def shape(self, views: int, width: int) -> tuple[int, ...]:
        """(V, D)."""
        return views, width

    def first_views(self, values: np.ndarray, drawn: int, used: int) -> np.ndarray:
        """(N, V D) becomes (N, V, D) of the views that are used."""
        check_drawn(drawn, used)
        return values.reshape(len(values), drawn, -1)[:, :used]


@dataclass(frozen=True)
class LpNorm(Measure):
    """The p-norm of the embedding of an image.

    Args:
        order: p >= 0, or infinity.
    """

    order: float = 2.0

    kind = "norm"
    consumes = "image"

    def __post_init__(self) -> None:
        check_range("norm order", self.order, 0)

    def values(self, answer: torch.Tensor, texts: torch.Tensor | None = None) -> torch.Tensor:
        """Norms, see `lp_norm`."""
        return lp_norm(answer, self.order)


def lp_norm(embeddings: torch.Tensor, order: float = 2.0) -> torch.Tensor:
    """The p-norm (sum |v|^p)^(1/p) of each embedding; order 0 counts non-zero coordinates, inf takes the largest.

    Args:
        embeddings: (N, D), un-normalised.
        order: p >= 0; the paper uses 2 and tries 0 to 5.

    Returns (N,) >= 0.
    Raises ShapeError: embeddings is not (N, D); ConfigError: a negative order.

    Example:
        >>> lp_norm(torch.tensor([[3.0, -4.0]]), 1)
        tensor([7.])
    """
    check_shape("embeddings", embeddings, "N D")
    return torch.linalg.vector_norm(embeddings, ord=check_range("norm order", order, 0), dim=1)


@dataclass(frozen=True)
class NeighbourDensity(Measure):
    """The mean cosine of an image with its nearest neighbours in a bank.

    Args:
        neighbours: k, from 1 to A.
        bank: A, at least 1.
    """

    neighbours: int = 20
    bank: int = 128

    kind = "neighbours"
    consumes = "image"

    def __post_init__(self) -> None:
        check_range("bank", self.bank, 1)
        check_range("neighbours", self.neighbours, 1, self.bank)

    @property
    def query(self) -> str:
        """Its own: the answers are compared with the bank at once."""
        return self.name

    def answers(self, oracle: Oracle, sent: torch.Tensor | None) -> dict[str, torch.Tensor]:
        """Densities, see `neighbour_density`."""
        assert sent is not None
        embeddings, bank = oracle.embed(sent), oracle.bank(self.bank)
        densities = {
            output: neighbour_density(rows, bank[output], self.neighbours) for output, rows in embeddings.items()
        }
        for output, rows in densities.items():
            oracle.check(f"{output}, neighbours", rows[:, None])
        return densities


def neighbour_density(embeddings: torch.Tensor, bank: torch.Tensor, nearest: int) -> torch.Tensor:
    """Mean cosine of each embedding with the ``nearest`` of a bank that it is most similar to.

    Args:
        embeddings: (N, D) of any length.
        bank: (A, D) by the same encoder.
        nearest: k, from 1 to A.

    Returns (N,) in [-1, 1].
    Raises ShapeError: the widths differ; ConfigError: k is out of range.

    Example:
        >>> neighbour_density(torch.eye(2), torch.tensor([[2.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]), nearest=2)
        tensor([0.5000, 0.5000])
    """
    _, width = check_shape("embeddings", embeddings, "N D")
    size, _ = check_shape("bank", bank, "A D", D=width)
    check_range("nearest", nearest, 1, size)
    cosines = F.normalize(embeddings, dim=1) @ F.normalize(bank, dim=1).T
    return cosines.topk(nearest, dim=1).values.mean(dim=1).clamp(-1, 1)
