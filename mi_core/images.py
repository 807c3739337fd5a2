"""Encoded images to pixels: one decoder for every role, hashed into every result.

All kinds of files become 8-bit pixels with one or three channels: grey, palette, alpha (dropped, as training pipelines
do), CMYK, 16-bit; the orientation that a camera noted is applied, unless the decoder is to leave it. What was done to
an image on the way is said with it. C channels, S side of the decoded image.
"""

from __future__ import annotations

import hashlib
import io
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import PIL
import simplejpeg
from PIL import Image

from mi_core.checks import ConfigError, check_choice, check_range
from mi_core.image_files import MOST_PIXELS, SIGNED, ImageError, has_more_frames, load_image, reason_of, samples_of

VERSION = 3  # of the decoder: a change of the pixels makes a new digest
LIBRARIES = PIL.__version__, version("simplejpeg")
INTERPOLATIONS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
CENTRE, SHORTEST, SQUASH = "centre", "shortest", "squash"
FITS = (CENTRE, SHORTEST, SQUASH)
TURNED, STORED = "turned", "stored"
ORIENTATIONS = (TURNED, STORED)
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}  # by the orientation of EXIF
_BACK = {6: 8, 8: 6}  # the others undo themselves
_LEFT = "left as stored, though EXIF data ask to turn them"
_HAS_TURNED = "turned as EXIF data ask; if the training did not turn images, set orientation to stored"
Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Decoder:
    """How files become pixels: resized with antialiasing, centre crop S x S, C channels.

    Args:
        image_size: S.
        channels: C, 1 or 3.
        interpolation: ``bilinear`` (None) or ``bicubic``, as Pillow resizes.
        fit: ``centre`` (None): the centre square is resized to S in one step. ``shortest``: the shorter side becomes
            ``resize``, then the centre is cut, as torchvision's ``Resize`` and ``CenterCrop`` do. ``squash``: both
            sides become ``resize``, then the centre is cut.
        resize: side before the crop, for ``shortest`` and ``squash``; None: S.
        scaled: whether libjpeg makes a large JPEG smaller while it decodes it: to a half, a quarter or an eighth, with
            both sides at least twice that of the resized image. Pixels change, most at fine detail; None: no.
        orientation: ``turned`` (None): upright, as the EXIF data of a file ask. ``stored``: as the pixels stand in the
            file, which is what torchvision's ``ImageFolder`` and webdataset's ``pil`` give.
        depth: bits that grey values of 16 bits use, one of 8, 10, 12, 14, 16 (None).

    Raises:
        ConfigError: S is below 1, C is neither 1 nor 3, an unknown choice, or ``resize`` is below S or without a crop.
    """

    image_size: int
    channels: int = 3
    interpolation: str | None = None
    fit: str | None = None
    resize: int | None = None
    scaled: bool | None = None
    orientation: str | None = None
    depth: int | None = None

    def __post_init__(self) -> None:
        check_range("image_size", self.image_size, 1, 4096)
        if self.channels not in (1, 3):
            raise ConfigError(f"channels = {self.channels}, allowed: 1, 3")
        check_choice("interpolation", self.interpolation or "bilinear", INTERPOLATIONS)
        check_choice("fit", self.fit or CENTRE, FITS)
        check_choice("orientation", self.orientation or TURNED, ORIENTATIONS)
        if (self.depth or 16) not in DEPTHS:
            raise ConfigError(f"depth = {self.depth}, allowed: {', '.join(map(str, DEPTHS))}")
        if self.resize is not None:
            check_range("resize", self.resize, self.image_size, 8192)
            if self.fit in (None, CENTRE):
                raise ConfigError(f"resize = {self.resize} is the side before a crop: set fit to shortest or squash")

    @property
    def least(self) -> int | None:
        """Least side in pixels to decode an image at; None: as it is."""
        return 2 * (self.resize or self.image_size) if self.scaled else None

    def settings(self) -> dict[str, int | str]:
        """The settings spelled out: two decoders of equal settings decode alike."""
        return {
            "image_size": self.image_size,
            "channels": self.channels,
            "interpolation": self.interpolation or "bilinear",
            "fit": self.fit or CENTRE,
            "resize": self.resize or self.image_size,
            "scaled": bool(self.scaled),
            "orientation": self.orientation or TURNED,
            "depth": self.depth or 16,
        }

    def digest(self) -> str:
        """Sha256 of the settings, of this code's version and of the decoding libraries'."""
        given = sorted((name, value) for name, value in asdict(self).items() if value is not None)
        return hashlib.sha256(repr((VERSION, LIBRARIES, given)).encode()).hexdigest()


