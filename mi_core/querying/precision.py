"""Precision of an encoder's forward pass, by what the device that it runs on is good at."""

from __future__ import annotations

import copy
from weakref import WeakKeyDictionary

from torch import nn

from mi_core.checks import check_choice
from mi_core.encoders.checkpoint import Encoder

PRECISIONS = ("float32", "tf32", "bfloat16")
"""Precisions of a forward pass; ``tf32`` exists on CUDA alone: float32 of which products read 10 bits of mantissa."""
ASKED = ("auto", "float32", "bfloat16")
"""Choices of a user."""
WORDS = {"float32": "float32", "tf32": "float32 with TF32 products", "bfloat16": "bfloat16"}


def precision_on(device: str, asked: str) -> str:
    """The precision of `PRECISIONS` that a choice of `ASKED` means on a kind of device.

    A GPU never computes in ``float32`` proper: TF32 is many times as fast. It has a name of its own, since its
    answers differ from a CPU's by 1e-3, so that features of both are never taken for the same.

    Args:
        device: ``cuda`` or ``cpu``.
        asked: ``auto`` is bfloat16 on CUDA and float32 on the CPU, unless `precision_trial` says otherwise.

    Raises ConfigError: no such choice.

    Example:
        >>> precision_on("cpu", "auto"), precision_on("cuda", "auto"), precision_on("cuda", "float32")
        ('float32', 'bfloat16', 'tf32')
    """
    check_choice("precision", asked, ASKED)
    if asked == "auto":
        return "bfloat16" if device == "cuda" else "float32"
    return "tf32" if device == "cuda" and asked == "float32" else asked


_PRODUCTS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.MultiheadAttention, nn.modules.linear.NonDynamicallyQuantizableLinear)
_ROUNDED: WeakKeyDictionary[Encoder, Encoder] = WeakKeyDictionary()  # while the encoder lives


def rounded(encoder: Encoder) -> Encoder:
    """A copy whose products of the image tower have their weights in bfloat16; what is no product is shared with it.

    Autocast rounds all weights anew in every call of inference mode, which takes longer than a ViT's products. Answers
    under autocast are the same to the last bit, but those of `nn.MultiheadAttention`: with weights in float32 it would
    compute in float32. An encoder of a kind of its own, such as one behind an API, or that cannot be copied stays.
    """
    if type(encoder) is not Encoder:
        return encoder
    if encoder not in _ROUNDED:
        texts = set() if encoder.text is None else set(encoder.text.modules())
        every = {id(tensor): tensor for tensor in (*encoder.parameters(), *encoder.buffers())}
        for module in set(encoder.modules()) - texts:
            for weights in module.parameters(recurse=False) if type(module) in _PRODUCTS else ():
                every[id(weights)] = nn.Parameter(weights.bfloat16(), requires_grad=False)
        try:
            _ROUNDED[encoder] = copy.deepcopy(encoder, every)
        except Exception:  # noqa: BLE001 - whatever code of others raises
            return encoder
    return _ROUNDED[encoder]
