"""Two versions of an image: near the original as the paper measures it, symmetric, and with all that stands around."""

from __future__ import annotations

import hashlib
import io
import math
import struct
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageCms, PngImagePlugin
from PIL.JpegImagePlugin import JpegImageFile, get_sampling

from mi_core.checks import ConfigError, ShapeError
from mi_core.image_files import ImageError
from mi_core.images import Pixels
from mi_core.lots.marks import LEAST_PSNR, LEAST_SSIM, MARKS, psnr, ssim, twins

ROOT = Path(__file__).parents[3]


def photo(seed: int, height: int, width: int, channels: int = 3) -> Pixels:
    """A picture whose spectrum falls off as 1 / f, from black to white, with fainter colours, as photos have them."""
    rng = np.random.default_rng(seed)
    fy, fx = np.fft.fftfreq(height)[:, None], np.fft.fftfreq(width)
    planes = []
    for _ in range(channels):
        noise = np.fft.fft2(rng.standard_normal((height, width))) / np.maximum(
            np.hypot(fy, fx), 0.5 / max(height, width)
        )
        plane = np.fft.ifft2(noise).real
        planes.append(plane / max(float(plane.std()), 1e-9))
    mixed = 0.5 * np.stack(planes, axis=2) + 2 * planes[0][..., None]
    return np.clip(128 + 25 * mixed, 0, 255).astype(np.uint8)


def encoded(pixels: Pixels, kind: str, **settings: Any) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels.squeeze(2) if pixels.shape[-1] == 1 else pixels).save(buffer, kind, **settings)
    return buffer.getvalue()


def opened(data: bytes) -> Any:
    image = Image.open(io.BytesIO(data))
    image.load()
    return image


def stored(data: bytes) -> Pixels:
    pixels = np.asarray(opened(data))
    return pixels[..., None] if pixels.ndim == 2 else pixels[..., :3]


def marked(data: bytes, key: int = 7, kind: str = MARKS[0]) -> tuple[bytes, bytes]:
    made = twins(data, key, kind)
    assert made is not None
    return made


def slow_ssim(first: Pixels, second: Pixels) -> float:
    """Equation 13 at every window, as Wang et al. write it."""
    x, y = (
        each[..., 0].astype(float) if each.shape[2] == 1 else each.astype(float) @ np.array([0.299, 0.587, 0.114])
        for each in (first, second)
    )
    tall, wide = (min(11, side) for side in x.shape)
    weights = np.array(
        [
            [math.exp(-((i - (tall - 1) / 2) ** 2 + (j - (wide - 1) / 2) ** 2) / (2 * 1.5**2)) for j in range(wide)]
            for i in range(tall)
        ]
    )
    weights /= weights.sum()
    values = []
    for top in range(x.shape[0] - tall + 1):
        for left in range(x.shape[1] - wide + 1):
            a, b = (each[top : top + tall, left : left + wide] for each in (x, y))
            mean_a, mean_b = (weights * a).sum(), (weights * b).sum()
            var_a, var_b = (weights * (a - mean_a) ** 2).sum(), (weights * (b - mean_b) ** 2).sum()
            both = (weights * (a - mean_a) * (b - mean_b)).sum()
            c1, c2 = 2.55**2, 7.65**2
            values.append(
                (2 * mean_a * mean_b + c1) * (2 * both + c2) / ((mean_a**2 + mean_b**2 + c1) * (var_a + var_b + c2))
            )
    return float(np.mean(values))


@pytest.mark.parametrize("shape", [(45, 38, 3), (32, 32, 1), (11, 11, 3), (7, 20, 3), (5, 4, 3), (1, 9, 1), (1, 1, 3)])
def test_ssim_is_that_of_the_paper(shape: tuple[int, int, int]) -> None:
    first = photo(1, *shape)
    second = np.clip(first + np.random.default_rng(2).normal(0, 12, shape), 0, 255).astype(np.uint8)
    assert ssim(first, second) == pytest.approx(slow_ssim(first, second), abs=1e-9)
    assert ssim(first, first) == pytest.approx(1.0, abs=1e-12)


def test_psnr_by_hand() -> None:
    first = np.full((2, 3, 3), 100, dtype=np.uint8)
    second = first.copy()
    second[0, 0, 0] = 255
    assert psnr(first, second) == pytest.approx(10 * math.log10(255**2 / (155**2 / 18)))
    assert psnr(second, first) == psnr(first, second)  # differences of uint8 must not wrap around
    assert psnr(first, first) == math.inf


