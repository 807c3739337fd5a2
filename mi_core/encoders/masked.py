"""Masked vision transformers: a backbone sees a few patches of an image, and a decoder tells of the rest.

He, Chen, Xie, Li, Dollár, Girshick, "Masked autoencoders are scalable vision learners" (CVPR 2022), sections 3 and A:
there the decoder tells the pixels. That of I-JEPA tells states (`mi_core.encoders.hidden_blocks`).
B images, L patches of P x P pixels, D width of the backbone, T class tokens: 1, or 0 for I-JEPA.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from mi_core.checks import ConfigError, check_range, check_shape

CLASS_TOKENS = {"pixels": 1, "states": 0}
"""What a decoder rebuilds of hidden patches, and the class tokens of the backbones that are trained so."""
_LEAST = 1e-6  # added to the variance of a patch


class PatchDecoder(nn.Module):
    """From what the backbone tells of visible patches to hidden ones: MAE's decoder, and I-JEPA's predictor.

    Args:
        width: D, of the backbone.
        side: patches along a side of an image; L = ``side`` ** 2.
        rebuilds: ``pixels`` of patches (MAE), from visible patches and a class token, or their ``states`` (I-JEPA).
        numbers: of a patch that it tells: P * P * C, or D.
        decoder_width, layers, heads: of its transformer.
    """

    positions: torch.Tensor
    heads: torch.Tensor

    def __init__(
        self, width: int, side: int, rebuilds: str, numbers: int, *, decoder_width: int, layers: int, heads: int
    ) -> None:
        from torchvision.models.vision_transformer import EncoderBlock

        super().__init__()
        norm = partial(nn.LayerNorm, eps=1e-6)
        self.embed = nn.Linear(width, decoder_width)
        self.mask_token = nn.Parameter(torch.empty(1, 1, decoder_width).normal_(std=0.02))
        self.rebuilds = rebuilds
        self.class_tokens = CLASS_TOKENS[rebuilds]
        self.register_buffer("positions", sine_positions(side, decoder_width, self.class_tokens))
        self.register_buffer("heads", torch.tensor(heads))  # which no weight tells
        self.blocks = nn.Sequential(
            *(EncoderBlock(heads, decoder_width, 4 * decoder_width, 0.0, 0.0, norm) for _ in range(layers))
        )
        self.norm = norm(decoder_width)
        self.numbers = nn.Linear(decoder_width, numbers)

    def forward(self, states: torch.Tensor, visible: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """The prediction (B, H, numbers) of hidden patches.

        Args:
            states: (B, T + K, D) of the class token, if there is one, and of the visible patches.
            visible: (B, K) their places.
            hidden: (B, H) places of the hidden ones.
        """
        token, patches = self.positions.split([self.class_tokens, self.positions.shape[1] - self.class_tokens], dim=1)
        places = torch.cat([visible, hidden], dim=1)
        at = patches.expand(len(places), -1, -1).gather(1, places[..., None].expand(-1, -1, patches.shape[2]))
        known = self.embed(states)
        masked = self.mask_token.expand(len(hidden), hidden.shape[1], -1)
        tokens = torch.cat([known, masked], dim=1) + torch.cat([token.expand(len(at), -1, -1), at], dim=1)
        told: torch.Tensor = self.numbers(self.norm(self.blocks(tokens))[:, known.shape[1] :])
        return told


def masked_errors(
    backbone: nn.Module,
    decoder: nn.Module,
    images: torch.Tensor,
    order: torch.Tensor,
    visible: int,
) -> torch.Tensor:
    """The reconstruction error of MAE, of each image: the mean squared error over its hidden patches.

    The pixels of each patch are normalised by their own mean and deviation, as the paper's best models have it
    (section 3, "reconstruction target").

    Args:
        backbone: a vision transformer of torchvision with one class token.
        decoder: that rebuilds pixels, see `PatchDecoder`.
        images: (B, C, S, S), normalised.
        order: (B, L) a permutation of the patches, the visible ones first.
        visible: K, from 1 to L - 1.

    Returns:
        (B,) float32.

    Raises:
        ConfigError: the backbone is no such transformer, or all patches are visible or none.
        ShapeError: order is not (B, L).
    """
    network = transformer(backbone, "pixels")
    check_shape("order", order, "B L", B=len(images), L=patches_along(backbone) ** 2)
    check_range("visible patches", visible, 1, order.shape[1] - 1)
    seen, hidden = order[:, :visible], order[:, visible:]
    target = patch_pixels(images, network.patch_size)
    mean, variance = target.mean(dim=2, keepdim=True), target.var(dim=2, keepdim=True)
    target = (target - mean) / (variance + _LEAST).sqrt()
    told = decoder(visible_states(backbone, images, seen), seen, hidden).float()
    wanted = target.gather(1, hidden[..., None].expand_as(told))
    errors: torch.Tensor = (told - wanted).square().mean(dim=(1, 2))
    return errors


def visible_states(backbone: Any, images: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
    """The states (B, T + K, D) of a backbone's class tokens and visible patches, when it sees no other.

    Args:
        backbone: of `transformer`.
        images: (B, C, S, S), normalised.
        visible: (B, K) places of patches.
    """
    tokens, encoder, count = backbone._process_input(images), backbone.encoder, backbone.class_token.shape[1]
    shown = (tokens + encoder.pos_embedding[:, count:]).gather(1, visible[..., None].expand(-1, -1, tokens.shape[2]))
    first = (backbone.class_token + encoder.pos_embedding[:, :count]).expand(len(images), -1, -1)
    states: torch.Tensor = encoder.ln(encoder.layers(torch.cat([first, shown], dim=1)))
    return states


def transformer(backbone: nn.Module, rebuilds: str) -> Any:
    """The backbone itself.

    Args:
        backbone: any.
        rebuilds: what a decoder is to rebuild from it, a key of `CLASS_TOKENS`.

    Raises:
        ConfigError: it is no vision transformer of torchvision, with the one class token of MAE or without as I-JEPA's,
            whose patches can be left out.
    """
    tokens = getattr(backbone, "class_token", None)
    if not hasattr(backbone, "_process_input") or tokens is None or tokens.shape[1] != CLASS_TOKENS[rebuilds]:
        kind = "a vision transformer without registers, such as vit-tiny/4"
        kind = kind if CLASS_TOKENS[rebuilds] else "a vision transformer without a class token, such as vit-tiny-gap/4"
        raise ConfigError(
            f"a backbone of type {type(backbone).__name__} cannot leave patches out to rebuild {rebuilds}; take {kind}"
        )
    return backbone


def patches_along(backbone: Any) -> int:
    """Patches along a side of an image, of a backbone of `transformer`; L is its square."""
    return int(backbone.image_size // backbone.patch_size)


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


def fix_positions(backbone: Any) -> None:
    """Replace the positions that a transformer learns by `sine_positions`, which stand still."""
    positions, tokens = backbone.encoder.pos_embedding, backbone.class_token.shape[1]
    positions.data.copy_(sine_positions(patches_along(backbone), positions.shape[2], tokens))
    positions.requires_grad_(False)


def sine_positions(side: int, width: int, class_tokens: int = 1) -> torch.Tensor:
    """Fixed positions (1, T + L, width) of a square of patches: sines and cosines of row and column; 0 of the class.

    Args:
        side: patches along a side, L = ``side`` ** 2.
        width: divisible by 4.
        class_tokens: T.

    Raises:
        ConfigError: it is not.
    """
    if width % 4:
        raise ConfigError(f"positions of sines need a width that 4 divides, not {width}")
    rates = 10000.0 ** -(torch.arange(width // 4) / (width // 4))
    rows = torch.arange(side).repeat_interleave(side)[:, None] * rates
    columns = torch.arange(side).repeat(side)[:, None] * rates
    waves = torch.cat([columns.sin(), columns.cos(), rows.sin(), rows.cos()], dim=1)  # columns first, as released
    return torch.cat([torch.zeros(class_tokens, width), waves])[None]
