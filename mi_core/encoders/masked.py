"""Masked vision transformers: a backbone sees a few patches of an image, and a decoder rebuilds the pixels of the rest.

He, Chen, Xie, Li, Dollár, Girshick, "Masked autoencoders are scalable vision learners" (CVPR 2022), sections 3 and A.
B images, L patches of P x P pixels, D width of the backbone.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from mi_core.checks import ConfigError, check_range, check_shape

_LEAST = 1e-6  # added to the variance of a patch


class PixelDecoder(nn.Module):
    """The decoder of an MAE: what the backbone tells of the visible patches to the pixels of all patches.

    Args:
        width: D, of the backbone.
        side: patches along a side of an image; L = ``side`` ** 2.
        pixels: numbers of a patch, P * P * C.
        decoder_width, layers, heads: of its transformer.
    """

    positions: torch.Tensor
    heads: torch.Tensor

    def __init__(self, width: int, side: int, pixels: int, *, decoder_width: int, layers: int, heads: int) -> None:
        from torchvision.models.vision_transformer import EncoderBlock

        super().__init__()
        norm = partial(nn.LayerNorm, eps=1e-6)
        self.embed = nn.Linear(width, decoder_width)
        self.mask_token = nn.Parameter(torch.empty(1, 1, decoder_width).normal_(std=0.02))
        self.register_buffer("positions", sine_positions(side, decoder_width))
        self.register_buffer("heads", torch.tensor(heads))  # which no weight tells
        self.blocks = nn.Sequential(
            *(EncoderBlock(heads, decoder_width, 4 * decoder_width, 0.0, 0.0, norm) for _ in range(layers))
        )
        self.norm = norm(decoder_width)
        self.pixels = nn.Linear(decoder_width, pixels)

    def forward(self, states: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
        """The pixels (B, L, P * P * C) of all patches.

        Args:
            states: (B, 1 + K, D) of the class token and the K visible patches.
            order: (B, L) a permutation of the patches, the visible ones first.
        """
        known = self.embed(states)
        hidden = self.mask_token.expand(len(order), order.shape[1] + 1 - known.shape[1], -1)
        patches = torch.cat([known[:, 1:], hidden], dim=1)
        at_home = patches.gather(1, order.argsort(dim=1)[..., None].expand_as(patches))
        tokens: torch.Tensor = torch.cat([known[:, :1], at_home], dim=1) + self.positions
        rebuilt: torch.Tensor = self.pixels(self.norm(self.blocks(tokens)))
        return rebuilt[:, 1:]


def masked_errors(
    backbone: nn.Module,
    decoder: nn.Module,
    images: torch.Tensor,
    order: torch.Tensor,
    visible: int,
    *,
    normalised: bool = True,
) -> torch.Tensor:
    """The reconstruction error of MAE, of each image: the mean squared error over its hidden patches.

    The pixels of each patch are normalised by their own mean and deviation, as the paper's best models have it
    (section 3, "reconstruction target"), or taken as they are, as its models for pictures have it.

    Args:
        backbone: a vision transformer of torchvision with one class token.
        decoder: see `PixelDecoder`.
        images: (B, C, S, S), normalised.
        order: (B, L) a permutation of the patches, the visible ones first.
        visible: K, from 1 to L - 1.
        normalised: whether each patch is.

    Returns:
        (B,) float32.

    Raises:
        ConfigError: the backbone is no such transformer, or all patches are visible or none.
        ShapeError: order is not (B, L).
    """
    network = transformer(backbone)
    tokens = network._process_input(images)
    batch, patches, width = tokens.shape
    check_shape("order", order, "B L", B=batch, L=patches)
    check_range("visible patches", visible, 1, patches - 1)
    positions = network.encoder.pos_embedding
    shown = (tokens + positions[:, 1:]).gather(1, order[:, :visible, None].expand(-1, -1, width))
    first = (network.class_token + positions[:, :1]).expand(batch, -1, -1)
    states = network.encoder.ln(network.encoder.layers(torch.cat([first, shown], dim=1)))
    target = patch_pixels(images, network.patch_size)
    if normalised:
        mean, variance = target.mean(dim=2, keepdim=True), target.var(dim=2, keepdim=True)
        target = (target - mean) / (variance + _LEAST).sqrt()
    errors = (decoder(states, order).float() - target).square().mean(dim=2)
    hidden: torch.Tensor = errors.gather(1, order[:, visible:])
    return hidden.mean(dim=1)


def transformer(backbone: nn.Module) -> Any:
    """The backbone itself.

    Raises:
        ConfigError: it is no vision transformer of torchvision with one class token, whose patches can be left out.
    """
    token = getattr(backbone, "class_token", None)
    if type(backbone).__name__ != "VisionTransformer" or token is None or token.shape[1] != 1:
        raise ConfigError(
            f"a backbone of type {type(backbone).__name__} cannot leave patches out; take a vision transformer without "
            "registers, such as vit-tiny/4"
        )
    return backbone


def patch_count(backbone: nn.Module) -> int:
    """L, the patches of an image. Raises as `transformer`."""
    network = transformer(backbone)
    return int((network.image_size // network.patch_size) ** 2)


def patch_pixels(images: torch.Tensor, patch: int) -> torch.Tensor:
    """The pixels of each patch: (B, C, S, S) to (B, L, P * P * C), patches and pixels row by row, colours last.

    Example:
        >>> patch_pixels(torch.arange(16.0).reshape(1, 1, 4, 4), 2)[0, 1]
        tensor([2., 3., 6., 7.])
    """
    return images.unfold(2, patch, patch).unfold(3, patch, patch).permute(0, 2, 3, 4, 5, 1).flatten(3).flatten(1, 2)


def visible_patches(patches: int, masked: float) -> int:
    """How many of L patches stay visible, at least 1 and not all.

    Example:
        >>> visible_patches(196, 0.75), visible_patches(4, 0.9)
        (49, 1)
    """
    return min(max(1, int(patches * (1 - masked))), patches - 1)


def sine_positions(side: int, width: int) -> torch.Tensor:
    """Fixed positions (1, 1 + L, width) of a square of patches: sines and cosines of row and column; 0 of the class.

    Args:
        side: patches along a side, L = ``side`` ** 2.
        width: divisible by 4.

    Raises:
        ConfigError: it is not.
    """
    if width % 4:
        raise ConfigError(f"positions of sines need a width that 4 divides, not {width}")
    rates = 10000.0 ** -(torch.arange(width // 4) / (width // 4))
    rows = torch.arange(side).repeat_interleave(side)[:, None] * rates
    columns = torch.arange(side).repeat(side)[:, None] * rates
    waves = torch.cat([columns.sin(), columns.cos(), rows.sin(), rows.cos()], dim=1)  # columns first, as released
    return torch.cat([torch.zeros(1, width), waves])[None]
