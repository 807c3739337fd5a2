"""Encoders that are only queried: batch norm becomes part of the convolution before it, a third of a small one's time.

In evaluation batch norm is a fixed scale and shift per channel, y = (x - mean) gamma / sqrt(variance + eps) + beta,
which the weights and the bias of a convolution can do alone. Embeddings change by rounding only. Batch norm that was
trained on parts of a batch does the same in evaluation and is folded too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from mi_core.encoders.batch_norm import join_batch_norm
from mi_core.encoders.checkpoint import Encoder

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

    Returns:
        How many were folded.
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
