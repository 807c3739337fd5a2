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

from mi_core import runtime
from mi_core.encoders.checkpoint import Encoder


class SplitBatchNorm2d(nn.BatchNorm2d):
    """BatchNorm2d that normalises ``splits`` interleaved parts of a training batch on their own.

    Row i belongs to part i mod splits. The running statistics are the mean over parts; evaluation is that of
    BatchNorm2d, and so are the names of the weights.
    """

    splits: int

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """(B, C, H, W) to the same; in training B must be divisible by the number of parts."""
        if not self.training:
            return super().forward(input)
        assert self.running_mean is not None and self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked += 1
        splits, momentum = self.splits, self.momentum or 0.0
        if input.is_cuda and (kernels := runtime.kernels("mi_core.encoders.batch_norm_kernels")):
            result, moments = kernels.NormalisedParts.apply(input, self.weight, self.bias, splits, self.eps)
            mean, variance = moments.mean(dim=1)
            count = input[::splits, 0].numel()
            self.running_mean.lerp_(mean, momentum)
            self.running_var.lerp_(variance * (count / (count - 1)), momentum)
            return result
        parts = input.reshape(-1, splits * input.shape[1], *input.shape[2:])  # each has channels of its own
        mean, variance, weight, bias = (
            values.repeat(splits) for values in (self.running_mean, self.running_var, self.weight, self.bias)
        )
        result = F.batch_norm(parts, mean, variance, weight, bias, True, momentum, self.eps)
        self.running_mean.copy_(mean.view(splits, -1).mean(dim=0))
        self.running_var.copy_(variance.view(splits, -1).mean(dim=0))
        return result.reshape(input.shape)


def split_batch_norm(module: nn.Module, splits: int) -> nn.Module:
    """Make every BatchNorm2d in a module a `SplitBatchNorm2d`, in place; with one part, change nothing."""
    for part in module.modules():
        if splits > 1 and type(part) is nn.BatchNorm2d:
            part.__class__, part.splits = SplitBatchNorm2d, splits  # type: ignore[assignment]
    return module


def join_batch_norm(module: nn.Module) -> nn.Module:
    """Make every `SplitBatchNorm2d` in a module a BatchNorm2d, in place, which gives the same in evaluation."""
    for part in module.modules():
        if isinstance(part, SplitBatchNorm2d):
            part.__class__ = nn.BatchNorm2d  # type: ignore[assignment]
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