@pytest.mark.parametrize("measure", [psnr, ssim])
def test_images_of_two_shapes_and_empty_ones_have_no_likeness(measure: Any) -> None:
    with pytest.raises(ShapeError, match="second has shape"):
        measure(photo(0, 8, 8), photo(0, 8, 9))
    with pytest.raises(ShapeError, match="are empty"):
        measure(np.zeros((0, 8, 3), np.uint8), np.zeros((0, 8, 3), np.uint8))


def test_ssim_needs_a_luminance() -> None:
    with pytest.raises(ShapeError, match="2 channels"):
        ssim(np.zeros((8, 8, 2), np.uint8), np.zeros((8, 8, 2), np.uint8))


def check_near(data: bytes, kind: str, key: int) -> None:
    """Both limits by the slow references, and that there is something to tell the two apart by."""
    original, sides = stored(data).astype(float), [stored(file) for file in marked(data, key, kind)]
    for side in sides:
        assert 10 * math.log10(255**2 / np.mean((original - side) ** 2)) >= LEAST_PSNR
        measure = slow_ssim if original.size < 10_000 else ssim
        assert measure(stored(data), side) >= LEAST_SSIM
    assert (sides[0] != sides[1]).mean() > 0.2


@pytest.mark.parametrize("kind", MARKS)
def test_small_jpegs_keep_the_limits(kind: str) -> None:
    for seed in range(4):
        quality, subsampling = ((75, 2), (90, 0), (95, 2), (85, 1))[seed]
        check_near(encoded(photo(seed, 32, 32), "JPEG", quality=quality, subsampling=subsampling), kind, seed)


@pytest.mark.parametrize("kind", MARKS)
@pytest.mark.parametrize("channels", [1, 3])
def test_larger_photos_keep_the_limits(kind: str, channels: int) -> None:
    check_near(encoded(photo(5, 300, 420, channels), "JPEG", quality=88), kind, 1)


def test_a_field_of_a_photo_larger_than_its_grid_is_the_same_picture() -> None:
    """Above 512 pixels the field is computed smaller and enlarged; what a small encoder sees must not change."""
    seen = []
    for side in (512, 640):
        flat = np.full((side, side, 1), 128, dtype=np.uint8)
        plus, minus = (Image.fromarray(stored(file)[..., 0]) for file in marked(encoded(flat, "PNG"), 3))
        small = [np.asarray(each.convert("F").resize((128, 128), Image.Resampling.BOX)) for each in (plus, minus)]
        seen.append((small[0] - small[1]).ravel())
    assert np.corrcoef(seen)[0, 1] > 0.99


@pytest.mark.parametrize("kind", MARKS)
def test_versions_of_a_png_lie_symmetrically_around_it(kind: str) -> None:
    pixels = photo(3, 40, 50)
    assert pixels.min() == 0 or pixels.max() == 255  # there the mark is cut
    plus, minus = (stored(file).astype(int) for file in marked(encoded(pixels, "PNG"), 9, kind))
    assert (plus - pixels == pixels - minus).all()
    assert (plus != minus).any()


@pytest.mark.parametrize("kind", MARKS)
def test_versions_of_a_jpeg_lie_nearly_symmetrically_around_it(kind: str) -> None:
    data = encoded(photo(3, 64, 64), "JPEG", quality=95, subsampling=0)
    plus, minus = (stored(file).astype(float) for file in marked(data, 9, kind))
    off_centre, half = (plus + minus) / 2 - stored(data), (plus - minus) / 2
    assert off_centre.std() < min(1.0, half.std())  # what rounding leaves


def test_colours_change_by_no_more_than_an_eye_may_notice() -> None:
    """Neither limit sees colours well, so the field has one of its own: 3 levels, on a neutral grey too."""
    for pixels in (photo(3, 60, 60), np.full((60, 60, 3), 128, dtype=np.uint8)):
        plus, _ = (stored(file).astype(int) for file in marked(encoded(pixels, "PNG"), 1, "colour"))
        assert np.abs(plus - pixels).max() == 3


@pytest.mark.parametrize(("kind", "measure"), [("warp", psnr), ("pattern", ssim)])
def test_a_mark_is_as_strong_as_a_limit_allows(kind: str, measure: Any) -> None:
    pixels = np.clip(photo(3, 60, 60), 20, 235)
    if kind == "pattern":  # which shows on what is smooth
        pixels = np.asarray(Image.fromarray(pixels[:9, :9]).resize((60, 60), Image.Resampling.BICUBIC))
    reached = min(measure(pixels, stored(file)) for file in marked(encoded(pixels, "PNG"), 1, kind))
    least, slack = {psnr: (LEAST_PSNR, 1.0), ssim: (LEAST_SSIM, 0.006)}[measure]
    assert least <= reached < least + slack


