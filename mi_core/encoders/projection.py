"""Projection heads: small networks on top of a backbone that only pre-training needs (SimCLR, section 2)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import nn


def projection_head(widths: Sequence[int], *, batch_norm: bool, last_norm: bool = False) -> nn.Sequential:
    """Linear layers with ReLU between them: (B, widths[0]) to (B, widths[-1]); two widths make a linear head.

    Args:
        widths: of the backbone's embedding, of the hidden layers, of the projection.
        batch_norm: normalise the hidden layers, as SimCLR and MoCo v3 do and MoCo v2 does not.
        last_norm: normalise the result too, without learned scale (MoCo v3's projector).
    """
    layers: list[nn.Module] = []
    for index, (before, width) in enumerate(pairwise(widths)):
        last = index == len(widths) - 2
        normalised = last_norm if last else batch_norm
        layers.append(nn.Linear(before, width, bias=not normalised))
        if normalised:
            layers.append(nn.BatchNorm1d(width, affine=not last))
        if not last:
            layers.append(nn.ReLU(inplace=True))
    return nn.Sequential(*layers)
