"""How many images a core decodes, and so how many cores feed one GPU."""

from __future__ import annotations

import io
import time
from typing import Any

import numpy as np
from PIL import Image

from docs.studies.bench.setting import dated, spread
from mi_core.images import Decoder, decode

SIDES = ((224, 224), (256, 256), (375, 500))  # height and width of the files, in pixels
WANTED = 224
TURNS, SECONDS = 5, 1.0


def photo(height: int, width: int) -> bytes:
    """A JPEG file of quality 90: smooth colours under noise, some 3 bits a pixel, as photos have them."""
    drawn = np.random.default_rng(0)
    coarse = Image.fromarray((255 * drawn.random((height // 8 + 1, width // 8 + 1, 3))).astype(np.uint8))
    smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC))
    pixels = np.clip(smooth + drawn.normal(0, 6, smooth.shape), 0, 255).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def rate(data: bytes, decoder: Decoder) -> float:
    """Images in a second of CPU time of one thread."""
    done, started = 0, time.thread_time()
    while time.thread_time() - started < SECONDS:
        decode(data, decoder)
        done += 1
    return done / (time.thread_time() - started)


def run() -> dict[str, Any]:
    """Images that one core decodes to 224 pixels a second, by the size of the files."""
    decoder = Decoder(WANTED)
    found = dated(side=WANTED, cases={})
    for height, width in SIDES:
        data = photo(height, width)
        decode(data, decoder)
        rates = [rate(data, decoder) for _ in range(TURNS)]
        found["cases"][f"{height} x {width}"] = {"bytes": len(data), "images_per_core_second": spread(rates, 1)}
    return found
