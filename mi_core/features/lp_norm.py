"""The membership feature of LpLA (AsiaCCS 2025, section 4.2, equation 12): the p-norm of one embedding.

It needs the embedding before any normalisation of its length. The paper's formula omits the absolute value.
"""

from __future__ import annotations

import torch

from mi_core.checks import ConfigError, check_range, check_shape


def parse_order(text: str) -> float:
    """The order p written in a need: a number >= 0, or ``inf``.

    Raises:
        ConfigError: anything else.
    """
    try:
        order = float(text)
    except ValueError as error:
        raise ConfigError(f"norm of order {text!r}, allowed: a number >= 0, or inf") from error
    return check_range("norm order", order, 0)


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
