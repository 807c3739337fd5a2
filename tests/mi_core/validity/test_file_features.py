"""What files and pixels tell of how an image was made."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mi_core.checks import ConfigError, ShapeError
from mi_core.validity.file_features import FILE_FEATURES, file_features, pixel_features, pixel_names
from tests.raising import refused

SCENE = np.clip(
    128
    + 60 * np.sin(np.add.outer(np.arange(96) / 7, np.arange(128) / 11))[..., None] * np.array([1.0, 0.7, 0.4])
    + np.random.default_rng(0).normal(0, 12, (96, 128, 3)),
    0,
    255,
).astype(np.uint8)


def saved(kind: str, image: np.ndarray = SCENE, **settings: Any) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, kind, **settings)
    return buffer.getvalue()


def told(data: bytes) -> dict[str, float]:
    return dict(zip(FILE_FEATURES, file_features(data).tolist(), strict=True))


def test_sizes_and_formats() -> None:
    png = saved("PNG")
    found = told(png)
    assert found["bytes"] == pytest.approx(np.log(len(png)))
    assert (found["width"], found["height"]) == pytest.approx((np.log(128), np.log(96)))
    assert found["aspect ratio"] == pytest.approx(np.log(128 / 96))
    assert found["bytes per pixel"] == pytest.approx(np.log(len(png) / (128 * 96)))
    assert (found["PNG"], found["JPEG"], found["WebP"], found["colour"]) == (1, 0, 0, 1)
    assert told(saved("WEBP"))["WebP"] == 1
    grey = told(saved("PNG", SCENE[..., 0]))
    assert (grey["colour"], grey["palette or alpha"]) == (0, 0)
    assert told(saved("PNG", np.dstack([SCENE, SCENE[..., :1]])))["palette or alpha"] == 1


def test_how_a_jpeg_was_saved() -> None:
    fine, coarse = told(saved("JPEG", quality=95)), told(saved("JPEG", quality=40))
    assert fine["JPEG"] == coarse["JPEG"] == 1
    assert fine["JPEG luminance quantisation"] + 1 < coarse["JPEG luminance quantisation"]
    assert fine["JPEG chrominance quantisation"] + 1 < coarse["JPEG chrominance quantisation"]
    whole, halved = told(saved("JPEG", subsampling=0)), told(saved("JPEG", subsampling=2))
    assert whole["JPEG chroma subsampling"] < halved["JPEG chroma subsampling"]
    assert told(saved("JPEG", progressive=True))["JPEG progressive"] == 1 > fine["JPEG progressive"]
    exif = Image.Exif()
    exif[0x0110] = "camera"
    assert told(saved("JPEG", exif=exif))["EXIF"] == 1 > fine["EXIF"]
    assert told(saved("JPEG", icc_profile=b"profile"))["ICC profile"] == 1 > fine["ICC profile"]


def pixels(data: bytes) -> dict[str, float]:
    image = np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).transpose(2, 0, 1)
    return dict(zip(pixel_names(3), pixel_features(image).tolist(), strict=True))


def test_traces_stay_when_a_file_is_saved_anew() -> None:
    """A coarse JPEG saved as PNG has lost its tables, not its blocks; a shrunken one not its blur."""
    plain, blocky = pixels(saved("PNG")), pixels(saved("JPEG", quality=15))
    assert blocky["8-pixel blocks across"] > plain["8-pixel blocks across"] + 0.2
    assert blocky["8-pixel blocks down"] > plain["8-pixel blocks down"] + 0.2
    small = Image.fromarray(SCENE).resize((64, 48)).resize((128, 96))
    assert pixels(saved("PNG", np.asarray(small)))["sharpness"] < plain["sharpness"] - 0.5


def test_levels_of_the_channels() -> None:
    image = np.zeros((3, 4, 4), dtype=np.uint8)
    image[0, :2] = 255
    image[1] = 51
    found = dict(zip(pixel_names(3), pixel_features(image).tolist(), strict=True))
    assert (found["mean of red"], found["spread of red"]) == (0.5, 0.5)
    assert (found["share of black of red"], found["share of white of red"]) == (0.5, 0.5)
    assert (found["mean of green"], found["spread of green"]) == pytest.approx((0.2, 0))
    assert found["8-pixel blocks across"] == 0  # no edge of a block inside


def test_the_laplacian_is_that_of_its_definition() -> None:
    image = np.random.default_rng(0).integers(0, 256, (1, 5, 6), dtype=np.uint8)
    values = image[0] / 255
    slow = [
        abs(values[y - 1, x] + values[y + 1, x] + values[y, x - 1] + values[y, x + 1] - 4 * values[y, x])
        for y in range(1, 4)
        for x in range(1, 5)
    ]
    assert pixel_features(image)[pixel_names(1).index("sharpness")] == pytest.approx(np.log(1e-3 + np.mean(slow)))


@pytest.mark.parametrize("size", [1, 2, 8])
def test_small_images_have_numbers_too(size: int) -> None:
    assert np.isfinite(pixel_features(np.zeros((1, size, size), dtype=np.uint8))).all()


def test_what_is_no_image_is_told() -> None:
    refused(ConfigError, "these 9 bytes are no image", file_features, b"not a jpg")
    refused(ShapeError, "image has shape", pixel_features, np.zeros((4, 4), dtype=np.uint8))
