"""The shape that a backbone is built for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ImageShape:
    """C colour channels, side of the image and, for transformers, of its patches in pixels."""

    channels: int
    size: int
    patch: int = 0
