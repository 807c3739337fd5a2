"""Samples of TIFF files: how many bits they have, of which kind, and which of them Pillow cannot read."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any, NamedTuple

from PIL import Image, TiffImagePlugin

SIGNED = 2
_KINDS = {1: "unsigned", SIGNED: "signed", 3: "floating-point"}
_REMEDY = "pixels of this kind cannot be read; save it with 8 or 16 bits, unsigned"


class Samples(NamedTuple):
    """Samples of an image, as the tags of a TIFF number them; the defaults are of other formats."""

    bits: int = 0
    kind: int = 1
    channels: int = 1
    photometric: int = 1
    planes: bool = False

    def words(self) -> str:
        """Why they cannot be read, and what to do."""
        kind, apart = _KINDS.get(self.kind, "undefined"), " in planes" if self.planes else ""
        what = f"{self.channels} x {self.bits} bits{apart}, {kind}, photometric interpretation {self.photometric}"
        return f"a TIFF of {what}: {_REMEDY}"


def samples_of(image: Image.Image) -> Samples:
    """The samples of an image that Pillow opened."""
    return _told(image.tag_v2) if isinstance(image, TiffImagePlugin.TiffImageFile) else Samples()


def _told(tags: Mapping[int, Any]) -> Samples:
    bits = tags.get(258, (1,))
    return Samples(bits[0], tags.get(339, (1,))[0], tags.get(277, len(bits)), tags.get(262, 0), tags.get(284) == 2)


def sample_fault(image: Image.Image) -> str:
    """Why Pillow gets the pixels of a TIFF wrong that it opens; empty: it does not, or the image is no TIFF."""
    samples, raw = samples_of(image), image.info.get("compression") == "raw"
    signed = samples.kind == SIGNED and (samples.bits == 8 or (not raw and image.tag_v2.prefix == b"MM"))  # type: ignore[attr-defined]
    if signed or (samples.planes and samples.bits == 16 and raw):
        return samples.words()
    if samples.photometric == 3 and 0 < max(image.tag_v2[320]) < 256:  # type: ignore[attr-defined]
        return "the colours of the palette have 8 bits, a TIFF has 16; save it with RGB values"
    return ""


def tiff_in_words(data: bytes) -> str:
    """The samples of a TIFF that Pillow does not open, and what to do; empty: the bytes tell none."""
    try:
        tags = TiffImagePlugin.ImageFileDirectory_v2(data[: 16 if b"+" in data[2:4] else 8])
        stream = io.BytesIO(data)
        stream.seek(tags.next)
        tags.load(stream)
        return _told(tags).words() if len(tags) else ""
    except Exception:  # noqa: BLE001 - damaged tags fail in any way
        return ""
