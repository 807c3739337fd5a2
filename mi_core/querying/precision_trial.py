"""A trial that tells whether an encoder answers sooner in bfloat16 on this CPU."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F

from mi_core.encoders.checkpoint import Encoder

_INSTRUCTIONS = frozenset({"avx512_bf16", "amx_bf16", "bf16", "svebf16"})  # for products, of x86 and of ARM
_IMAGES, _SECONDS, _TRIES = 16, 0.5, 3  # of a trial: images of a call, after how long it ends, and calls at most
_GAIN = 1.1  # how many times as fast bfloat16 has to be
_ALIKE = 0.999  # least cosine of an answer in bfloat16 and in float32


class Tried(NamedTuple):
    """An encoder, and the channels and the side of the images that it is asked for."""

    encoder: Encoder
    channels: int
    side: int


def has_bfloat16() -> bool:
    """True if this CPU has instructions for products of bfloat16; False where that cannot be told."""
    try:
        told = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    found = re.search(r"^(?:flags|Features)\s*:(.*)$", told, re.MULTILINE)
    return found is not None and not _INSTRUCTIONS.isdisjoint(found[1].split())


def tried_precision(encoders: Iterable[Tried]) -> str:
    """The precision in which encoders answer sooner on this CPU: bfloat16, or float32 wherever there is a doubt.

    An old CPU is not tried. Another one is asked for images of noise in both precisions, half a second each.
    bfloat16 has to be a tenth faster over all, and no answer may turn by more than a cosine of .999.

    Args:
        encoders: in evaluation mode. One behind an API or a defense is not tried.
    """
    if not has_bfloat16():
        return "float32"
    whole, half = 0.0, 0.0
    for encoder, channels, side in encoders:
        if type(encoder) is not Encoder:
            continue
        noise = torch.rand(_IMAGES, channels, side, side, generator=torch.Generator().manual_seed(0))
        images = noise.contiguous(memory_format=torch.channels_last)
        (plain, seconds), (rounded, sooner) = (_answers(encoder, images, enabled) for enabled in (False, True))
        whole, half = whole + seconds, half + sooner
        if any(bool((F.cosine_similarity(plain[name], rounded[name]) < _ALIKE).any()) for name in plain):
            return "float32"
    return "bfloat16" if whole > _GAIN * half else "float32"


@torch.inference_mode()
def _answers(encoder: Encoder, images: torch.Tensor, bfloat16: bool) -> tuple[dict[str, torch.Tensor], float]:
    """Embeddings (B, D) by output as float32, and the least seconds of a call."""
    began, best = time.perf_counter(), float("inf")
    for _ in range(_TRIES):
        start = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            found = encoder(images)
        best = min(best, time.perf_counter() - start)
        if time.perf_counter() - began > _SECONDS:
            break
    return {name: rows.flatten(1).float() for name, rows in found.items()}, best