def test_bands() -> None:
    """Colour lies below the band of noise, which lies where the docstring says."""
    flat = encoded(np.full((64, 64, 3), 128, dtype=np.uint8), "PNG")
    frequency = np.hypot(np.fft.fftfreq(64)[:, None], np.fft.fftfreq(64))
    for kind, low, high in (("colour", 0, 1 / 12), ("pattern", 1 / 8 - 1 / 32, 1 / 4 + 1 / 32)):
        plus, minus = (stored(file).astype(float) for file in marked(flat, 4, kind))
        power = np.abs(np.fft.fft2(plus - minus, axes=(0, 1))) ** 2
        assert power[(frequency >= low) & (frequency <= high)].sum() > 0.8 * power.sum()  # the rest is rounding
    assert twins(flat, 4, "warp") is None  # nothing to displace


def test_a_warp_displaces() -> None:
    """A ramp of slope g changes by g times the displacement, which is half a pixel at most in each direction."""
    ramp = np.broadcast_to(np.arange(20, 220, 4, dtype=np.uint8)[None, :, None], (50, 50, 3)).copy()
    plus, _ = (stored(file).astype(int) for file in marked(encoded(ramp, "PNG"), 2, "warp"))
    assert 1 <= np.abs(plus - ramp).max() <= 2
    assert len(np.unique(plus - ramp)) > 1


def test_the_mark_depends_on_key_and_kind() -> None:
    data = encoded(photo(1, 48, 48), "PNG")
    files = {file for key in (0, 1, 2**64 - 1) for kind in MARKS for file in marked(data, key, kind)}
    assert len(files) == 18


def test_the_mark_depends_on_the_size_alone() -> None:
    """Of two pictures of one size the marks are the same field."""
    fields = []
    for seed in (1, 2):
        plus, minus = (stored(file).astype(float) for file in marked(encoded(photo(seed, 48, 48), "PNG"), 5))
        fields.append((plus - minus).ravel())
    assert np.corrcoef(fields)[0, 1] > 0.9


@pytest.mark.parametrize(("kind", "key"), [("nothing", 1), ("colour", -1), ("colour", 2**64)])
def test_impossible_kinds_and_keys(kind: str, key: int) -> None:
    with pytest.raises(ConfigError, match="allowed"):
        twins(encoded(photo(1, 8, 8), "PNG"), key, kind)


def test_the_same_in_another_process_and_without_pytorch() -> None:
    data = [encoded(photo(1, 40, 33), "JPEG", quality=90), encoded(photo(2, 20, 31), "PNG")]
    code = f"""
import hashlib, sys
from mi_core.lots.marks import MARKS, twins
for data in {data!r}:
    for kind in MARKS:
        print(*(hashlib.sha256(file).hexdigest() for file in twins(data, 11, kind)))
print("torch" in sys.modules)
"""
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    here = [
        " ".join(hashlib.sha256(file).hexdigest() for file in marked(each, 11, kind)) for each in data for kind in MARKS
    ]
    assert found.stdout.splitlines() == [*here, "False"]


def rich_exif() -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112], exif[0x010F] = 6, "A camera"
    return exif


def app_segments(data: bytes) -> list[bytes]:
    """All segments of applications and comments, by a walk of its own."""
    place, kept = 2, []
    while data[place + 1] != 0xDA:
        end = place + 2 + struct.unpack(">H", data[place + 2 : place + 4])[0]
        if 0xE0 <= data[place + 1] <= 0xEF or data[place + 1] == 0xFE:
            kept.append(data[place:end])
        place = end
    return kept


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize(("channels", "subsampling"), [(3, 0), (3, 1), (3, 2), (1, -1)])
def test_a_jpeg_keeps_its_metadata_and_its_coding(progressive: bool, channels: int, subsampling: int) -> None:
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    data = encoded(
        photo(2, 50, 70, channels),
        "JPEG",
        quality=83,
        subsampling=subsampling,
        progressive=progressive,
        exif=rich_exif().tobytes(),
        icc_profile=profile if channels == 3 else None,
        comment=b"a comment",
        xmp=b"<x:xmpmeta/>",
        dpi=(300, 300),
    )
    iptc = b"\xff\xed\x00\x12Photoshop 3.0\0ab"  # Pillow itself does not write it
    data = data[:2] + iptc + data[2:] + b"a video behind the picture"
    before = opened(data)
    assert isinstance(before, JpegImageFile)
    assert len(app_segments(data)) >= 5
    for file in marked(data):
        after = opened(file)
        assert app_segments(file) == app_segments(data)
        assert (after.quantization, get_sampling(after)) == (before.quantization, get_sampling(before))
        assert ("progressive" in after.info) == progressive
        assert (after.format, after.mode, after.size) == (before.format, before.mode, before.size)
        assert after.getexif()[0x0112] == 6
        assert after.info["dpi"] == (300, 300)
        assert file.endswith(b"\xff\xd9a video behind the picture")


