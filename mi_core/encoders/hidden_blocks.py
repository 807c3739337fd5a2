"""Blocks of patches that are hidden from a transformer, and predicted from the rest in the space of its states.

Assran et al., "Self-supervised learning from images with a joint-embedding predictive architecture" (I-JEPA, CVPR
2023), section 3. B images, L patches in a square, D width of the backbone, M blocks of H patches, K patches of context.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from mi_core.checks import check_shape
from mi_core.encoders.masked import transformer, visible_states

BLOCKS = 4
SCALE = 0.15, 0.2  # of a block in the image
_RATIO = 0.75, 1.5  # of its height to its width
_CONTEXT = 0.85, 1.0  # of the square from which the blocks are taken out


def mask_numbers(side: int) -> int:
    """Random numbers that the masks of one image take, for ``side`` ** 2 patches."""
    return 3 + 2 * (BLOCKS + 1) + side**2


def block_masks(numbers: torch.Tensor, side: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The patches that are seen and the blocks that are predicted (section 3, "targets" and "context").

    All blocks of a batch have one size, and all contexts one number of patches, so that they fit in a tensor, as in the
    released code. The size follows from the numbers of the first image. A context that has more patches than another's
    loses some by chance.

    Args:
        numbers: (B, N) uniform in [0, 1), N of `mask_numbers`.
        side: patches along a side, 2 or more.

    Returns:
        (B, K) places of patches that are seen, K at least 1, and (B, M, H) places of the blocks, which may overlap.

    Raises:
        ShapeError: N is another number.
    """
    check_shape("numbers", numbers, "B N", N=mask_numbers(side))
    sizes, corners, chance = numbers.split([3, 2 * (BLOCKS + 1), side**2], dim=1)
    scale, ratio, whole = sizes[0].tolist()
    block = _sides(side, _between(scale, *SCALE), _between(ratio, *_RATIO))
    square = _sides(side, _between(whole, *_CONTEXT), 1.0)
    corners = corners.unflatten(1, (BLOCKS + 1, 2))
    blocks = _patches(corners[:, :BLOCKS], block, side)
    hidden = torch.zeros_like(chance).scatter(1, blocks.flatten(1), 2.0)
    outside = torch.ones_like(chance).scatter(1, _patches(corners[:, BLOCKS:], square, side).flatten(1), 0.0)
    seen = (hidden + outside == 0).sum(dim=1)
    order = (hidden + outside + chance).argsort(dim=1)  # the context first, then what is outside of all, then blocks
    return order[:, : max(1, int(seen.min()))], blocks


def prediction_errors(
    backbone: nn.Module,
    predictor: nn.Module,
    images: torch.Tensor,
    context: torch.Tensor,
    blocks: torch.Tensor,
    wanted: torch.Tensor,
) -> torch.Tensor:
    """The error with which the states of hidden blocks are predicted, of each image: the mean over its M blocks.

    Each block is predicted by itself, from the context and the places of the block. The states that are wanted are
    normalised, and the error is the smooth L1 distance, both as in the released code; the paper writes the squared one.

    Args:
        backbone: a transformer without class token.
        predictor: a `masked.PatchDecoder` of states.
        images: (B, C, S, S), normalised.
        context, blocks: of `block_masks`.
        wanted: (B, L, D) states of all patches of the whole images.

    Returns:
        (B,) float32.

    Raises:
        ConfigError: the backbone is no such transformer.
        ShapeError: the shapes do not fit.
    """
    network = transformer(backbone, "states")
    batch, _, width = check_shape("wanted", wanted, "B L D", B=len(images))
    check_shape("context", context, "B K", B=batch)
    _, count, _ = check_shape("blocks", blocks, "B M H", B=batch)
    states = visible_states(network, images, context)
    several = [one.repeat_interleave(count, dim=0) for one in (states, context)]
    predicted = predictor(*several, blocks.flatten(0, 1)).float()
    of_all = F.layer_norm(wanted.float(), (width,))
    target = of_all.gather(1, blocks.flatten(1)[..., None].expand(-1, -1, width)).reshape(predicted.shape)
    errors = F.smooth_l1_loss(predicted, target, reduction="none").mean(dim=(1, 2))
    each: torch.Tensor = errors.unflatten(0, (batch, count)).mean(dim=1)
    return each


def _between(number: float, low: float, high: float) -> float:
    return low + number * (high - low)


def _sides(side: int, scale: float, ratio: float) -> tuple[int, int]:
    """Height and width of a block in patches, at least 1 and less than the image."""
    patches = int(side**2 * scale)
    height, width = (round(math.sqrt(patches * ratio)), round(math.sqrt(patches / ratio)))
    return min(max(height, 1), side - 1), min(max(width, 1), side - 1)


def _patches(corners: torch.Tensor, block: tuple[int, int], side: int) -> torch.Tensor:
    """Places (B, N, H) of the patches of blocks from random numbers (B, N, 2) for their upper left corners."""
    room = torch.tensor([side - block[0] + 1, side - block[1] + 1], device=corners.device)
    top, left = (corners * room).long().minimum(room - 1).unbind(dim=2)
    rows = torch.arange(block[0], device=corners.device).repeat_interleave(block[1])
    columns = torch.arange(block[1], device=corners.device).repeat(block[0])
    return (top[..., None] + rows) * side + left[..., None] + columns
