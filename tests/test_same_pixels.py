"""An image has the same pixels and hash however it comes: as file, PIL image, array, in tars and in Parquet."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image, PngImagePlugin

from mi_core import image_files
from mi_core.auditing.images import encoded
from mi_core.image_files import ImageError
from mi_core.images import Decoded, Decoder, decode, decode_and_hash
from pipelines.config.sections.data import DataConfig
from pipelines.data.scan.scan import scan
from tests.mi_core.tiffs import tiff_bytes

MODES = ("1", "L", "LA", "La", "P", "RGB", "RGBA", "RGBa", "CMYK", "YCbCr", "LAB", "HSV", "I;16", "I;16B", "I", "F")
FORMATS = ("PNG", "TIFF", "JPEG", "WEBP", "BMP", "GIF", "JPEG2000")
DECODERS = (Decoder(16), Decoder(12, 1, orientation="stored"), Decoder(16, fit="squash", resize=20, depth=12))


def picture(mode: str, width: int, height: int, high: int, seed: int) -> Image.Image:
    draw = np.random.default_rng(seed)
    if mode in ("I;16", "I;16B", "I"):
        values = draw.integers(0, high + 1, (height, width))
        made = Image.fromarray(values.astype({"I;16": "<u2", "I;16B": ">u2", "I": np.int32}[mode]))
        assert made.mode == mode
        return made
    if mode == "F":
        return Image.fromarray(draw.random((height, width), dtype=np.float32))
    colours = Image.fromarray(draw.integers(0, 256, (height, width, 4), dtype=np.uint8), "RGBA")
    if mode in ("La", "RGBa"):
        return colours.convert("LA" if mode == "La" else "RGBA").convert(mode)
    return colours if mode == "RGBA" else colours.convert("RGB").convert(mode)


@st.composite
def images(draw: st.DrawFn) -> tuple[Image.Image, bytes | None, int]:
    """An image, its file (None: no format of files has it), and the orientation that both tell."""
    sizes = st.integers(5, 40)
    high = draw(st.sampled_from((255, 1023, 4095, 16383, 65535)))
    seed = draw(st.integers(0, 2**32 - 1))
    made = picture(draw(st.sampled_from(MODES)), draw(sizes), draw(sizes), high, seed)
    orientation = draw(st.integers(0, 8))
    exif = Image.Exif()
    exif[0x112] = orientation or 1
    more: dict[str, Any] = {"exif": exif} if orientation else {}
    kind = draw(st.sampled_from(FORMATS))
    if kind == "PNG" and draw(st.booleans()):
        texts = PngImagePlugin.PngInfo()
        texts.add_text("large", "a" * 2_000_000, zip=True)
        more["pnginfo"] = texts
    buffer = io.BytesIO()
    try:
        made.save(buffer, kind, **more)
    except (OSError, KeyError, ValueError):  # the format has no such mode
        return made, None, 0
    return made, buffer.getvalue(), orientation if kind in ("PNG", "TIFF", "JPEG", "WEBP") else 0


def read(data: Any, decoder: Decoder) -> Decoded | str:
    try:
        return decode_and_hash(data if isinstance(data, bytes) else encoded(data), decoder)
    except ImageError as error:
        return str(error)


def same(left: Decoded | str, right: Decoded | str) -> bool:
    if isinstance(left, str) or isinstance(right, str):
        return isinstance(left, str) and isinstance(right, str)
    return left.sha256 == right.sha256 and np.array_equal(left.pixels, right.pixels)


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(images(), st.sampled_from(DECODERS))
def test_the_same_by_file_by_pil_image_and_by_array(made: Any, decoder: Decoder) -> None:
    image, data, orientation = made
    if data is not None:
        try:
            opened = Image.open(io.BytesIO(data))
            opened.load()
        except ValueError:  # Pillow by itself refuses large texts
            opened = image
        if opened is not image and not (
            opened.format == "TIFF" and decoder.orientation == "stored"
        ):  # Pillow has turned it
            assert same(read(data, decoder), read(opened, decoder))
        whole = read(data, decoder)
        if not isinstance(whole, str):
            assert np.array_equal(decode(data, decoder), whole.pixels)
            assert any("EXIF" in remark for remark in whole.remarks) == (orientation > 1)
    elif image.mode in ("L", "RGB", "RGBA", "I;16"):
        assert same(read(image, decoder), read(np.asarray(image), decoder))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["PNG", "TIFF", "JPEG", "WEBP"])
def test_stored_is_what_the_file_holds_and_turned_what_it_shows(kind: str, orientation: int) -> None:
    stored = np.zeros((16, 24, 3), dtype=np.uint8)
    stored[:4, :6] = 255
    exif = Image.Exif()
    exif[0x112] = orientation
    buffer = io.BytesIO()
    Image.fromarray(stored).save(buffer, kind, exif=exif, **({"lossless": True} if kind == "WEBP" else {}))
    data = buffer.getvalue()
    side = Decoder(16, fit="squash", resize=16)
    found = [
        decode_and_hash(data, Decoder(16, fit="squash", resize=16, orientation=one)) for one in ("stored", "turned")
    ]
    plain = decode_and_hash(encoded(stored), side)
    np.testing.assert_allclose(found[0].pixels.astype(int), plain.pixels, atol=16 if kind == "JPEG" else 0)
    corners = {1: (0, 0), 2: (0, -1), 3: (-1, -1), 4: (-1, 0), 5: (0, 0), 6: (0, -1), 7: (-1, -1), 8: (-1, 0)}
    row, column = corners[orientation]
    assert found[1].pixels[0, row, column] > 240  # where a person sees the white corner
    assert [any("EXIF" in remark for remark in one.remarks) for one in found] == [orientation > 1] * 2


def test_12_bits_are_scaled_and_a_scale_that_is_unusual_is_told() -> None:
    values = np.random.default_rng(0).integers(0, 4096, (16, 16)).astype(np.uint16)
    data = encoded(Image.fromarray(values))
    dark, scaled = read(data, Decoder(16, 1)), read(data, Decoder(16, 1, depth=12))
    assert not isinstance(dark, str) and not isinstance(scaled, str)
    assert dark.pixels.max() <= 15
    assert any("stay below 4,096; if they have 12 bits, set depth to 12" in remark for remark in dark.remarks)
    np.testing.assert_array_equal(scaled.pixels[0], values >> 4)
    assert "outside of the 10 bits" in str(read(data, Decoder(16, 1, depth=10)))


@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
def test_metadata_that_cannot_be_read_cost_no_image(kind: str) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    junk = b"Exif\0\0\x00\x08\x00\x02\x01\x12" if kind == "WEBP" else b"junk"
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind, exif=junk, **({"lossless": True} if kind == "WEBP" else {}))
    for given_as in (buffer.getvalue(), Image.open(io.BytesIO(buffer.getvalue()))):
        found = read(given_as, Decoder(16))
        assert not isinstance(found, str)
        np.testing.assert_array_equal(found.pixels, pixels.transpose(2, 0, 1))
    assert read(buffer.getvalue(), Decoder(16)).remarks == ("some metadata unreadable, pixels read",)  # type: ignore[union-attr]


@pytest.mark.parametrize("profile", [False, True])
@pytest.mark.parametrize("count", [1, 80])
def test_metadata_of_any_size_cost_no_image(profile: bool, count: int) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    texts = PngImagePlugin.PngInfo()
    for number in range(count):
        texts.add_text(f"k{number}", "b" * (2_000_000 if count == 1 else 900_000), zip=True)
    buffer = io.BytesIO()
    more = {"icc_profile": b"\0" * 3_000_000} if profile else {}
    Image.fromarray(pixels).save(buffer, "PNG", pnginfo=texts, **more)
    found = read(buffer.getvalue(), Decoder(16))
    assert not isinstance(found, str)
    np.testing.assert_array_equal(found.pixels, pixels.transpose(2, 0, 1))
    assert "some metadata unreadable, pixels read" in found.remarks


def _stored(place: Path, files: dict[str, bytes]) -> None:
    """Files in a folder, in a tar and in Parquet."""
    (place / "folder").mkdir()
    with tarfile.open(place / "a.tar", "w") as tar:
        for name, data in files.items():
            (place / "folder" / name).write_bytes(data)
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    rows = {"key": [name.partition(".")[0] for name in files], "image": list(files.values())}
    pq.write_table(pa.table(rows), place / "a.parquet")


def _of_all_kinds() -> dict[str, bytes]:
    """One picture in every format and mode that Pillow writes, TIFF of further samples, and damaged JPEG."""
    files: dict[str, bytes] = {}
    for kind in (*FORMATS, "PPM", "AVIF"):
        for number, mode in enumerate(MODES):
            buffer = io.BytesIO()
            try:
                picture(mode, 20, 20, 65535, number).save(buffer, kind)
            except (OSError, KeyError, ValueError):  # the format has no such mode
                continue
            files[f"{kind}-{mode.replace(';', '')}.{image_files.FORMATS[kind].suffixes[0]}"] = buffer.getvalue()
    deep = np.random.default_rng(0).integers(0, 65536, (20, 20, 3)).astype(np.uint16)
    for name, values in (("u16", deep), ("i16", (deep >> 1).astype(np.int16)), ("u32", deep.astype(np.uint32) << 16)):
        for photometric in (0, 1):
            files[f"{name}-{photometric}.tif"] = tiff_bytes(values[..., 0], photometric)
        files[f"{name}-planes.tif"] = tiff_bytes(values, 2, planes=True)
    files["u12.tif"] = tiff_bytes(deep[..., 0] >> 4, 1, bits=12)
    files["i8.tif"] = tiff_bytes((deep[..., 0] >> 9).astype(np.int8), 1)
    files["f32.tif"] = tiff_bytes(deep.astype(np.float32) / 65535, 2)
    whole = files["JPEG-RGB.jpg"]
    return files | {"cut.jpg": whole[:-60], "closed.jpg": whole[:-60] + b"\xff\xd9"}


def test_every_format_and_mode_has_the_same_pixels_or_the_same_refusal_by_every_way(tmp_path: Path) -> None:
    files = _of_all_kinds()
    assert len(files) > 60
    _stored(tmp_path, files)
    by_file = {name.partition(".")[0]: read(data, Decoder(16)) for name, data in files.items()}
    good = {key: bytes.fromhex(one.sha256) for key, one in by_file.items() if not isinstance(one, str)}
    assert 10 < len(by_file) - len(good) < 20
    for name, data in files.items():
        key = name.partition(".")[0]
        try:
            opened = Image.open(io.BytesIO(data))
            opened.load()
        except OSError:
            assert key not in good
            continue
        assert same(by_file[key], read(opened, Decoder(16))), name
        if opened.mode in ("1", "L", "LA", "RGB", "RGBA", "I;16") and key in good and key not in ("u16-0", "u12"):
            assert same(by_file[key], read(np.asarray(opened), Decoder(16))), name
    for kind, place in (("imagefolder", "folder"), ("shards", "a.tar"), ("parquet", "a.parquet")):
        source = {"kind": kind, "path": str(tmp_path / place)}
        roles = {"candidate": {"from": "some"}}
        data = {"sources": {"some": source}, "image_size": 16, "roles": roles, "max_rejected": 1}
        scanned = scan(DataConfig.model_validate(data))
        table = pq.read_table(scanned.shards[0].path)
        keys = [Path(key).stem for key in table["key"].to_pylist()]
        assert dict(zip(keys, table["sha256"].to_pylist(), strict=True)) == good
        refused = {Path(one.key).stem: one.reason.removeprefix("undecodable: ") for one in scanned.rejected}
        refused.pop("*images", None)  # its notes
        assert refused == {key: one for key, one in by_file.items() if key not in good}
        assert "1 image: JPEG data damaged" in " ".join(scanned.tally.notes())
