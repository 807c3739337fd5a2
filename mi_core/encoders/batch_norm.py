"""Batch norm over parts of a batch: what several GPUs do to a batch, on one device.

MoCo needs batch statistics that do not tell the query from its key (He et al., CVPR 2020, section 3.3, "Shuffling
BN"); on one GPU its CIFAR-10 demo normalises parts of the batch on their own.

Encoders that are only queried: batch norm becomes part of the convolution before it, a third of a small one's time.

In evaluation batch norm is a fixed scale and shift per channel, y = (x - mean) gamma / sqrt(variance + eps) + beta,
which the weights and the bias of a convolution can do alone. Embeddings change by rounding only. Batch norm that was
trained on parts of a batch does the same in evaluation and is folded too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from mi_core.encoders.checkpoint import Encoder


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


COMPILED = ("ResNet", "VisionTransformer", "PatchMean", "CLIPBackbone")
"""Families of backbones that are compiled where that is asked for; others are too small, or code of others."""


def for_queries(encoder: Encoder, device: torch.device | str, *, compile: bool = False) -> Encoder:
    """Make an encoder ready to be queried, in place: evaluation, no gradients of weights, on a device, folded.

    The weights are no longer those of the file; `checkpoint.fingerprint` is to be taken before.

    Args:
        encoder: to be queried.
        device: where.
        compile: compile the backbone (`torch.compile`) where it is a ResNet or a vision transformer and the device a
            GPU; the first batch and the first of another size take a minute or more.
    """
    join_batch_norm(encoder).eval().requires_grad_(False)
    for module in (encoder.backbone, *encoder.heads.values()):
        fold_batch_norm(module)
    if compile and torch.device(device).type == "cuda" and type(encoder.backbone).__name__ in COMPILED:
        encoder.backbone.compile()
    return encoder.to(device).to(memory_format=torch.channels_last)


def fold_batch_norm(module: nn.Module) -> int:
    """Fold every ``BatchNorm2d`` that follows a ``Conv2d`` into it, in place; the batch norm becomes an identity.

    Folded are pairs where the batch norm alone reads what the convolution gives, and each is called once. A module
    that cannot be traced (`torch.fx`), as code of others may be, stays as it is.

    Args:
        module: in evaluation mode.

    Returns how many were folded.
    """
    if module.training or not any(type(part) is nn.BatchNorm2d for part in module.modules()):
        return 0
    try:
        graph = fx.Tracer().trace(module)
    except Exception:  # noqa: BLE001 - whatever code of others raises when its input is no tensor
        return 0
    pairs = list(_pairs(module, graph))
    for convolution, norm in pairs:
        before, after = module.get_submodule(convolution), module.get_submodule(norm)
        module.set_submodule(convolution, fuse_conv_bn_eval(before, after))  # type: ignore[type-var, arg-type]
        module.set_submodule(norm, nn.Identity())
    return len(pairs)


def _pairs(module: nn.Module, graph: fx.Graph) -> Iterator[tuple[str, str]]:
    """Names of the convolutions and batch norms to join."""
    calls = Counter(node.target for node in graph.nodes if node.op == "call_module")
    for node in graph.nodes:
        if not _is(module, node, nn.BatchNorm2d) or calls[node.target] > 1:
            continue
        (source,) = node.args
        tracked = module.get_submodule(node.target).track_running_stats
        if tracked and _is(module, source, nn.Conv2d) and calls[source.target] == 1 and len(source.users) == 1:
            yield source.target, node.target


def _is(module: nn.Module, node: Any, kind: type[nn.Module]) -> bool:
    called = isinstance(node, fx.Node) and node.op == "call_module"
    return called and type(module.get_submodule(str(node.target))) is kind
