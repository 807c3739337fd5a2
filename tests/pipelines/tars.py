"""Tars for tests, whole and broken, written with the standard library."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
from PIL import Image


def image_bytes(seed: int, kind: str = "PNG", size: int = 8) -> bytes:
    """A small random image; another seed gives other pixels."""
    return file_of(np.random.default_rng(seed).integers(0, 256, (size, size, 3), dtype=np.uint8), kind)


def file_of(pixels: npt.NDArray[np.uint8], kind: str = "PNG") -> bytes:
    """(height, width, 3) pixels as an image file."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()


def tar_bytes(members: Iterable[tuple[str, bytes]]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def shard_bytes(seeds: Iterable[int], *, prefix: str = "s") -> bytes:
    """A shard of small images with classes; sample ``s0007`` holds the image of seed 7."""
    members: list[tuple[str, bytes]] = []
    for seed in seeds:
        members += [(f"{prefix}{seed:04d}.png", image_bytes(seed)), (f"{prefix}{seed:04d}.cls", b"%d" % (seed % 3))]
    return tar_bytes(members)
