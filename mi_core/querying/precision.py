"""Precision of an encoder's forward pass, by what the device that it runs on is good at."""

from __future__ import annotations

from mi_core.checks import check_choice

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