def test_pixels_are_marked_as_they_are_stored() -> None:
    """The orientation tag changes nothing of the pixels' coding."""
    pixels = photo(2, 50, 70)
    plain, turned = (
        marked(encoded(pixels, "JPEG", quality=90, **extra)) for extra in ({}, {"exif": rich_exif().tobytes()})
    )
    for first, second in zip(plain, turned, strict=True):
        assert (stored(first) == stored(second)).all()


def test_a_jpeg_that_stores_rgb_keeps_its_colours() -> None:
    data = encoded(photo(2, 40, 40), "JPEG", quality=92, keep_rgb=True, subsampling=0)
    assert data[6:10] != b"JFIF"
    check_near(data, "colour", 1)


def test_a_table_of_quantisation_may_have_any_number() -> None:
    data = bytearray(encoded(photo(2, 40, 40, 1), "JPEG", quality=90))
    table, frame = data.index(b"\xff\xdb"), data.index(b"\xff\xc0")
    data[table + 4] = data[frame + 12] = 1
    assert list(opened(bytes(data)).quantization) == [1]
    for file in marked(bytes(data)):
        assert list(opened(file).quantization.values()) == list(opened(bytes(data)).quantization.values())


def png_chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def chunk_list(data: bytes) -> list[tuple[bytes, bytes]]:
    place, found = 8, []
    while place < len(data):
        (length,) = struct.unpack(">I", data[place : place + 4])
        found.append((data[place + 4 : place + 8], data[place + 8 : place + 8 + length]))
        place += 12 + length
    return found


def test_a_png_keeps_its_metadata() -> None:
    texts = PngImagePlugin.PngInfo()
    texts.add_text("Title", "a picture")
    texts.add_itxt("XML:com.adobe.xmp", "<x:xmpmeta/>")
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    data = encoded(
        photo(2, 30, 40), "PNG", pnginfo=texts, icc_profile=profile, dpi=(72, 72), exif=rich_exif().tobytes()
    )
    private = png_chunk(b"bKGD", bytes(6)) + png_chunk(b"prVT", b"depends on the pixels")
    header = data.index(b"IDAT") - 4
    data = data[:header] + private + data[header:-12] + png_chunk(b"tEXt", b"Late\0text") + data[-12:]
    wanted = [entry for entry in chunk_list(data) if entry[0] not in (b"IDAT", b"prVT")]
    for file in marked(data):
        chunks = chunk_list(file)
        assert [entry for entry in chunks if entry[0] != b"IDAT"] == wanted
        assert [name for name, _ in chunks][-3:] == [b"IDAT", b"tEXt", b"IEND"]
        after = opened(file)
        assert after.format == "PNG"
        assert after.info["icc_profile"] == profile
        assert after.getexif()[0x0112] == 6


@pytest.mark.parametrize(("mode", "after"), [("L", "L"), ("LA", "LA"), ("RGBA", "RGBA"), ("P", "RGB")])
def test_other_pngs(mode: str, after: str) -> None:
    image = Image.fromarray(photo(2, 30, 40)).convert(mode)
    if "A" in mode:
        image.putalpha(Image.fromarray(photo(4, 30, 40, 1)[..., 0]))
    buffer = io.BytesIO()
    image.save(buffer, "PNG", pnginfo=None)
    before = buffer.getvalue()
    depths = png_chunk(b"sBIT", b"\x08" * (3 if mode == "P" else len(image.getbands())))
    before = before[:33] + depths + before[33:]
    for file in marked(before):
        made = opened(file)
        assert made.mode == after
        assert (b"sBIT" in file) == (mode != "P")
        if "A" in mode:
            assert np.array_equal(np.asarray(made)[..., -1], np.asarray(image)[..., -1])
        colours = image.convert("RGB" if mode == "P" else mode)
        assert psnr(np.atleast_3d(np.asarray(colours)), np.atleast_3d(np.asarray(made))) >= LEAST_PSNR


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@pytest.mark.parametrize("size", [(1, 40), (40, 1), (1, 1), (2, 3), (9, 9), (10, 200)])
def test_tiny_images_keep_the_limits_or_are_left_alone(kind: str, size: tuple[int, int]) -> None:
    data = encoded(np.clip(photo(6, *size), 60, 200), kind)
    for name in MARKS:
        made = twins(data, 3, name)
        for file in made or ():
            assert psnr(stored(data), stored(file)) >= LEAST_PSNR
            assert ssim(stored(data), stored(file)) >= LEAST_SSIM
        if kind == "PNG" and min(size) > 1:
            assert made is not None


