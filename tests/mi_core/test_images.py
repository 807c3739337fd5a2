"""Decoding: every kind of file becomes the same pixels, orientation is honoured, damage is an error with a reason."""

from __future__ import annotations

import hashlib
import io
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mi_core.checks import ConfigError
from mi_core.image_files import ImageError, open_image
from mi_core.images import LIBRARIES, VERSION, Decoder, blended, decode, decode_and_hash, encode_png
from mi_core.images import _fit as fitted
from tests.mi_core.tiffs import tiff_bytes
from tests.raising import refused

GENERATOR = np.random.default_rng(0)
GREY = GENERATOR.integers(0, 256, (12, 16), dtype=np.uint8)
COLOUR = GENERATOR.integers(0, 256, (12, 16, 3), dtype=np.uint8)
COLOUR_32 = Decoder(32, 3)


def saved(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def square(channels: int = 3) -> np.ndarray:
    shape = (32, 32) if channels == 1 else (32, 32, channels)
    return np.random.default_rng(1).integers(0, 256, shape, dtype=np.uint8)


@pytest.mark.parametrize(
    ("image", "options"),
    [
        (Image.fromarray(square()), {"kind": "PNG"}),
        (Image.fromarray(square()), {"kind": "WEBP", "lossless": True}),
        (Image.fromarray(square()), {"kind": "BMP"}),
        (Image.fromarray(square()), {"kind": "TIFF"}),
        (Image.fromarray(square()).convert("RGBA"), {"kind": "PNG"}),
    ],
)
def test_colour_files_give_their_pixels(image: Image.Image, options: dict[str, object]) -> None:
    pixels = decode(saved(image, **options), COLOUR_32)  # type: ignore[arg-type]
    assert pixels.dtype == np.uint8
    np.testing.assert_array_equal(pixels, square().transpose(2, 0, 1))


def test_grey_files_of_all_depths() -> None:
    grey = square(1)
    for image in (Image.fromarray(grey), Image.fromarray(grey.astype(np.uint16) * 257)):
        data = saved(image)
        np.testing.assert_array_equal(decode(data, Decoder(32, 1)), grey[None])
        np.testing.assert_array_equal(decode(data, COLOUR_32), np.stack([grey] * 3))
    alpha = Image.merge("LA", (Image.fromarray(grey), Image.fromarray(grey)))
    np.testing.assert_array_equal(decode(saved(alpha), Decoder(32, 1)), grey[None])
    bits = Image.fromarray(grey).convert("1")
    assert set(np.unique(decode(saved(bits), Decoder(32, 1)))) == {0, 255}


SHADES = np.arange(64).reshape(8, 8)  # of 6 bits
DEEP = SHADES.astype(np.uint16) * 1040 + 7  # the same over 16 bits
COLOURS = np.stack([DEEP, DEEP[::-1], DEEP[:, ::-1], DEEP], axis=-1)
IN_8 = COLOURS // 257
MAP = [*range(0, 65536, 257), *range(65535, -1, -257), *range(0, 65536, 257)]
BIT_12 = "read with 8 of 12 bits"
BIT_16 = "read with 8 of 16 bits"


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(
    ("pixels", "options", "shown", "remarks"),
    [
        (SHADES % 2, {"photometric": 0, "bits": 1}, 255 * (1 - SHADES % 2), ()),
        (SHADES % 2, {"photometric": 1, "bits": 1}, 255 * (SHADES % 2), ()),
        (SHADES % 4, {"photometric": 0, "bits": 2}, 255 - 85 * (SHADES % 4), ()),
        (SHADES % 16, {"photometric": 0, "bits": 4}, 255 - 17 * (SHADES % 16), ()),
        (SHADES.astype(np.uint8), {"photometric": 0}, 255 - SHADES, ()),
        (DEEP, {"photometric": 0}, (65535 - DEEP) // 257, (BIT_16,)),
        (DEEP, {"photometric": 1}, DEEP // 257, (BIT_16,)),
        (DEEP >> 4, {"photometric": 1, "bits": 12}, DEEP >> 8, (BIT_12,)),
        (DEEP.astype(np.uint32), {"photometric": 1}, DEEP // 257, (BIT_16,)),
        (DEEP.astype(np.int32), {"photometric": 1}, DEEP // 257, (BIT_16,)),
        (COLOURS[..., :3], {"photometric": 2}, COLOURS[..., :3] >> 8, (BIT_16,)),
        (COLOURS, {"photometric": 2, "extra": [2]}, COLOURS[..., :3] >> 8, (BIT_16, "transparency dropped")),
        (SHADES.astype(np.uint8), {"photometric": 3, "palette": MAP}, np.stack([SHADES, 255 - SHADES, SHADES], -1), ()),
        (IN_8.astype(np.uint8)[..., :3], {"photometric": 2, "planes": True}, IN_8[..., :3], ()),
    ],
)
def test_a_tiff_has_the_pixels_that_a_viewer_shows_or_is_refused(
    pixels: np.ndarray, options: dict[str, Any], shown: np.ndarray, remarks: tuple[str, ...], order: str, packed: bool
) -> None:
    bits = options.get("bits")
    data = tiff_bytes(
        pixels.astype(f"{order}u2" if bits else pixels.dtype.newbyteorder(order)), packed=packed, **options
    )
    expected = (np.stack([shown] * 3, axis=-1) if shown.ndim == 2 else shown).transpose(2, 0, 1)
    try:
        found = decode_and_hash(data, Decoder(8))
    except ImageError as error:  # Pillow has these in one byte order alone
        assert order == ">" and (bits == 12 or pixels.itemsize == 4 or pixels is DEEP), error
        assert "a TIFF of 1 x" in str(error)
        return
    np.testing.assert_array_equal(found.pixels, expected)
    assert found.remarks == remarks


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(
    ("pixels", "options", "reason"),
    [
        ((DEEP >> 1).astype(np.int16), {"photometric": 1}, "signed"),
        (SHADES.astype(np.int8), {"photometric": 1}, "1 x 8 bits, signed"),
        ((COLOURS[..., :3] / 65535).astype(np.float32), {"photometric": 2}, "3 x 32 bits, floating-point"),
        ((DEEP / 65535).astype(np.float32), {"photometric": 1}, "floating-point"),
        (DEEP.astype(np.uint32) << 16, {"photometric": 1}, "from 458,752 to 4,294|a TIFF of 1 x 32 bits, unsigned"),
        (np.stack([DEEP, DEEP], axis=-1), {"photometric": 1, "extra": [2]}, "2 x 16 bits, unsigned"),
        (SHADES.astype(np.uint8), {"photometric": 3, "palette": [one >> 8 for one in MAP]}, "palette have 8 bits"),
    ],
)
def test_a_tiff_of_values_without_an_agreed_range_says_what_it_is(
    pixels: np.ndarray, options: dict[str, Any], reason: str, order: str, packed: bool
) -> None:
    data = tiff_bytes(pixels.astype(pixels.dtype.newbyteorder(order)), packed=packed, **options)
    for decoded in (decode, decode_and_hash):
        with pytest.raises(ImageError, match=reason):
            decoded(data, Decoder(8))


def test_signed_values_are_read_by_the_depth_that_is_set() -> None:
    data = tiff_bytes((DEEP >> 4).astype("<i2"), 1)
    np.testing.assert_array_equal(decode(data, Decoder(8, 1, depth=12))[0], DEEP >> 8)
    inverted = tiff_bytes(DEEP >> 4, 0)
    np.testing.assert_array_equal(decode(inverted, Decoder(8, 1, depth=12))[0], (4095 - (DEEP >> 4)) // 16)


def test_planes_of_16_bits_are_read_or_refused() -> None:
    data = [tiff_bytes(COLOURS[..., :3], 2, planes=True, packed=packed) for packed in (False, True)]
    with pytest.raises(ImageError, match="3 x 16 bits in planes, unsigned, photometric interpretation 2"):
        decode(data[0], Decoder(8))
    np.testing.assert_array_equal(decode(data[1], Decoder(8)), (COLOURS[..., :3] >> 8).transpose(2, 0, 1))


def test_palette_and_transparent_palette() -> None:
    image = Image.fromarray(square()).quantize(16)
    expected = np.asarray(image.convert("RGB")).transpose(2, 0, 1)
    np.testing.assert_array_equal(decode(saved(image), COLOUR_32), expected)
    np.testing.assert_array_equal(decode(saved(image, transparency=3), COLOUR_32), expected)
    np.testing.assert_array_equal(decode(saved(image, "GIF"), COLOUR_32), expected)


def test_cmyk_jpeg_is_converted() -> None:
    red = Image.new("CMYK", (32, 32), (0, 255, 255, 0))
    pixels = decode(saved(red, "JPEG", quality=95), COLOUR_32).reshape(3, -1).mean(axis=1)
    assert pixels[0] > 240
    assert max(pixels[1:]) < 15


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("subsampling", [0, 1, 2])
@pytest.mark.parametrize("quality", [1, 60, 95])
@pytest.mark.parametrize("side", [7, 32, 100])
def test_jpegs_of_the_wanted_size_give_pillows_pixels(
    side: int, quality: int, subsampling: int, progressive: bool
) -> None:
    noise = np.random.default_rng(side).integers(0, 256, (side, side, 3), dtype=np.uint8)
    data = saved(
        Image.fromarray(noise), "JPEG", quality=quality, subsampling=subsampling, progressive=progressive, comment="c"
    )
    theirs = np.asarray(Image.open(io.BytesIO(data)))
    np.testing.assert_array_equal(decode(data, Decoder(side)), theirs.transpose(2, 0, 1))
    np.testing.assert_array_equal(decode_and_hash(data, Decoder(side))[0], decode(data, Decoder(side)))


def test_a_damaged_jpeg_is_refused_or_decoded_as_pillow_does() -> None:
    whole = saved(Image.fromarray(square()), "JPEG", quality=80)
    generator = np.random.default_rng(5)
    outcomes = [0, 0]
    for _ in range(400):
        damaged = bytearray(whole)
        for place in generator.integers(0, len(whole), generator.integers(1, 4)):
            damaged[place] = generator.integers(256)
        if generator.random() < 0.3:
            damaged = damaged[: generator.integers(4, len(whole))] + generator.choice([b"", b"\xff\xd9"])
        try:
            image = Image.open(io.BytesIO(damaged))
            image.load()
            turned = image.getexif().get(0x0112, 1)
        except Exception:  # noqa: BLE001 - whatever Pillow raises
            with pytest.raises(ImageError):
                decode(bytes(damaged), COLOUR_32)
            outcomes[0] += 1
            continue
        if image.size == (32, 32) and turned == 1:
            theirs = np.asarray(image.convert("RGB")).transpose(2, 0, 1)
            np.testing.assert_array_equal(decode(bytes(damaged), COLOUR_32), theirs)
            outcomes[1] += 1
    assert min(outcomes) > 40


def _spoilt(whole: bytes) -> dict[str, bytes]:
    half, rest = whole[: len(whole) // 2], len(whole) - len(whole) // 2
    return {
        "closed": half + b"\xff\xd9",
        "preallocated": half + bytes(rest),
        "preallocated and closed": half + bytes(rest - 2) + b"\xff\xd9",
        "far more zeros": half + bytes(20 * len(whole)),
        "zeros within": half + bytes(rest // 2) + whole[len(half) + rest // 2 :],
    }


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"quality": 95, "subsampling": 0}, {"quality": 30}])
@pytest.mark.parametrize("side", [32, 200])
def test_half_a_jpeg_is_refused_or_remarked_on_by_every_way_alike(
    side: int, options: dict[str, Any], mode: str
) -> None:
    noise = np.random.default_rng(side).integers(0, 256, (side, side, 3), dtype=np.uint8)
    whole = saved(Image.fromarray(noise).convert(mode), "JPEG", **options)
    decoders = [Decoder(32), Decoder(32, scaled=True), Decoder(side), Decoder(32, 1, fit="shortest")]
    for decoder in decoders:
        assert not [word for word in decode_and_hash(whole, decoder).remarks if "damaged" in word]
    for name, data in _spoilt(whole).items():
        judged = set()
        for decoder in decoders:
            try:
                found = decode_and_hash(data, decoder)
                judged.add("remark" if any("JPEG data damaged" in word for word in found.remarks) else "silent")
                np.testing.assert_array_equal(found.pixels, decode(data, decoder))
            except ImageError:
                judged.add("refused")
                with pytest.raises(ImageError):
                    decode(data, decoder)
        assert judged in ({"remark"}, {"refused"}), name


@pytest.mark.parametrize("orientation", [1, 6])
def test_a_jpeg_that_was_held_upright_or_turned(orientation: int) -> None:
    halves = np.zeros((32, 32, 3), dtype=np.uint8)
    halves[:16] = 255
    exif = Image.Exif()
    exif[0x0112] = orientation
    pixels = decode(saved(Image.fromarray(halves), "JPEG", quality=95, exif=exif), COLOUR_32)
    bright = pixels[0, :, 20:].mean() if orientation == 6 else pixels[0, :12].mean()
    assert bright > 250


@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_camera_s_orientation_is_applied(orientation: int) -> None:
    """A corner marked in the upright image stays there, however the file stores it."""
    upright = np.zeros((12, 20), dtype=np.uint8)
    upright[:6, :10] = 255
    to_stored = {  # the inverse of what EXIF says to do on display
        1: lambda a: a,
        2: lambda a: a[:, ::-1],
        3: lambda a: a[::-1, ::-1],
        4: lambda a: a[::-1],
        5: lambda a: a.T,
        6: np.rot90,
        7: lambda a: a[::-1, ::-1].T,
        8: lambda a: np.rot90(a, -1),
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = saved(Image.fromarray(np.ascontiguousarray(to_stored(upright))), "PNG", exif=exif)
    plain = saved(Image.fromarray(upright))
    pixels, sha, *_ = decode_and_hash(data, Decoder(12, 1))
    np.testing.assert_array_equal(pixels, decode(plain, Decoder(12, 1)))
    assert sha == decode_and_hash(plain, Decoder(12, 1))[1]


def test_the_shorter_side_is_resized_and_the_centre_cut() -> None:
    wide = np.zeros((8, 24), dtype=np.uint8)
    wide[:, 8:16] = 200
    np.testing.assert_array_equal(decode(saved(Image.fromarray(wide)), Decoder(8, 1)), np.full((1, 8, 8), 200))
    tall = saved(Image.fromarray(wide.T.copy()))
    np.testing.assert_array_equal(decode(tall, Decoder(8, 1)), np.full((1, 8, 8), 200))
    for width, height in ((1, 1), (3, 200), (200, 3), (31, 33), (33, 31)):
        image = Image.fromarray(np.full((height, width, 3), 77, dtype=np.uint8))
        np.testing.assert_array_equal(decode(saved(image), COLOUR_32), np.full((3, 32, 32), 77))


@pytest.mark.parametrize(("height", "width"), [(64, 64), (64, 96), (128, 64)])
def test_resizing_matches_torchvision(height: int, width: int) -> None:
    from torchvision.transforms import v2

    noise = np.random.default_rng(3).integers(0, 256, (height, width, 3), dtype=np.uint8)
    resize = v2.Compose([v2.Resize(32, antialias=True), v2.CenterCrop(32)])
    expected = np.asarray(resize(Image.fromarray(noise))).transpose(2, 0, 1).astype(int)
    found = decode(saved(Image.fromarray(noise)), COLOUR_32).astype(int)
    inside = np.s_[:, 2:-2, 2:-2]  # at the border torchvision's filter sees what the crop then removes
    assert np.abs(found - expected)[inside].max() <= 1


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("fit", ["shortest", "squash"])
@pytest.mark.parametrize("resize", [32, 37])
@pytest.mark.parametrize(("height", "width"), [(64, 64), (41, 97), (128, 33), (32, 32), (20, 31)])
def test_resizing_then_cutting_is_torchvision_s(
    height: int, width: int, resize: int, fit: str, interpolation: str
) -> None:
    from torchvision import transforms

    noise = Image.fromarray(np.random.default_rng(3).integers(0, 256, (height, width, 3), dtype=np.uint8))
    side = resize if fit == "shortest" else (resize, resize)
    mode = transforms.InterpolationMode(interpolation)
    theirs = transforms.Compose([transforms.Resize(side, mode), transforms.CenterCrop(32)])(noise)
    found = decode(saved(noise), Decoder(32, 3, interpolation, fit, resize))
    np.testing.assert_array_equal(found, np.asarray(theirs).transpose(2, 0, 1))


def test_a_jpeg_of_the_wanted_size_is_cut_where_the_side_before_the_cut_is_larger() -> None:
    data = saved(Image.fromarray(square()), "JPEG", quality=95)
    assert (decode(data, Decoder(32, 3, None, "shortest", 40)) != decode(data, COLOUR_32)).any()
    np.testing.assert_array_equal(decode(data, Decoder(32, 3, "bicubic", "shortest")), decode(data, COLOUR_32))


def test_an_image_too_long_to_resize_whole_is_refused() -> None:
    line = saved(Image.fromarray(np.zeros((1, 60_000, 3), dtype=np.uint8)))
    assert decode(line, COLOUR_32).shape == (3, 32, 32)
    with pytest.raises(ImageError, match="resized to 13440000 x 224 before the crop, more than"):
        decode(line, Decoder(224, 3, "bicubic", "shortest"))


def test_a_decoder_without_new_settings_keeps_its_digest() -> None:
    """Older run folders go on: their decoder is known by these two settings alone."""
    known = repr((VERSION, LIBRARIES, [("channels", 3), ("image_size", 32)]))
    assert Decoder(32).digest() == hashlib.sha256(known.encode()).hexdigest()
    others = [Decoder(33), Decoder(32, 3, "bicubic"), Decoder(32, 3, None, "shortest"), Decoder(32, scaled=True)]
    others.append(Decoder(32, 3, None, "shortest", 40))
    assert len({one.digest() for one in (Decoder(32), *others)}) == 6
    assert Decoder(32).settings() == Decoder(32, 3, "bilinear", "centre").settings()
    assert Decoder(32).settings() != Decoder(32, scaled=True).settings()


def test_the_hash_is_of_pixels_not_of_files() -> None:
    image = Image.fromarray(COLOUR)
    png = decode_and_hash(saved(image), COLOUR_32).sha256
    webp = decode_and_hash(saved(image, "WEBP", lossless=True), Decoder(8, 1)).sha256
    assert png == webp == hashlib.sha256(b"16x12:" + COLOUR.tobytes()).hexdigest()
    other = COLOUR.copy()
    other[0, 0, 0] ^= 1
    assert decode_and_hash(saved(Image.fromarray(other)), COLOUR_32)[1] != png
    turned = COLOUR.reshape(16, 12, 3)  # the same bytes in another shape
    assert decode_and_hash(saved(Image.fromarray(turned)), COLOUR_32)[1] != png


def _bomb(width: int, height: int) -> bytes:
    """A PNG whose header claims a size, with next to no data."""
    chunk = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    end = b"IEND"
    return (
        b"\x89PNG\r\n\x1a\n"
        + struct.pack(">I", 13)
        + chunk
        + struct.pack(">I", zlib.crc32(chunk))
        + struct.pack(">I", 0)
        + end
        + struct.pack(">I", zlib.crc32(end))
    )


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "the file is empty"),
        (b"not an image", "no image of a format that is read"),
        (saved(Image.fromarray(COLOUR), "JPEG")[:200], "[Tt]runcated|no image|cannot identify"),
        (saved(Image.fromarray(np.tile(COLOUR, (20, 20, 1))), "JPEG")[:-400], "truncated"),
        (saved(Image.fromarray(COLOUR))[:80], "truncated|Truncated|broken"),
        (_bomb(20_000, 20_000), "100000000"),
        (_bomb(10_001, 10_000), "100000000"),
        (_bomb(100_000, 100_000), "100000000"),
        (saved(Image.fromarray(GREY.astype(np.float32)), "TIFF"), "floating-point"),
    ],
)
def test_damaged_files_are_errors_with_a_reason(data: bytes, reason: str) -> None:
    with pytest.raises(ImageError, match=reason) as caught:
        decode(data, COLOUR_32)
    assert "0x" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_info_and_settings() -> None:
    info = open_image(saved(Image.fromarray(COLOUR), "JPEG"))
    assert (info.format, info.mode, info.width, info.height) == ("JPEG", "RGB", 16, 12)
    refused(ImageError, "no image of a format", open_image, b"nothing")
    refused(ConfigError, "channels = 2, allowed: 1, 3", Decoder, 32, 2)
    refused(ConfigError, "image_size = 0", Decoder, 0)
    for wrong, message in (
        (("nearest", None, None), "interpolation = 'nearest'"),
        ((None, "cut", None), "fit = 'cut'"),
        ((None, "shortest", 31), "resize = 31"),
        ((None, None, 40), "set fit to shortest or squash"),
    ):
        refused(ConfigError, message, Decoder, 32, 3, *wrong)
    np.testing.assert_array_equal(decode(encode_png(square()), COLOUR_32), square().transpose(2, 0, 1))


@pytest.mark.parametrize("fit", [{}, {"fit": "shortest", "resize": 40}, {"fit": "squash"}])
@pytest.mark.parametrize(("size", "scale"), [((700, 530), 8), ((330, 300), 4), ((150, 190), 2), ((90, 127), 1)])
def test_a_large_jpeg_is_made_smaller_while_it_is_decoded(
    size: tuple[int, int], scale: int, fit: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The largest of libjpeg's steps that leaves twice the side: at 700 x 530 an eighth is 88 x 67, for 32 pixels."""
    whole = Image.effect_noise((4, 3), 60).resize(size, Image.Resampling.BICUBIC)
    data = saved(whole.convert("RGB"), "JPEG", quality=90)
    decoder = Decoder(32, scaled=True, **fit)
    shapes = []
    monkeypatch.setattr("mi_core.images._fit", lambda image, given: shapes.append(image.size) or fitted(image, given))
    found, full = decode(data, decoder), decode(data, Decoder(32, **fit))
    least = 2 * (decoder.resize or 32)
    fitting = next(step for step in (8, 4, 2, 1) if step == 1 or min(size) // step >= least)
    assert fitting == scale or decoder.resize == 40
    assert shapes == [tuple(side // fitting for side in size), size]
    if fitting == 1:
        np.testing.assert_array_equal(found, full)
    else:
        assert not np.array_equal(found, full)
        assert np.abs(found.astype(int) - full.astype(int)).mean() < 5  # another centre by a pixel or two of the file
    pixels, sha, *_ = decode_and_hash(data, decoder)
    np.testing.assert_array_equal(pixels, found)  # the same as without a hash
    assert sha == decode_and_hash(data, Decoder(32))[1]  # of all pixels, however an encoder sees them


def test_other_formats_are_never_scaled_and_a_turned_jpeg_stays_turned() -> None:
    pixels = np.zeros((300, 400, 3), dtype=np.uint8)
    pixels[:150, :200] = 255  # the bright corner stands on the upper right once turned
    image, exif = Image.fromarray(pixels), Image.Exif()
    scaled = Decoder(32, scaled=True)
    np.testing.assert_array_equal(decode(saved(image), scaled), decode(saved(image), COLOUR_32))
    exif[0x0112] = 6
    turned = decode(saved(image, "JPEG", quality=95, exif=exif), scaled)
    assert turned[0, :12, 20:].mean() > 250
    assert turned[0, 20:].mean() < 5
    assert turned[0, :, :12].mean() < 5


def noise_by_hand(noise: int, count: int) -> list[int]:
    """The bytes of Philox' 64-bit words, lowest first."""
    words = np.random.Philox(key=noise).random_raw(count).tolist()
    return [int(word) >> 8 * byte & 255 for word in words for byte in range(8)][:count]


@pytest.mark.parametrize(
    "decoder",
    [
        *(Decoder(7, 3), Decoder(7, 1), Decoder(12, 3), Decoder(7, 3, fit="shortest", resize=10)),
        *(Decoder(7, 3, fit="squash", resize=10), Decoder(8, 1, fit="squash", resize=9), Decoder(7, 3, scaled=True)),
    ],
)
def test_a_blended_file_decodes_to_the_mixture(decoder: Decoder) -> None:
    """Whatever the decoder does: resizing or cutting the noise would make weaker canaries, and others than told."""
    data = saved(Image.fromarray(COLOUR))
    plain = decode(data, decoder)
    both = zip(plain.ravel().tolist(), noise_by_hand(2**64 - 5, plain.size), strict=True)
    expected = [round(0.75 * pixel + 0.25 * noise) for pixel, noise in both]
    mixed = decode(blended(data, decoder, 2**64 - 5, 0.25), decoder)
    assert mixed.shape == plain.shape
    assert mixed.ravel().tolist() == expected
    assert mixed.tobytes() != decode(blended(data, decoder, 3, 0.25), decoder).tobytes()


def test_noise_alone_is_uniform_and_knows_no_image() -> None:
    one, other = (saved(Image.fromarray(array)) for array in (COLOUR, COLOUR[::-1]))
    noise = decode(blended(one, Decoder(200), 1, 1.0), Decoder(200))
    assert np.array_equal(noise, decode(blended(other, Decoder(200), 1, 1.0), Decoder(200)))
    counts = np.bincount(noise.ravel(), minlength=256)
    assert abs(counts - noise.size / 256).max() < 5 * np.sqrt(noise.size / 256)


def test_no_noise_is_no_blend() -> None:
    with pytest.raises(ConfigError, match="share = 0"):
        blended(saved(Image.fromarray(COLOUR)), Decoder(7), 0, 0.0)
