"""Batch norm over parts of a batch: what several GPUs do to a batch, on one device.

MoCo needs batch statistics that do not tell the query from its key (He et al., CVPR 2020, section 3.3, "Shuffling
BN"); on one GPU its CIFAR-10 demo normalises parts of the batch on their own.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class SplitBatchNorm2d(nn.BatchNorm2d):
    """BatchNorm2d that normalises ``splits`` interleaved parts of a training batch on their own.

    Row i belongs to part i mod splits. The running statistics are the mean over parts; evaluation is that of
    BatchNorm2d, and so are the names of the weights.
    """

    def __init__(self, features: int, splits: int) -> None:
        super().__init__(features)
        self.splits = splits

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """(B, C, H, W) to the same; in training B must be divisible by the number of parts."""
        if not self.training:
            return super().forward(input)
        channels = input.shape[1]
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        mean, variance = self.running_mean.repeat(self.splits), self.running_var.repeat(self.splits)
        parts = _parts_to_channels(input, self.splits)
        weight, bias = self.weight.repeat(self.splits), self.bias.repeat(self.splits)
        normalised = F.batch_norm(parts, mean, variance, weight, bias, True, self.momentum or 0.0, self.eps)
        with torch.no_grad():
            self.running_mean.copy_(mean.view(self.splits, channels).mean(dim=0))
            self.running_var.copy_(variance.view(self.splits, channels).mean(dim=0))
            self.num_batches_tracked += 1
        return _channels_to_parts(normalised, input.shape)


def _parts_to_channels(images: torch.Tensor, splits: int) -> torch.Tensor:
    """Images (B, C, H, W) as (B / splits, splits C, H, W): every part has channels of its own."""
    parts = images.reshape(-1, splits, *images.shape[1:])
    if not _pixels_together(images):
        return parts.flatten(1, 2)
    return parts.permute(0, 3, 4, 1, 2).flatten(3).permute(0, 3, 1, 2)


def _channels_to_parts(parts: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """What `_parts_to_channels` made of images, in their shape again."""
    if not _pixels_together(parts):
        return parts.reshape(shape)
    by_part = parts.view(len(parts), -1, *shape[1:]).permute(0, 1, 3, 4, 2)
    return by_part.flatten(0, 1).permute(0, 3, 1, 2)


def _pixels_together(images: torch.Tensor) -> bool:
    """Whether the channels of a pixel are to stay together in memory, which CUDA wants; CPUs want them apart."""
    return images.device.type == "cuda"


def split_batch_norm(module: nn.Module, splits: int) -> nn.Module:
    """Replace every BatchNorm2d in a module by `SplitBatchNorm2d`; with one part, change nothing."""
    if splits == 1:
        return module
    for name, child in module.named_children():
        if isinstance(child, nn.BatchNorm2d):
            replaced = SplitBatchNorm2d(child.num_features, splits)
            replaced.load_state_dict(child.state_dict())
            setattr(module, name, replaced)
        else:
            split_batch_norm(child, splits)
    return module


def join_batch_norm(module: nn.Module) -> nn.Module:
    """Replace every `SplitBatchNorm2d` in a module by a BatchNorm2d, which gives the same in evaluation."""
    for name, child in module.named_children():
        if isinstance(child, SplitBatchNorm2d):
            joined = nn.BatchNorm2d(child.num_features, child.eps, child.momentum)
            joined.load_state_dict(child.state_dict())
            setattr(module, name, joined.to(child.weight).train(child.training))
        else:
            join_batch_norm(child)
    return module