def animation() -> bytes:
    buffer = io.BytesIO()
    frames = [Image.fromarray(photo(seed, 20, 20)) for seed in range(2)]
    frames[0].save(buffer, "PNG", save_all=True, append_images=frames[1:])
    return buffer.getvalue()


def mpo() -> bytes:
    buffer = io.BytesIO()
    frames = [Image.fromarray(photo(seed, 20, 20)) for seed in range(2)]
    frames[0].save(buffer, "MPO", save_all=True, append_images=frames[1:], quality=95, subsampling=0)
    return buffer.getvalue()


def made_by_pillow(mode: str, kind: str, **settings: Any) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(photo(1, 20, 20)).convert(mode).save(buffer, kind, **settings)
    return buffer.getvalue()


def deep_png() -> bytes:
    return (
        b"\x89PNG\r\n\x1a\n"
        + png_chunk(b"IHDR", struct.pack(">IIBBBBB", 8, 8, 16, 6, 0, 0, 0))
        + png_chunk(b"IDAT", zlib.compress((b"\0" + bytes(range(64))) * 8))
        + png_chunk(b"IEND", b"")
    )


def unusual_subsampling() -> bytes:
    """4:4:0, which Pillow cannot write: the luminance has twice the rows of the colours, by the header alone."""
    data = bytearray(encoded(np.full((16, 16, 3), 90, dtype=np.uint8), "JPEG", subsampling=1))
    frame = data.index(b"\xff\xc0")
    assert data[frame + 11] == 0x21
    data[frame + 11] = 0x12
    return bytes(data)


def dense(*, progressive: bool) -> bytes:
    """Noise at more than 1.5 bytes per pixel, for which Pillow's own buffer just suffices."""
    noise = 100 + np.random.default_rng(0).integers(0, 16, (250, 250, 3), dtype=np.uint8)
    return encoded(noise, "JPEG", quality=100, subsampling=0, progressive=progressive)


def test_a_dense_jpeg_of_a_single_scan_is_marked() -> None:
    check_near(dense(progressive=False), "colour", 1)


@pytest.mark.parametrize(
    "data",
    [
        made_by_pillow("RGB", "WEBP"),
        made_by_pillow("RGB", "BMP"),
        made_by_pillow("P", "GIF"),
        made_by_pillow("RGB", "TIFF"),
        made_by_pillow("CMYK", "JPEG"),
        made_by_pillow("P", "PNG", transparency=3),
        made_by_pillow("RGB", "PNG", transparency=(1, 2, 3)),
        made_by_pillow("I;16", "PNG"),
        made_by_pillow("1", "PNG"),
        deep_png(),
        animation(),
        mpo(),
        unusual_subsampling(),
        dense(progressive=True),
        encoded(np.where(photo(1, 32, 32) > 120, 255, 0).astype(np.uint8), "PNG"),
        encoded(photo(1, 40, 40), "JPEG", quality=1),
    ],
    ids=[
        *("webp", "bmp", "gif", "tiff", "cmyk", "palette with transparency", "transparent colour", "16 bits", "1 bit"),
        *(
            "16 bits of four channels",
            "animation",
            "several pictures",
            "subsampling",
            "dense",
            "black and white",
            "quality 1",
        ),
    ],
)
def test_what_is_left_alone(data: bytes) -> None:
    opened(data)  # it is a good image
    assert twins(data, 1) is None


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "empty"),
        (b"no image at all", "no image of a format that is read"),
        (encoded(photo(1, 64, 64), "JPEG")[:900], "truncated"),
        (encoded(photo(1, 64, 64), "PNG")[:900], "."),
        (b"\xff\xd8\xff\xe0" + bytes(40), "."),
    ],
)
def test_damaged_bytes(data: bytes, message: str) -> None:
    with pytest.raises(ImageError, match=message) as caught:
        twins(data, 1)
    assert "\n" not in str(caught.value)
