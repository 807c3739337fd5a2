"""MAE (He et al., "Masked autoencoders are scalable vision learners", CVPR 2022): hidden patches are rebuilt.

A vision transformer sees a quarter of the patches of one view. A small decoder rebuilds the pixels of the others, and
is thrown away after training. There is no second view, no negative and no projection.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from mi_core.checks import check_range
from mi_core.encoders.masked import (
    PatchDecoder,
    fix_positions,
    masked_errors,
    patches_along,
    transformer,
    visible_patches,
)
from mi_core.objectives.base import Objective, width_of


@dataclass(frozen=True)
class MAEParameters:
    """Settings of MAE; the defaults are the paper's (section 4, table 1).

    Args:
        masked: share of the patches that are hidden.
        decoder_width, decoder_layers, decoder_heads: of the decoder's transformer.
    """

    masked: float = 0.75
    decoder_width: int = 512
    decoder_layers: int = 8
    decoder_heads: int = 16

    def __post_init__(self) -> None:
        check_range("masked", self.masked, 0, 1, open_low=True, open_high=True)
        for name in ("decoder_width", "decoder_layers", "decoder_heads"):
            check_range(name, getattr(self, name), 1)


class MAE(Objective):
    """MAE (CVPR 2022): a transformer sees a quarter of the patches, a decoder rebuilds the pixels of the others."""

    Parameters = MAEParameters
    heads = ()
    views = 1
    rebuilds = "pixels"

    def __init__(self, backbone: nn.Module, parameters: MAEParameters) -> None:
        super().__init__()
        network, side = transformer(backbone, self.rebuilds), patches_along(backbone)
        self.backbone = backbone
        fix_positions(backbone)
        self.decoder = PatchDecoder(
            width_of(backbone),
            side,
            self.rebuilds,
            network.patch_size**2 * network.conv_proj.in_channels,
            decoder_width=parameters.decoder_width,
            layers=parameters.decoder_layers,
            heads=parameters.decoder_heads,
        )
        self.patches = side**2
        self.visible = visible_patches(self.patches, parameters.masked)

    @property
    def draws(self) -> int:
        """A random number for each patch: the patches with the lowest are visible."""
        return self.patches

    def forward(self, views: torch.Tensor, targets: torch.Tensor | None = None) -> torch.Tensor:
        """The mean reconstruction error of views (B, 1, C, S, S) under random numbers (B, L)."""
        assert targets is not None
        return masked_errors(self.backbone, self.decoder, views[:, 0], targets.argsort(dim=1), self.visible).mean()
