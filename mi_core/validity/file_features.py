"""Features of an image file before any encoder is asked: for the blind classifier, and for the reader of the report.

Members and non-members that were saved, resized or photographed in different ways are told apart by these numbers
alone (Das, Zhang and Tramer, "Blind baselines beat membership inference attacks for foundation models", 2024: dates and
formats did it on eight data sets). Only the header of the file is read here; what its pixels show stands in
`pixel_features`.

C channels, H x W pixels.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from PIL import JpegImagePlugin

from mi_core.checks import ConfigError, check_shape
from mi_core.image_files import ImageError, open_image

FILE_FEATURES = (
    *("bytes", "width", "height", "aspect ratio", "bytes per pixel", "JPEG", "PNG", "WebP", "colour"),
    *("palette or alpha", "JPEG luminance quantisation", "JPEG chrominance quantisation", "JPEG chroma subsampling"),
    *("JPEG progressive", "EXIF", "ICC profile"),
)
_CHANNEL_FEATURES = ("mean", "spread", "share of black", "share of white")
_IMAGE_FEATURES = ("sharpness", "8-pixel blocks across", "8-pixel blocks down")
_BLOCK = 8  # side of a JPEG's blocks
LARGEST = 32  # larger images are shrunk to this many pixels a side by taking block means
_FLOOR = 1e-3  # added before a logarithm; of the range of a pixel


def file_features(data: bytes) -> npt.NDArray[np.float64]:
    """The numbers (len(FILE_FEATURES),) that the header of an encoded image tells; sizes as logarithms.

    Raises ConfigError: the bytes are no image.
    """
    try:
        image = open_image(data)
    except ImageError as error:
        raise ConfigError(f"these {len(data)} bytes are no image: {error}") from error
    width, height, kind = image.width, image.height, image.format or ""
    tables = getattr(image, "quantization", None) or {}
    levels = [math.log(np.mean(tables[number])) if number in tables else 0.0 for number in (0, 1)]
    sampling = JpegImagePlugin.get_sampling(image) if isinstance(image, JpegImagePlugin.JpegImageFile) else 0
    numbers = [
        *(math.log(len(data)), math.log(width), math.log(height)),
        *(math.log(width / height), math.log(len(data) / (width * height))),
        *(kind in ("JPEG", "MPO"), kind == "PNG", kind == "WEBP"),
        image.mode not in ("1", "L", "LA", "I", "F", "I;16"),
        image.mode in ("P", "PA", "LA", "RGBA"),
        *(*levels, sampling),
        bool(image.info.get("progressive") or image.info.get("progression")),
        *("exif" in image.info, "icc_profile" in image.info),
    ]
    return np.array(numbers, dtype=np.float64)


def pixel_names(channels: int) -> tuple[str, ...]:
    """Names of the numbers of `pixel_features`."""
    colours = ("red", "green", "blue") if channels == 3 else tuple(f"channel {one}" for one in range(channels))
    each = [f"{name} of {colour}" for colour in colours for name in _CHANNEL_FEATURES]
    return (*each, *_IMAGE_FEATURES)


def pixel_features(image: npt.NDArray[np.uint8]) -> npt.NDArray[np.float64]:
    """Features (4 C + 3,) of an image (C, H, W) without its content.

    Per channel mean, standard deviation and the shares of pixels at 0 and at 255; over all channels the logarithm of
    the mean absolute Laplacian, and of how much larger steps between neighbours are at multiples of 8 pixels than
    elsewhere, across and down: the traces of resizing and of JPEG's blocks, which stay when a file is saved anew.

    Raises ShapeError: not C, H, W.
    """
    check_shape("image", image, "C H W")
    pixels = image.astype(np.float64) / 255
    shares = (pixels.mean, pixels.std, (image == 0).mean, (image == 255).mean)
    channels = np.stack([share(axis=(1, 2)) for share in shares], axis=1)
    inner = pixels[:, 1:-1, 1:-1]
    sharpness = 0.0  # of an image too small to have a Laplacian
    if inner.size:
        around = pixels[:, :-2, 1:-1] + pixels[:, 2:, 1:-1] + pixels[:, 1:-1, :-2] + pixels[:, 1:-1, 2:]
        sharpness = math.log(_FLOOR + float(np.abs(around - 4 * inner).mean()))
    return np.array([*channels.ravel(), sharpness, _blocks(pixels), _blocks(pixels.transpose(0, 2, 1))])


def summary(data: bytes, image: npt.NDArray[np.uint8]) -> npt.NDArray[np.float64]:
    """The `file_features` of an encoded image, then the `pixel_features` of its pixels (C, H, W). Raises as both."""
    return np.concatenate([file_features(data), pixel_features(image)])


def _blocks(pixels: npt.NDArray[np.float64]) -> float:
    """Logarithm of the steps between columns 8 k - 1 and 8 k over those between all others; 0 without any of these."""
    steps = np.abs(np.diff(pixels, axis=2)).mean(axis=(0, 1))
    edge = np.arange(1, len(steps) + 1) % _BLOCK == 0
    if not edge.any() or edge.all():
        return 0.0
    return math.log((_FLOOR + float(steps[edge].mean())) / (_FLOOR + float(steps[~edge].mean())))


def shrunken(image: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """An image (C, H, W) as at most 32 x 32 block means per channel, in one row (P,). Raises ShapeError: it is none."""
    channels, height, width = check_shape("image", image, "C H W")
    step_h, step_w = -(-height // LARGEST), -(-width // LARGEST)
    rows, columns = height // step_h, width // step_w
    cut = image[:, : rows * step_h, : columns * step_w].astype(np.float32)
    blocks = cut.reshape(channels, rows, step_h, columns, step_w)
    return np.asarray(blocks.mean(axis=(2, 4)).ravel() / 255, dtype=np.float32)
