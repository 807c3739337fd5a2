"""Projection heads: small networks on top of a backbone that only pre-training needs (SimCLR, section 2)."""

from __future__ import annotations

from torch import nn


def projection_head(width: int, hidden: int, out: int, *, batch_norm: bool) -> nn.Sequential:
    """Linear - (batch norm) - ReLU - Linear: (B, width) to (B, out).

    Args:
        width: width D of the backbone's embedding.
        hidden: width of the hidden layer.
        out: width of the projection.
        batch_norm: normalise the hidden layer, as SimCLR does and MoCo v2 does not.
    """
    hidden_layer: list[nn.Module] = [nn.Linear(width, hidden, bias=not batch_norm)]
    if batch_norm:
        hidden_layer.append(nn.BatchNorm1d(hidden))
    return nn.Sequential(*hidden_layer, nn.ReLU(inplace=True), nn.Linear(hidden, out))
