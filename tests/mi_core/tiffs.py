"""The smallest TIFF files of any samples, written byte by byte: Pillow writes few kinds."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

import numpy as np

_KINDS = {"u": 1, "i": 2, "f": 3}


def tiff_bytes(
    pixels: np.ndarray,
    photometric: int,
    *,
    planes: bool = False,
    packed: bool = False,
    bits: int | None = None,
    extra: Sequence[int] = (),
    palette: Sequence[int] = (),
) -> bytes:
    """A TIFF of pixels (H, W) or (H, W, C), in the byte order of their type.

    Args:
        pixels: of the file, as they stand in it.
        photometric: 0 white is zero, 1 black is zero, 2 RGB, 3 palette, 5 CMYK.
        planes: whether every channel stands apart.
        packed: whether the bytes are deflated.
        bits: of a sample; None: those of the type. Fewer are packed, most significant bit first.
        extra: kinds of samples beyond the colours; 2: alpha.
        palette: colours, 0 to 65535, all red before all green.
    """
    height, width, *rest = pixels.shape
    count, big = (rest or [1])[0], pixels.dtype.str[0] == ">"
    layers = np.moveaxis(pixels, -1, 0) if planes else [pixels]
    parts = [_bytes(layer, bits) for layer in layers]
    parts = [zlib.compress(part) for part in parts] if packed else parts
    tags = {
        256: ("I", [width]),
        257: ("I", [height]),
        258: ("H", [bits or 8 * pixels.itemsize] * count),
        259: ("H", [8 if packed else 1]),
        262: ("H", [photometric]),
        273: ("I", [0] * len(parts)),
        277: ("H", [count]),
        278: ("I", [height]),
        279: ("I", [len(part) for part in parts]),
        284: ("H", [2 if planes else 1]),
        320: ("H", palette),
        338: ("H", extra),
        339: ("H", [_KINDS[pixels.dtype.kind]] * count),
    }
    tags = {tag: value for tag, value in tags.items() if value[1]}
    order, kinds = ">" if big else "<", {"H": 3, "I": 4}
    start = 8 + 2 + 12 * len(tags) + 4
    data = start + sum(size for kind, values in tags.values() if (size := len(values) * struct.calcsize(kind)) > 4)
    tags[273] = ("I", [data + sum(map(len, parts[:place])) for place in range(len(parts))])
    table, beyond = struct.pack(order + "H", len(tags)), b""
    for tag, (kind, values) in sorted(tags.items()):
        value = struct.pack(f"{order}{len(values)}{kind}", *values)
        if len(value) > 4:
            beyond, value = beyond + value, struct.pack(order + "I", start + len(beyond))
        table += struct.pack(order + "HHI", tag, kinds[kind], len(values)) + value.ljust(4, b"\0")
    return struct.pack(order + "2sHI", b"MM" if big else b"II", 42, 8) + table + bytes(4) + beyond + b"".join(parts)


def _bytes(layer: np.ndarray, bits: int | None) -> bytes:
    if bits is None:
        return np.ascontiguousarray(layer).tobytes()
    rows = np.unpackbits(layer.astype(">u2").view(np.uint8).reshape(len(layer), -1, 2), axis=2)[:, :, 16 - bits :]
    return np.packbits(rows.reshape(len(layer), -1), axis=1).tobytes()
