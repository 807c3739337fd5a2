"""The membership feature of LpLA (AsiaCCS 2025, section 4.2, equation 12): the p-norm of one embedding.

It needs the embedding before any normalisation of its length. The paper's formula omits the absolute value.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mi_core.checks import check_range, check_shape
from mi_core.features.measure import Measure


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

    Returns:
        (N,) >= 0.

    Raises:
        ShapeError: embeddings is not (N, D).
        ConfigError: a negative order.

    Example:
        >>> lp_norm(torch.tensor([[3.0, -4.0]]), 1)
        tensor([7.])
    """
    check_shape("embeddings", embeddings, "N D")
    norms: torch.Tensor = torch.linalg.vector_norm(embeddings, ord=check_range("norm order", order, 0), dim=1)
    return norms
