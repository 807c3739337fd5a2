"""The views of PartCrop (Zhu et al., CCS 2024): one global view of an image, and small crops of that view.

Members and non-members get the same; in the released script members are cropped and non-members resized.
"""

from __future__ import annotations

import torch

from mi_core.augmentations.simclr import SimCLRAugmentation

GLOBAL_VIEW = SimCLRAugmentation(crop_scale=(0.2, 1.0), jitter_probability=0.0, grayscale=0.0)
PART = SimCLRAugmentation(crop_scale=(0.08, 0.2), flip=0.0, jitter_probability=0.0, grayscale=0.0)


def global_and_parts(
    images: torch.Tensor, streams: torch.Tensor, parts: int, *, size: int, part_size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """One random global view of each image, and random parts of that view.

    Args:
        images: (N, C, H, W) uint8, or float32 in [0, 1].
        streams: (N,) int64, from `streams.stream_keys`.
        parts: P parts per image.
        size, part_size: sides S and S' of the views and of the parts.

    Returns:
        (N, C, S, S) and (N, P, C, S', S'), float32 in [0, 1].
    """
    count = len(images)
    whole = GLOBAL_VIEW(images, streams, epoch=0, view=0, size=size)
    index = torch.arange(1, parts + 1, device=streams.device).repeat(count)
    cut = PART(
        whole.repeat_interleave(parts, dim=0), streams.repeat_interleave(parts), epoch=0, view=index, size=part_size
    )
    return whole, cut.unflatten(0, (count, parts))
