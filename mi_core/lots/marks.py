"""Two versions of an image that no eye tells apart, of which a coin publishes one: the *twins* of a lot.

A *mark* d is a faint change of the pixels, a function of a key and of the size. The versions are x + d and x - d, so
that neither is nearer to the original x, and what tells them apart is 2 d. Where a pixel is too near to black or white
for both, its mark is cut. The amplitude is the largest of `_STEPS` for which both files, decoded, keep `LEAST_PSNR`
and `LEAST_SSIM` against the original (Wang, Bovik, Sheikh and Simoncelli, "Image quality assessment", IEEE
Transactions on Image Processing, 2004).

    colour    a few cosines of half a cycle to four cycles per image, in luminance and in both colour differences; no
              channel changes by more than 3 levels, as neither limit sees colours well
    warp      a displacement u by at most half a pixel, itself of such cosines; d is its first order, u times the
              gradient of bicubic resampling (Keys, 1981, with a = -1/2), the part that changes its sign with u
    pattern   noise of a band in luminance: 1/8 to 1/4 cycles per pixel, as random plane waves (Rice, 1944); of an
              image whose shorter side exceeds 256 pixels as if it were shrunk to that

Files keep what stands around the pixels, byte for byte: the application's segments and comments of a JPEG with what
follows its end, the ancillary chunks of a PNG. A signature over the pixels fits no longer. A JPEG keeps its tables of
quantisation, its chroma subsampling and whether it is progressive. Pixels are marked as they are stored, whatever turn
the metadata ask for. A palette without transparency becomes RGB.

Letters: H, W, C height, width and channels of an image.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile, get_sampling

from mi_core.checks import ShapeError, check_choice, check_range, check_shape
from mi_core.image_files import HEAD, format_of, has_more_frames, load_image, png_chunks
from mi_core.images import Pixels

COLOUR, WARP, PATTERN = "colour", "warp", "pattern"
MARKS = (COLOUR, WARP, PATTERN)
"""Kinds of marks; the first is the default."""
DEFAULT = MARKS[0]
LEAST_PSNR, LEAST_SSIM = 38.0, 0.98
"""Of each version against the original; dB, and at most 1."""
_STEPS = 32
"""Amplitudes that are tried, each 2 ** -(1 / 8) of the one before."""
_WAVES, _NOISE_WAVES = 6, 64  # cosines of a smooth field and of noise
_GRID, _BAND_SIDE = 512, 256  # shorter side at which a field is computed, and at which the band of noise is told
_MOST_COLOUR = 3.0  # levels of any channel: a difference of 1 to 4 in CIELAB, of which 2.3 is just noticed (Mahy, 1994)
_RGB_OF_YCC = np.array([[1, 0, 1.402], [1, -0.344136, -0.714136], [1, 1.772, 0]])  # JFIF 1.02
_LUMINANCE = np.array([0.299, 0.587, 0.114])  # ITU-R BT.601
_WINDOW, _SIGMA = 11, 1.5  # Wang et al., section III-C
_STRIP = 32  # rows at a time, which fit the cache
T = TypeVar("T")
_FloatImage = npt.NDArray[np.float64]


def twins(data: bytes, key: int, kind: str = DEFAULT) -> tuple[bytes, bytes] | None:
    """Two versions of an encoded image, with +mark and with -mark: the same input always gives the same files.

    Args:
        data: a file.
        key: of the mark, 0 to 2^64 - 1.
        kind: one of `MARKS`.

    Returns:
        Files of the same format with the same metadata. None: the image is left alone. Only JPEG and PNG carry marks;
        not animations and files of several pictures, 16 bits, CMYK, transparency of a palette or of one colour, what
        Pillow cannot write (other subsampling than 4:4:4, 4:2:2 and 4:2:0, several scans with 1.5 bytes a pixel or
        more), images that are black and white all over, and those that lose too much when merely encoded again.

    Raises:
        ImageError: the bytes are no image or damaged.
        ConfigError: there is no such kind, or the key is out of range.
    """
    check_choice("kind", kind, MARKS)
    check_range("key", key, 0, 2**64 - 1)
    source = _source(data)
    if source is None:
        return None
    mark = _mark(source.pixels, key, kind)

    def near_by_pixels(step: int) -> tuple[_Version, _Version] | None:
        pair = _versions(source, mark * np.float32(2 ** (-step / 8)))
        return pair if all(psnr(source.pixels, each.seen) >= LEAST_PSNR for each in pair) else None

    def near(step: int) -> tuple[_Version, _Version] | None:
        pair = near_by_pixels(step)
        alike = pair is not None and all(ssim(source.pixels, each.seen) >= LEAST_SSIM for each in pair)
        return pair if alike else None

    step, pair = _strongest(0, near_by_pixels)  # many times as fast
    if pair is not None:
        step, pair = _strongest(step, near)
    if pair is None or np.array_equal(pair[0].seen, pair[1].seen):
        return None
    first, second = (each.file or source.encode(each.seen) for each in pair)
    return first, second


def _strongest(first: int, near: Callable[[int], T | None]) -> tuple[int, T | None]:
    """The first step that is near enough, by bisection, and what it gives; None: there is none."""
    best = near(first)
    low, high = first + 1, first if best is not None else _STEPS
    while low < high:
        middle = (low + high) // 2
        made = near(middle)
        if made is None:
            low = middle + 1
        else:
            high, best = middle, made
    return high, best


def psnr(first: Pixels, second: Pixels) -> float:
    """Peak signal-to-noise ratio in dB, over all channels; infinite for equal images.

    Args:
        first, second: (H, W, C) uint8.

    Raises:
        ShapeError: they differ in shape, or are empty.
    """
    _check_pair(first, second)
    squares = np.square(first.astype(np.int32) - second).sum(dtype=np.int64)
    return 10 * math.log10(255**2 * first.size / int(squares)) if squares else math.inf


def ssim(first: Pixels, second: Pixels) -> float:
    """Mean structural similarity of the luminance, at most 1.

    Wang et al. (2004), section III: windows of 11 x 11 with Gaussian weights of sigma 1.5 that lie within the image,
    K1 = .01, K2 = .03, no downsampling. The luminance is that of ITU-R BT.601. Along a side shorter than 11 pixels the
    window has that side, with the Gaussian in its middle.

    Args:
        first, second: (H, W, C) uint8, C 1 or 3.

    Raises:
        ShapeError: they differ in shape, are empty, or have another number of channels.
    """
    _check_pair(first, second)
    if first.shape[2] not in (1, 3):
        raise ShapeError(f"images of {first.shape[2]} channels have no luminance, expected 1 or 3")
    height = first.shape[0]
    rows, columns = (_gaussian(min(_WINDOW, side)) for side in first.shape[:2])
    total, count = 0.0, 0
    for start in range(0, height - len(rows) + 1, _STRIP):
        part = slice(start, min(height, start + _STRIP + len(rows) - 1))
        a, b = _luminance(first[part]), _luminance(second[part])
        mean_a, mean_b, squares, ab = (_averaged(each, rows, columns) for each in (a, b, a * a + b * b, a * b))
        variances = squares - mean_a**2 - mean_b**2
        c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
        similar = (2 * mean_a * mean_b + c1) * (2 * (ab - mean_a * mean_b) + c2)
        similar /= (mean_a**2 + mean_b**2 + c1) * (variances + c2)
        total, count = total + float(similar.sum()), count + similar.size
    return total / count


def _check_pair(first: Pixels, second: Pixels) -> None:
    height, width, channels = check_shape("first", first, "H W C")
    check_shape("second", second, "H W C", H=height, W=width, C=channels)
    if not first.size:
        raise ShapeError(f"images of shape {first.shape} are empty")


def _luminance(pixels: Pixels) -> _FloatImage:
    return pixels[..., 0].astype(np.float64) if pixels.shape[2] == 1 else pixels @ _LUMINANCE


def _gaussian(taps: int) -> _FloatImage:
    weights = np.exp(-((np.arange(taps) - (taps - 1) / 2) ** 2) / (2 * _SIGMA**2))
    return np.asarray(weights / weights.sum())


def _averaged(plane: _FloatImage, rows: _FloatImage, columns: _FloatImage) -> _FloatImage:
    """Weighted means over all windows within the image, for weights that are symmetric."""
    height, width = (side - len(taps) + 1 for side, taps in zip(plane.shape, (rows, columns), strict=True))
    tall = _symmetric_sum([plane[at : at + height] for at in range(len(rows))], rows)
    return _symmetric_sum([tall[:, at : at + width] for at in range(len(columns))], columns)


def _symmetric_sum(parts: list[_FloatImage], weights: _FloatImage) -> _FloatImage:
    total = parts[len(parts) // 2] * weights[len(parts) // 2] if len(parts) % 2 else np.zeros_like(parts[0])
    both = np.empty_like(total)
    for at in range(len(parts) // 2):
        np.add(parts[at], parts[-1 - at], out=both)
        both *= weights[at]
        total += both
    return total


@dataclass(frozen=True)
class _Source:
    """An image that can carry a mark.

    Args:
        pixels: (H, W, C) as stored, without alpha.
        encode: such pixels as a file like the source's.
        lossless: whether that keeps every pixel.
    """

    pixels: Pixels
    encode: Callable[[Pixels], bytes]
    lossless: bool


@dataclass(frozen=True)
class _Version:
    """One version: its pixels (H, W, C) as they are decoded, and its file, which is made later if it is lossless."""

    seen: Pixels
    file: bytes | None


def _versions(source: _Source, mark: npt.NDArray[np.float32]) -> tuple[_Version, _Version]:
    """The original with a mark added and subtracted."""
    room = np.minimum(source.pixels, 255 - source.pixels).astype(np.int16)
    change = np.clip(np.rint(mark).astype(np.int16), -room, room)

    def version(change: npt.NDArray[np.int16]) -> _Version:
        pixels = (source.pixels + change).astype(np.uint8)
        if source.lossless:
            return _Version(pixels, None)
        file = source.encode(pixels)
        return _Version(_plain(load_image(file).image), file)

    return version(change), version(-change)


def _plain(image: Image.Image) -> Pixels:
    """Pixels (H, W, C) of a grey or RGB image."""
    pixels: Pixels = np.asarray(image, dtype=np.uint8)
    return pixels[..., None] if pixels.ndim == 2 else pixels


def _mark(pixels: Pixels, key: int, kind: str) -> npt.NDArray[np.float32]:
    """The mark (H, W, C) at its largest amplitude, in grey levels."""
    height, width, channels = pixels.shape
    if kind == WARP:
        fields = _fields(height, width, key, kind, 2)
        mark = np.zeros(pixels.shape, dtype=np.float32)
        for axis, field in enumerate(fields):
            if pixels.shape[axis] > 1:
                shift = field * np.float32(0.5 / max(1e-6, float(np.abs(fields).max())))
                mark += shift[..., None] * np.gradient(pixels.astype(np.float32), axis=axis)
    else:
        parts = channels if kind == COLOUR else 1
        mark = np.moveaxis(_fields(height, width, key, kind, parts), 0, 2)
        if parts == 3:
            mark = mark @ _RGB_OF_YCC.T.astype(np.float32)
        mark = np.broadcast_to(mark, pixels.shape)
    strength = math.sqrt(float(np.square(mark, dtype=np.float64).mean()))
    factor = 255 * 10 ** (-LEAST_PSNR / 20) / max(strength, 1e-6)  # as strong as the limit leaves
    if kind == WARP:
        factor = min(1.0, factor)
    elif kind == COLOUR:
        factor = min(_MOST_COLOUR / max(1e-6, float(np.abs(mark).max())), factor)
    return np.asarray(mark * np.float32(factor))


def _fields(height: int, width: int, key: int, kind: str, count: int) -> npt.NDArray[np.float32]:
    """Sums of random cosines (count, H, W), of which each has any phase and direction."""
    shorter = min(height, width)
    scale = min(1.0, _GRID / shorter)
    grid = [max(1, round(side * scale)) for side in (height, width)]
    rows, columns = ((np.arange(side) + 0.5) / side for side in grid)
    waves = _NOISE_WAVES if kind == PATTERN else _WAVES
    band = min(shorter, _BAND_SIDE)
    low, high = (band / 8, band / 4) if kind == PATTERN else (0.5, 4.0)
    sides = (height / shorter, width / shorter) if kind == PATTERN else (1.0, 1.0)
    source = np.random.Philox(key=np.array([key, int.from_bytes(kind.encode(), "little")], dtype=np.uint64))
    drawn = (source.random_raw((3, waves, 3)) >> np.uint64(11)) * 2.0**-53
    fields = np.zeros((count, *grid))
    for part, numbers in enumerate(drawn[:count]):
        for angle, radius, phase in numbers:
            cycles = low + (high - low) * radius
            down = 2 * np.pi * (cycles * np.sin(2 * np.pi * angle) * sides[0] * rows + phase)
            right = 2 * np.pi * cycles * np.cos(2 * np.pi * angle) * sides[1] * columns
            fields[part] += np.cos(down)[:, None] * np.cos(right) - np.sin(down)[:, None] * np.sin(right)
    small = fields.astype(np.float32)
    if grid == [height, width]:
        return small
    return np.stack(
        [np.asarray(Image.fromarray(field).resize((width, height), Image.Resampling.BICUBIC)) for field in small]
    )


def _source(data: bytes) -> _Source | None:
    """The image of a file; None: it is left alone."""
    kind = format_of(data[:HEAD])
    if kind not in ("JPEG", "PNG", None):
        return None
    image = load_image(data).image
    if kind == "PNG":
        return _png(data, image)
    assert isinstance(image, JpegImageFile)
    return _jpeg(data, image)


def _jpeg(data: bytes, image: JpegImageFile) -> _Source | None:
    segments = list(_segments(data))
    if image.mode not in ("L", "RGB") or any(body[4:8] == b"MPF\0" for _, body in segments):
        return None
    sampling = get_sampling(image)
    tables = [table for _, table in sorted(image.quantization.items())]
    too_dense = "progressive" in image.info and len(data) > max(1.5 * image.width * image.height, 2**15)
    if (image.mode == "RGB" and sampling < 0) or too_dense:  # Pillow's buffer for several scans ends at 2 bytes a pixel
        return None
    settings = {"qtables": tables, "subsampling": sampling, "progressive": "progressive" in image.info}
    # without JFIF, which says YCbCr, Adobe's segment may say that RGB is stored as it is
    settings["keep_rgb"] = image.info.get("adobe_transform") == 0 and "jfif" not in image.info
    around = b"".join(body for marker, body in segments if _is_metadata(marker))
    after = b"".join(body for marker, body in segments if marker == _END)

    def encode(pixels: Pixels) -> bytes:
        buffer = io.BytesIO()
        Image.fromarray(pixels.squeeze(2) if pixels.shape[2] == 1 else pixels).save(buffer, "JPEG", **settings)
        new = b"".join(body for marker, body in _segments(buffer.getvalue()) if not _is_metadata(marker))
        return b"\xff\xd8" + around + new + after[2:]

    return _Source(_plain(image), encode, lossless=False)


_END, _SCAN = 0xD9, 0xDA
_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")  # in a scan the others stand for data, and for restarts


def _is_metadata(marker: int) -> bool:
    return 0xE0 <= marker <= 0xEF or marker == 0xFE  # of applications, and comments


def _segments(jpeg: bytes) -> Iterator[tuple[int, bytes]]:
    """The marker and all bytes of each segment behind the first two bytes; the last has what follows the image."""
    place = 2
    while place + 2 <= len(jpeg):
        marker, end = jpeg[place + 1], place + 2 + int.from_bytes(jpeg[place + 2 : place + 4])
        if jpeg[place] != 0xFF or marker == 0xFF:  # filling
            place += 1
            continue
        if marker == _SCAN:
            behind = _MARKER.search(jpeg, end)
            end = behind.start() if behind else len(jpeg)
        if marker == _END:
            end = len(jpeg)
        yield marker, jpeg[place:end]
        place = end


_KEPT = frozenset((b"gAMA", b"cHRM", b"sRGB", b"iCCP", b"cICP", b"mDCV", b"cLLI", b"tIME", b"sPLT"))
_OF_THE_LAYOUT = frozenset((b"bKGD", b"sBIT"))  # they count in values as the file stores them


def _png(data: bytes, image: Image.Image) -> _Source | None:
    if data[24] == 16 or "transparency" in image.info or has_more_frames(data):
        return None
    if image.mode in ("P", "1"):
        image = image.convert("RGB" if image.mode == "P" else "L")
    if image.mode not in ("L", "LA", "RGB", "RGBA"):
        return None
    values = _plain(image)
    colours = 1 if image.mode in ("L", "LA") else 3
    alpha = values[..., colours:]

    def encode(pixels: Pixels) -> bytes:
        buffer = io.BytesIO()
        whole = np.concatenate([pixels, alpha], axis=2)
        Image.fromarray(whole.squeeze(2) if whole.shape[2] == 1 else whole).save(buffer, "PNG")
        return _with_chunks_of(data, buffer.getvalue())

    return _Source(np.ascontiguousarray(values[..., :colours]), encode, lossless=True)


def _with_chunks_of(source: bytes, new: bytes) -> bytes:
    """A PNG with the metadata of another one, before the pixels and behind them as they stood."""
    same_layout, before, behind = source[24:26] == new[24:26], list[bytes](), list[bytes]()
    side = before
    for name, chunk in png_chunks(source):
        side = behind if name == b"IDAT" else side
        # a small last letter says that a chunk does not depend on the pixels (PNG, section 5.4)
        if name in _KEPT or (name in _OF_THE_LAYOUT and same_layout) or (name[3:].islower() and name[:1].islower()):
            side.append(chunk)
    header, *own, end = (chunk for _, chunk in png_chunks(new))
    return b"".join((new[:8], header, *before, *own, *behind, end))