def decode(data: bytes, decoder: Decoder) -> Pixels:
    """Pixels (C, S, S) of an encoded image.

    Raises:
        ImageError: the bytes are no image, are damaged, or claim more than 100 million pixels.
    """
    pixels = _plain_jpeg(data, decoder)
    return _fit(_open(data, decoder, decoder.least)[0], decoder) if pixels is None else pixels


class Decoded(NamedTuple):
    """An image as it was decoded: its pixels (C, S, S), the sha256 (hexadecimal) of its own 8-bit RGB pixels at full
    size, whatever the format of the file, its shorter side in pixels before it was resized, and remarks: what was done
    to it on the way and what could not be read, in words that are the same for all images."""

    pixels: Pixels
    sha256: str
    side: int
    remarks: tuple[str, ...]


def decode_and_hash(data: bytes, decoder: Decoder) -> Decoded:
    """Pixels of an encoded image, with their hash at full size. A decoder that scales decodes twice for it.

    Raises:
        ImageError: as `decode`.
    """
    image, remarks = _open(data, decoder)
    full = image.convert("RGB")
    digest = hashlib.sha256(f"{full.width}x{full.height}:".encode() + full.tobytes()).hexdigest()
    if data[:3] == b"\xff\xd8\xff" and _warns(data):
        remarks.append("JPEG data damaged, the pixels that can be read used")
    if has_more_frames(data):
        remarks.append("only the first of several frames or pages used")
    if image.width != image.height and decoder.fit != SQUASH:
        remarks.append("cut to the centre")
    side = decoder.resize or decoder.image_size
    if min(image.size) != side:
        remarks.append("made smaller" if min(image.size) > side else "made larger")
    pixels = decode(data, decoder) if decoder.scaled else _fit(image, decoder)
    return Decoded(pixels, digest, min(image.size), tuple(remarks))


