"""Decoded images of any mode as grey or RGB images of 8 bits, and what was done to them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from PIL import Image

from mi_core.image_files import ImageError
from mi_core.tiff import SIGNED, samples_of

DEPTHS = (8, 10, 12, 14, 16)  # bits that a value of 16 bits may use
_PLAIN = ("L", "RGB", "1", "P")
_WITH_ALPHA = ("LA", "La", "PA", "RGBA", "RGBa")


def eight_bits(
    image: Image.Image, depth: int | None = None, remarks: list[str] | None = None, *, deep: bool = False
) -> Image.Image:
    """A grey or RGB image of 8 bits.

    Args:
        image: of any mode.
        depth: as `Decoder` has it.
        remarks: gets what was done.
        deep: whether the file has 16 bits where the image has 8, the upper ones.

    Raises:
        ImageError: the values have no agreed range, or exceed the depth.
    """
    told = [] if remarks is None else remarks
    if image.mode.startswith("I"):
        return _scaled_to_8_bits(image, depth or 16, told)
    if image.mode == "F":
        raise ImageError("floating-point pixels have no agreed range; save it with 8 or 16 bits")
    if deep:
        highest = max(high for _, high in image.convert("RGB").getextrema())  # type: ignore[misc]
        told.append(_depth_in_words(highest << 8 | 255, scalable=False))
    if image.mode in _WITH_ALPHA or "transparency" in image.info:
        told.append("transparency dropped")
    elif image.mode not in _PLAIN:
        told.append("colours converted to RGB")
    if image.mode in ("La", "RGBa"):  # premultiplied
        image = image.convert("LA" if image.mode == "La" else "RGBA")
    if image.mode in ("1", "L", "LA"):
        return image.convert("L")
    return image.convert("RGB")


def grey_values(image: Image.Image, depth: int) -> tuple[npt.NDArray[np.int64], int, int]:
    """Values of a grey image of integers, black at 0; their bits, ``depth`` or the 12 of the file; its highest.

    Raises:
        ImageError: as `eight_bits`.
    """
    samples = samples_of(image)
    if samples.kind == SIGNED and samples.bits == depth == 16:
        raise ImageError("signed grey values have no agreed range; set depth to the bits that they use")
    values = np.asarray(image).astype(np.int64) & (0xFFFFFFFF if samples.bits == 32 and samples.kind == 1 else -1)
    low, high, depth = int(values.min()), int(values.max()), min(depth, samples.bits if samples.bits == 12 else 16)
    if low < 0 or high >= 1 << depth:
        raise ImageError(
            f"grey values from {low:,} to {high:,}, outside of the {depth} bits from 0 to {2**depth - 1:,}"
        )
    return values if samples.photometric else (1 << depth) - 1 - values, depth, high


def _scaled_to_8_bits(image: Image.Image, depth: int, remarks: list[str]) -> Image.Image:
    values, depth, high = grey_values(image, depth)
    remarks.append(_depth_in_words(high, scalable=True) if depth == 16 else f"read with 8 of {depth} bits")
    return Image.fromarray((values // (((1 << depth) - 1) // 255)).astype(np.uint8))


def _depth_in_words(highest: int, *, scalable: bool) -> str:
    """The treatment of values of 16 bits in words, by the highest of an image."""
    used = next(depth for depth in DEPTHS if highest < 1 << depth)
    if used == 16:
        return "read with 8 of 16 bits"
    remedy = f"set depth to {used}" if scalable else "save them with 8 bits"
    return f"read nearly flat, for their 16-bit values stay below {1 << used:,}; if they have {used} bits, {remedy}"
