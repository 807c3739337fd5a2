"""I-JEPA (Assran et al., "Self-supervised learning from images with a joint-embedding predictive architecture", CVPR
2023): the states of hidden blocks are predicted from the rest of the image.

A transformer sees a part of one view. A small predictor tells the states that a second transformer, which follows by
momentum and sees the whole view, gives at hidden blocks. There are no pixels, no second view and no negatives.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from mi_core.checks import check_range
from mi_core.encoders.hidden_blocks import block_masks, mask_numbers, prediction_errors
from mi_core.encoders.masked import PatchDecoder, fix_positions, patches_along, transformer
from mi_core.encoders.tokens import feature_map
from mi_core.objectives.base import MomentumObjective, width_of


@dataclass(frozen=True)
class IJEPAParameters:
    """Settings of I-JEPA; the defaults are those of its ViT-H (section 4 and the released code).

    Args:
        momentum: of the target encoder in the first step; it rises to 1 in a line.
        predictor_width, predictor_layers, predictor_heads: of the predictor's transformer.
    """

    momentum: float = 0.996
    predictor_width: int = 384
    predictor_layers: int = 12
    predictor_heads: int = 16

    def __post_init__(self) -> None:
        check_range("momentum", self.momentum, 0, 1)
        for name in ("predictor_width", "predictor_layers", "predictor_heads"):
            check_range(name, getattr(self, name), 1)


class IJEPA(MomentumObjective):
    """I-JEPA (CVPR 2023): from a part of an image the states of hidden blocks are predicted; no pixels, no pairs."""

    Parameters = IJEPAParameters
    heads = ()
    copied = ()
    views = 1
    rebuilds = "states"

    def __init__(self, backbone: nn.Module, parameters: IJEPAParameters) -> None:
        super().__init__()
        self.side = patches_along(transformer(backbone, self.rebuilds))
        self.backbone = backbone
        fix_positions(backbone)
        self.decoder = PatchDecoder(
            width_of(backbone),
            self.side,
            self.rebuilds,
            width_of(backbone),
            decoder_width=parameters.predictor_width,
            layers=parameters.predictor_layers,
            heads=parameters.predictor_heads,
        )
        self.momentum = parameters.momentum
        self.add_key_encoder()

    @property
    def draws(self) -> int:
        """The random numbers of the masks."""
        return mask_numbers(self.side)

    def forward(self, views: torch.Tensor, targets: torch.Tensor | None = None) -> torch.Tensor:
        """The mean error of the predictions of views (B, 1, C, S, S) under random numbers (B, N)."""
        assert targets is not None
        images, (context, blocks) = views[:, 0], block_masks(targets, self.side)
        with torch.no_grad():
            wanted = feature_map(self.key_backbone, images)
        return prediction_errors(self.backbone, self.decoder, images, context, blocks, wanted).mean()

    def after_step(self, progress: float) -> None:
        """Move the target encoder after the encoder, ever more slowly."""
        self.follow(self.momentum + (1 - self.momentum) * progress)
