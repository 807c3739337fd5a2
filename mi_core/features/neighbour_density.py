"""How densely other images lie around an image: the mean cosine with its k nearest neighbours in a bank.

Contrastive training pushes its images away from each other, so members lie in sparser places than images that it never
saw. The bank holds images of the attacker's own, which neither group contains. N images, A in the bank, D width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from mi_core.checks import check_range, check_shape
from mi_core.features.measure import Measure, Oracle


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

    Returns:
        (N,) in [-1, 1].

    Raises:
        ShapeError: the widths differ.
        ConfigError: k is out of range.

    Example:
        >>> neighbour_density(torch.eye(2), torch.tensor([[2.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]), nearest=2)
        tensor([0.5000, 0.5000])
    """
    _, width = check_shape("embeddings", embeddings, "N D")
    size, _ = check_shape("bank", bank, "A D", D=width)
    check_range("nearest", nearest, 1, size)
    cosines = F.normalize(embeddings, dim=1) @ F.normalize(bank, dim=1).T
    return cosines.topk(nearest, dim=1).values.mean(dim=1).clamp(-1, 1)
