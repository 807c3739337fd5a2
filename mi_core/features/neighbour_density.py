"""How densely other images lie around an image: the mean cosine with its k nearest neighbours in a bank.

Contrastive training pushes its images away from each other, so members lie in sparser places than images that it never
saw. The bank holds images of the attacker's own, which neither group contains. N images, A in the bank, D width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from mi_core.checks import ConfigError, check_range, check_shape


def parse_neighbours(text: str) -> tuple[int, int]:
    """Neighbours k and images A of the bank, from ``k/A``.

    Raises:
        ConfigError: not two numbers, or not 1 <= k <= A.

    Example:
        >>> parse_neighbours("20/128")
        (20, 128)
    """
    try:
        nearest, bank = map(int, text.split("/"))
    except ValueError as error:
        raise ConfigError(f"neighbours:{text}, allowed: neighbours/images of the bank, as neighbours:20/128") from error
    check_range("bank", bank, 1)
    check_range("neighbours", nearest, 1, bank)
    return nearest, bank


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