def encode_png(pixels: Pixels) -> bytes:
    """A PNG file of pixels (H, W) or (H, W, 3)."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def encode_jpeg(pixels: Pixels, quality: int) -> bytes:
    """A JPEG file of an image (C, H, W) with one or three channels; quality in [1, 95]."""
    buffer = io.BytesIO()
    _picture(pixels).save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def blended(data: bytes, decoder: Decoder, noise: int, share: float) -> bytes:
    """A PNG file that decodes to the pixels of an encoded image, mixed with noise of its own.

    (1 - a) x + a k, rounded, where k is uniform over 0 to 255 in every pixel and channel: the blended injection of Chen
    et al., "Targeted backdoor attacks on deep learning systems using data poisoning" (2017), with a random pattern for
    each image in place of one for all.

    Args:
        data: of the image.
        decoder: that decodes both files. Its pixels are mixed, so that resizing does not average the noise away.
        noise: key of k, 0 to 2^64 - 1.
        share: a, in (0, 1]; 1: nothing but noise.

    Raises:
        ConfigError: the share is out of range.
        ImageError: as `decode`.
    """
    check_range("share", share, 0, 1, open_low=True)
    pixels = decode(data, decoder)
    words = np.random.Philox(key=noise).random_raw(-(-pixels.size // 8)).astype("<u8")
    pattern = words.view(np.uint8)[: pixels.size].reshape(pixels.shape)
    mixed = np.rint((1 - share) * pixels + share * pattern).astype(np.uint8)
    before = round(((decoder.resize or decoder.image_size) - decoder.image_size) / 2)
    after = (decoder.resize or decoder.image_size) - decoder.image_size - before
    return encode_png(np.asarray(_picture(np.pad(mixed, ((0, 0), (before, after), (before, after))))))


def shrunk(pixels: Pixels, side: int) -> Pixels:
    """An image (C, H, W) with sides of at most ``side`` pixels, as (h, w) or (h, w, 3); as it is if it fits."""
    picture = _picture(pixels)
    picture.thumbnail((side, side))
    return np.asarray(picture)


def _picture(pixels: Pixels) -> Image.Image:
    return Image.fromarray(pixels[0] if len(pixels) == 1 else np.ascontiguousarray(pixels.transpose(1, 2, 0)))


def thumbnail(pixels: Pixels) -> bytes:
    """A WebP file of an image (C, H, W) with one or three channels, its sides at most 48 pixels."""
    buffer = io.BytesIO()
    Image.fromarray(shrunk(pixels, 48)).save(buffer, "WEBP", quality=85)
    return buffer.getvalue()


def _plain_jpeg(data: bytes, decoder: Decoder) -> Pixels | None:
    """Pixels of a colour JPEG that is upright and of the wanted size, several times as fast; None: it is another file.

    They are those of `_open`: libjpeg-turbo stands behind both, and the way through Pillow takes longer than to decode
    a small image. A file that is not flawless is left for that to judge.
    """
    size, head = decoder.image_size, data[: data.find(b"\xff\xda")]
    told = b"\xff\xe1" in head or b"\xff\xee" in head  # application's data may tell of a turn or of other colours
    if data[:2] != b"\xff\xd8" or told or decoder.channels != 3 or decoder.resize not in (None, size):
        return None
    try:
        height, width, colours, _ = simplejpeg.decode_jpeg_header(data)
        if (height, width, colours) != (size, size, "YCbCr"):
            return None
        return np.ascontiguousarray(simplejpeg.decode_jpeg(data, "RGB", strict=True).transpose(2, 0, 1))
    except ValueError:
        return None


def _warns(data: bytes) -> bool:
    """True if libjpeg warns of a JPEG, such as half of one with an end marker, which Pillow does not tell."""
    try:
        colours = simplejpeg.decode_jpeg_header(data, strict=False)[2]
        simplejpeg.decode_jpeg(data, "CMYK" if colours in ("CMYK", "YCCK") else "GRAY", min_height=1, min_width=1)
    except ValueError as error:
        return str(error).startswith(("Corrupt", "Premature", "Inconsistent"))  # others: of what it cannot decode
    return False


def _open(data: bytes, decoder: Decoder, least: int | None = None) -> tuple[Image.Image, list[str]]:
    """Decode to a grey or RGB image of 8 bits, and what was done to it; ``least`` as `load_image` takes it."""
    loaded = load_image(data, least)
    image, orientation = loaded.image, loaded.orientation
    remarks = [] if loaded.metadata else ["some metadata unreadable, pixels read"]
    if orientation in _TURNS:
        stored = decoder.orientation == STORED
        remarks.append(_LEFT if stored else _HAS_TURNED)
        if stored == loaded.turned:
            image = image.transpose(_TURNS[_BACK.get(orientation, orientation) if stored else orientation])
    try:
        return eight_bits(image, decoder.depth, remarks, deep=loaded.deep), remarks
    except ImageError:
        raise
    except Exception as error:
        raise ImageError(reason_of(error)) from error


def _fit(image: Image.Image, decoder: Decoder) -> Pixels:
    image = image.convert("L" if decoder.channels == 1 else "RGB")
    image = _centre(image, decoder) if decoder.fit in (None, CENTRE) else _resized_and_cut(image, decoder)
    pixels: Pixels = np.asarray(image, dtype=np.uint8)
    return np.ascontiguousarray(pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1))


def _centre(image: Image.Image, decoder: Decoder) -> Image.Image:
    """The centre square at the wanted size, in one step: nothing outside of it is read."""
    size = decoder.image_size
    if image.size == (size, size):
        return image
    scale = size / min(image.size)
    width, height = (max(size, round(side * scale)) for side in image.size)
    left, top = (width - size) / 2 / scale, (height - size) / 2 / scale
    box = (left, top, min(image.width, left + size / scale), min(image.height, top + size / scale))
    return image.resize((size, size), INTERPOLATIONS[decoder.interpolation or "bilinear"], box=box)


def _resized_and_cut(image: Image.Image, decoder: Decoder) -> Image.Image:
    """The whole image resized, then its centre cut; sides and offsets are rounded as torchvision does."""
    size, side, shorter = decoder.image_size, decoder.resize or decoder.image_size, min(image.size)
    wanted = (side, side)
    if decoder.fit == SHORTEST:
        wanted = (int(side * image.width / shorter), int(side * image.height / shorter))
    if wanted[0] * wanted[1] > MOST_PIXELS:
        raise ImageError(f"resized to {wanted[0]} x {wanted[1]} before the crop, more than {MOST_PIXELS} pixels")
    if image.size != wanted:
        image = image.resize(wanted, INTERPOLATIONS[decoder.interpolation or "bilinear"])
    left, top = (round((whole - size) / 2) for whole in image.size)
    return image.crop((left, top, left + size, top + size))


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
        values, bits, high = grey_values(image, depth or 16)
        told.append(_depth_in_words(high, scalable=True) if bits == 16 else f"read with 8 of {bits} bits")
        return Image.fromarray((values // (((1 << bits) - 1) // 255)).astype(np.uint8))
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
    return image.convert("L" if image.mode in ("1", "L", "LA") else "RGB")


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


def _depth_in_words(highest: int, *, scalable: bool) -> str:
    """The treatment of values of 16 bits in words, by the highest of an image."""
    used = next(depth for depth in DEPTHS if highest < 1 << depth)
    if used == 16:
        return "read with 8 of 16 bits"
    remedy = f"set depth to {used}" if scalable else "save them with 8 bits"
    return f"read nearly flat, for their 16-bit values stay below {1 << used:,}; if they have {used} bits, {remedy}"
