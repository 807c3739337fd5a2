"""An encoder behind HTTP: its settings, and the encoder that asks it."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import torch
from torch import nn

from mi_core.checks import check_shape
from mi_core.encoders.checkpoint import Encoder
from mi_core.encoders.remote.client import Client


class Endpoint(Encoder):
    """An encoder behind HTTP, queried like any other: images (B, C, H, W) in [0, 1] to (B, D) by output.

    What is sent is an 8-bit PNG of each image: rounding to the nearest of 256 values is part of the query.

    Args:
        client: asks for embeddings.
    """

    def __init__(self, client: Client) -> None:
        mean, std = torch.zeros(1, 1, 1, 1), torch.ones(1, 1, 1, 1)
        super().__init__(nn.Identity(), {}, mean, std, size=client.parameters.size)
        self.client = client

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the embeddings."""
        return self.client.parameters.outputs

    def forward(self, images: torch.Tensor, *, cached: bool = True) -> dict[str, torch.Tensor]:
        """Embeddings as answered, by output. Raises as `Client.embed`."""
        embeddings = self.client.embed(png_bytes(self._resized(images)), cached=cached)
        return {output: torch.from_numpy(array).to(images.device) for output, array in embeddings.items()}


_COLOURS = {1: 0, 3: 2}  # channels: PNG's colour type


def png_bytes(images: torch.Tensor) -> list[bytes]:
    """One PNG file of 8 bits per channel for each image.

    The pixels are stored, not compressed, which takes a twentieth of the time.

    Images are (N, C, H, W) float in [0, 1], of 1 or 3 channels, and rounded to the nearest of 256 values.

    Raises ShapeError: another number of axes; KeyError: another number of channels.
    """
    (count, channels, height, width) = check_shape("images", images, "N C H W")
    rounded = (images.detach().float() * 255).round_().clamp_(0, 255).to(torch.uint8)
    pixels = rounded.permute(0, 2, 3, 1).reshape(count, height, width * channels).cpu().numpy()
    rows = np.zeros((count, height, 1 + width * channels), dtype=np.uint8)  # each row starts with its filter: none
    rows[:, :, 1:] = pixels
    header = struct.pack(">IIBBBBB", width, height, 8, _COLOURS[channels], 0, 0, 0)
    start, end = b"\x89PNG\r\n\x1a\n" + _part(b"IHDR", header), _part(b"IEND", b"")
    return [start + _part(b"IDAT", zlib.compress(image.tobytes(), 0)) + end for image in rows]


def _part(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
