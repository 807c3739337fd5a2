"""Training against an adversary: a layer that reverses gradients, and the adversary itself.

Shared by the defenses that are trained, or prepared, against a network that tells an attribute. B samples, D width, K
values of the attribute.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from mi_core import mlp
from mi_core.checks import VARIANTS, ConfigError, check_choice, check_range, check_shape

HIDDEN = 64  # neurons of each hidden layer (ContrastiveLeaks, section 5.2)


class _Reversal(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, values: torch.Tensor, factor: float) -> torch.Tensor:
        context.factor = factor
        return values.view_as(values)

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return -context.factor * gradients[0], None


def reverse(values: torch.Tensor, factor: float) -> torch.Tensor:
    """The values as they are; what flows back through them is multiplied by ``-factor``.

    The gradient reversal layer of Ganin et al. (JMLR 2016, section 4.2), as Talos has it between the encoder and the
    adversary (ContrastiveLeaks, CCS 2021, section 5.1): minimising the adversary's loss behind it trains the adversary
    to tell the attribute and what stands before it to hide the attribute.

    The values may have any shape. Raises ConfigError: the factor, lambda, is below 0.

    Example:
        >>> given = torch.ones(2, requires_grad=True)
        >>> reverse(3 * given, 0.5).sum().backward()
        >>> given.grad.tolist()
        [-1.5, -1.5]
    """
    check_range("factor", factor, 0)
    return _Reversal.apply(values, factor)


class Adversary(nn.Module):
    """Tells an attribute from a representation: three linear layers, 64 neurons in each of the two hidden ones.

    The adversarial classifier of Talos, and of Olympus and AttriGuard beside it (ContrastiveLeaks, CCS 2021, section
    5.2). Smaller than the attacks it stands for: that it fails does not show that they do.

    Args:
        width: D of the representation.
        values: K of the attribute.
        variant: ``paper``, or ``released`` with a ReLU on the outputs too, as the authors' script has it.

    Raises ConfigError: no such variant, or fewer than two values.
    """

    def __init__(self, width: int, values: int, variant: str = "paper") -> None:
        super().__init__()
        check_choice("variant", variant, VARIANTS)
        check_range("values of the attribute", values, 2)
        self.layers = mlp.layers(width, HIDDEN, HIDDEN, values)
        if variant == "released":
            self.layers.append(nn.ReLU())

    def forward(self, representation: torch.Tensor) -> torch.Tensor:
        """Representation (B, D) to one logit per value (B, K)."""
        return self.layers(representation)


def attribute_shares(values: torch.Tensor, count: int) -> torch.Tensor:
    """Share (K,) float64 of each value of an attribute (N,) int64, from 0 on, among ``count`` = N images.

    Raises ConfigError: a value below the largest is not there, or there are fewer than two; ShapeError: there are more
    or fewer values than images.
    """
    check_shape("attribute of the training images", values, "N", N=count)
    distinct, counts = values.cpu().unique(return_counts=True)
    if len(distinct) < 2 or not torch.equal(distinct, torch.arange(len(distinct))):
        raise ConfigError(
            f"the attribute of the training images has the values {distinct.tolist()[:9]}; number at least two from 0 "
            "on, each with an image"
        )
    return counts.double() / counts.sum()
