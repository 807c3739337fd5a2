"""A trial that tells whether an encoder is to be asked in bfloat16 on this CPU, and weights that are ready for it."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable
from pathlib import Path
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import nn

from mi_core.encoders.checkpoint import Encoder

_INSTRUCTIONS = frozenset({"avx512_bf16", "amx_bf16", "bf16", "svebf16"})  # for products, of x86 and of ARM
_IMAGES = 16  # of a trial, from two patches of colour a side on
_ALIKE, _APART = 0.999, 0.98  # least cosine of an answer in bfloat16 and in float32: as it is, and less the mean answer


def has_bfloat16() -> bool:
    """True if this CPU has instructions for products of bfloat16; False where that cannot be told."""
    try:
        told = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    found = re.search(r"^(?:flags|Features)\s*:(.*)$", told, re.MULTILINE)
    return found is not None and not _INSTRUCTIONS.isdisjoint(found[1].split())


def tried_precision(encoders: Iterable[Encoder], channels: int, side: int) -> str:
    """The precision in which encoders are asked for such images on this CPU: bfloat16, or float32 where in doubt.

    With instructions for it bfloat16 is always faster (1.1 to 2.4 times for fifteen networks, from four convolutions to
    ViT-B, on an EPYC with AVX512-BF16), so no clock decides: the same audit on the same machine has the same precision.
    Each encoder is asked in both for images of coarse to fine noise. No answer may turn by more than a cosine of .999,
    nor by more than .98 once the mean answer is taken off, by which images are told apart.

    They are in evaluation mode. One behind an API or a defense is not tried.
    """
    plain = [one for one in encoders if type(one) is Encoder] if has_bfloat16() else []
    return "bfloat16" if plain and all(_is_alike(one, channels, side) for one in plain) else "float32"


@torch.inference_mode()
def _is_alike(encoder: Encoder, channels: int, side: int) -> bool:
    generator, size = torch.Generator().manual_seed(0), (side, side)
    drawn = (torch.rand(1, channels, cells, cells, generator=generator) for cells in range(2, 2 + _IMAGES))
    images = torch.cat([F.interpolate(one, size) for one in drawn]).contiguous(memory_format=torch.channels_last)
    plain = _answers(encoder, images)
    try:
        with torch.autocast("cpu", torch.bfloat16):
            half = _answers(copy_rounded(encoder), images)
    except RuntimeError:  # code that multiplies in one precision what comes in another
        return False
    return all(
        float(F.cosine_similarity(rows, half[name]).min()) >= _ALIKE
        and float(F.cosine_similarity(rows - rows.mean(dim=0), half[name] - half[name].mean(dim=0)).min()) >= _APART
        for name, rows in plain.items()
    )


def _answers(encoder: Encoder, images: torch.Tensor) -> dict[str, torch.Tensor]:
    """Embeddings (B, D) by output, float32."""
    return {name: rows.flatten(1).float() for name, rows in encoder(images).items()}


_PRODUCTS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.MultiheadAttention, nn.modules.linear.NonDynamicallyQuantizableLinear)
_ROUNDED: WeakKeyDictionary[Encoder, Encoder] = WeakKeyDictionary()  # while the encoder lives


def rounded(encoder: Encoder) -> Encoder:
    """The copy of `copy_rounded`, made once; the encoder is ready for queries, and its weights stay as they are."""
    if encoder not in _ROUNDED:
        copied = copy_rounded(encoder)
        if copied is encoder:
            return encoder
        _ROUNDED[encoder] = copied
    return _ROUNDED[encoder]


def copy_rounded(encoder: Encoder) -> Encoder:
    """A copy whose products of the image tower have their weights in bfloat16; what is no product is shared with it.

    Autocast rounds all weights anew in every call of inference mode, which takes longer than a ViT's products. Answers
    under autocast are the same to the last bit, but those of `nn.MultiheadAttention`: with weights in float32 it would
    compute in float32. An encoder of a kind of its own, such as one behind an API, or that cannot be copied stays.
    """
    if type(encoder) is not Encoder:
        return encoder
    texts = set() if encoder.text is None else set(encoder.text.modules())
    given = getattr(getattr(encoder.backbone, "function", None), "network", None)  # the user's own, no module of ours
    modules = {*encoder.modules(), *(given.modules() if isinstance(given, nn.Module) else ())}
    held = (one for module in modules for one in (*module.parameters(recurse=False), *module.buffers(recurse=False)))
    every = {id(tensor): tensor for tensor in held}
    for module in modules - texts:
        for weights in module.parameters(recurse=False) if type(module) in _PRODUCTS else ():
            every[id(weights)] = nn.Parameter(weights.bfloat16(), requires_grad=False)
    try:
        return copy.deepcopy(encoder, every)
    except Exception:  # noqa: BLE001 - whatever code of others raises
        return encoder
