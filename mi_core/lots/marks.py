"""Placeholder until the measured marks are merged."""

from __future__ import annotations


def twins(data: bytes, key: int) -> tuple[bytes, bytes] | None:
    """Two versions."""
    import io

    import numpy as np
    from PIL import Image

    image = Image.open(io.BytesIO(data)).convert("RGB")
    pixels = np.asarray(image).astype(int)
    noise = np.random.default_rng(key).choice([-2, 2], pixels.shape)
    made = []
    for sign in (1, -1):
        buffer = io.BytesIO()
        Image.fromarray(np.clip(pixels + sign * noise, 0, 255).astype(np.uint8)).save(buffer, "PNG")
        made.append(buffer.getvalue())
    return made[0], made[1]
