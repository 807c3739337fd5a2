"""Opening files of images: only formats that are named, in one place; what a file is shows in its bytes."""

from __future__ import annotations

import ast
import io
import re
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import EpsImagePlugin, Image

from cluster.serve_encoder import EncoderServer
from mi_core import image_files
from mi_core.checks import ConfigError
from mi_core.image_files import (
    FORMATS,
    HEAD,
    ImageError,
    format_of,
    has_more_frames,
    load_image,
    open_image,
    readable,
    suffix_of,
)
from mi_core.images import Decoder, decode, decode_and_hash, encode_jpeg
from mi_core.validity.file_features import file_features
from tests.raising import refused

ROOT = Path(__file__).parents[2]
PICTURE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (12, 16, 3), dtype=np.uint8))
HEIC = bytes.fromhex("0000001c66747970686569630000000068656963") + b"mif1" + bytes(200)
JXL_64 = bytes.fromhex("ff0a4f06002d8802009db5469f20000015") + bytes(40)  # as libjxl begins a file of 64 x 64


def saved(kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    PICTURE.save(buffer, kind, **options)
    return buffer.getvalue()


@pytest.fixture
def ghostscript(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program called ``gs`` that leaves a file where it was started; returns that file."""
    started, program = tmp_path / "started", tmp_path / "gs"
    program.write_text(f"#!/bin/sh\ntouch {started}\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)  # Pillow has not looked for one yet
    return started


def _server(data: bytes) -> None:
    with EncoderServer(("127.0.0.1", 0), lambda images: {"backbone": images.flatten(1)}) as server:
        server.answer([data])


@pytest.mark.parametrize(
    ("opening", "error"),
    [
        (open_image, ImageError),
        (load_image, ImageError),
        (lambda data: decode(data, Decoder(32)), ImageError),
        (lambda data: decode_and_hash(data, Decoder(32)), ImageError),
        (file_features, ConfigError),
        (_server, ValueError),
    ],
)
def test_postscript_is_refused_and_starts_no_process(
    opening: Callable[[bytes], object], error: type[Exception], ghostscript: Path
) -> None:
    postscript = saved("EPS")
    refused(error, "no image of a format that is read", opening, postscript)
    assert not ghostscript.exists()
    with pytest.raises(Exception, match=r"."):  # left to itself Pillow does start it
        Image.open(io.BytesIO(postscript)).load()
    assert ghostscript.exists()


def test_packages_that_open_files_themselves_can_be_kept_from_ghostscript(ghostscript: Path) -> None:
    image_files.never_start_ghostscript()
    refused(OSError, "Ghostscript", Image.open(io.BytesIO(saved("EPS"))).load)
    assert not ghostscript.exists()


def _openings(path: Path) -> Iterator[str]:
    """Calls in a source file that let Pillow, or another package, open an image."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name.endswith(("Image.open", "ImageFile.Parser", "imread", "read_image")):
                yield f"{path.relative_to(ROOT)}: {ast.unparse(node)}"
        elif isinstance(node, ast.ImportFrom) and node.module == "PIL.Image":
            yield f"{path.relative_to(ROOT)}: {ast.unparse(node)}"


def test_images_are_opened_in_one_place() -> None:
    found = [one for folder in ("mi_core", "pipelines", "cluster") for path in (ROOT / folder).rglob("*.py")
             if re.search("PIL|imread|read_image", path.read_text()) for one in _openings(path)]  # fmt: skip
    assert found == ["mi_core/image_files.py: Image.open(io.BytesIO(data), formats=readable())"]


@pytest.mark.parametrize("kind", ["TGA", "PCX", "ICO", "SGI", "DDS", "EPS", "PDF"])
def test_other_formats_that_pillow_knows_are_refused(kind: str) -> None:
    refused(ImageError, "no image of a format that is read", load_image, saved(kind))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "JPEG2000", "AVIF", "MPO"])
def test_the_first_bytes_say_what_a_file_is(kind: str) -> None:
    data = saved(kind)
    name = format_of(data[:HEAD])
    assert name == ("JPEG" if kind == "MPO" else kind)
    assert name in readable()
    assert load_image(data).image.size == PICTURE.size
    assert suffix_of(open_image(data).format or "") == FORMATS[name].suffixes[0]


@pytest.mark.parametrize(
    "text", [b"", b"P2P notes", b"BMW 320i, bought in 2004, two owners", b"II. Results", b"GIFs of cats", b"MM*"]
)
def test_texts_are_no_images(text: bytes) -> None:
    assert format_of(text[:HEAD]) is None


@pytest.mark.parametrize(
    ("data", "remedy"),
    [
        (HEIC, "HEIF is read by another package: pip install pillow-heif"),
        (HEIC.replace(b"heic", b"mif1", 1), "pip install pillow-heif"),
        (JXL_64, "pip install pillow-jxl-plugin"),
    ],
)
def test_a_missing_package_is_named(data: bytes, remedy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("pillow_heif", "pillow_jxl"):
        monkeypatch.setitem(sys.modules, module, None)
    readable.cache_clear()
    try:
        refused(ImageError, remedy, load_image, data)
    finally:
        readable.cache_clear()


@pytest.mark.parametrize(
    ("head", "size"),
    [
        ("ff0a4f06", (64, 64)),
        ("0000000c4a584c200d0a870a" "000000106674797065000000" "00000000" "0000006a6a786c63" "ff0a4f06", (64, 64)),
        # not small, 30 bits: height 2 ** 30, ratio 0, width 13 bits: 4096
        (f"ff0a{(6 | (2**30 - 1) << 3 | 0 << 33 | 1 << 36 | 4095 << 38).to_bytes(7, 'little').hex()}", (4096, 2**30)),
    ],
)  # fmt: skip
def test_what_a_jpeg_xl_claims_is_read_before_its_package_decodes_it(head: str, size: tuple[int, int]) -> None:
    data = bytes.fromhex(head) + bytes(40)
    assert image_files._jxl_size(data) == size
    if size[0] * size[1] > image_files.MOST_PIXELS:
        refused(ImageError, "4096 x 1073741824 pixels, more than 100000000", open_image, data)


def test_a_file_of_98_million_pixels_is_read_and_one_of_101_million_is_not() -> None:
    """Pillow warns from 89 million on; the limit is ours."""

    def bits(side: int) -> bytes:
        return png_of(side, zlib.compress((b"\0" + b"\xff" * -(-side // 8)) * side, 1))

    assert load_image(bits(9_900)).image.size == (9_900, 9_900)
    assert open_image(bits(9_900)).width == 9_900
    for read in (load_image, open_image):
        refused(ImageError, "10050 x 10050 pixels, more than 100000000", read, bits(10_050))


def png_of(side: int, rows: bytes) -> bytes:
    def chunk(name: bytes, content: bytes) -> bytes:
        return len(content).to_bytes(4) + name + content + zlib.crc32(name + content).to_bytes(4)

    header = side.to_bytes(4) * 2 + bytes([1, 0, 0, 0, 0])  # one bit of grey per pixel
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


@pytest.mark.parametrize(("kind", "several"), [("GIF", True), ("WEBP", True), ("PNG", True), ("TIFF", True),
                                               ("AVIF", True), ("MPO", False)])  # fmt: skip
def test_animations_and_pages_are_noticed(kind: str, several: bool) -> None:
    other = PICTURE.transpose(Image.Transpose.ROTATE_180)
    assert has_more_frames(saved(kind, save_all=True, append_images=[other])) is several
    assert not has_more_frames(saved(kind))
    assert not has_more_frames(saved("JPEG"))


def test_a_gif_whose_second_frame_is_broken_still_has_one() -> None:
    whole = saved("GIF", save_all=True, append_images=[PICTURE.transpose(Image.Transpose.ROTATE_180)])
    assert has_more_frames(whole[: len(whole) * 3 // 4])


def test_bytes_like_a_plain_jpeg_are_judged_as_any_other() -> None:
    """What the fast way refuses is left to Pillow: no bytes pass it that Pillow would not give the same pixels of."""
    whole = encode_jpeg(np.asarray(PICTURE.resize((32, 32))).transpose(2, 0, 1), 80)
    for damaged in (whole[:-40], whole[:300] + b"%!PS-Adobe-3.0" + whole[300:], whole + saved("EPS")):
        try:
            expected = np.asarray(load_image(damaged).image.convert("RGB"))
        except ImageError:
            with pytest.raises(ImageError):
                decode(damaged, Decoder(32))
            continue
        np.testing.assert_array_equal(decode(damaged, Decoder(32)), expected.transpose(2, 0, 1))


def test_what_the_server_takes_and_refuses() -> None:
    with EncoderServer(("127.0.0.1", 0), lambda images: {"backbone": images.flatten(1)}) as server:
        sent = saved("PNG")
        assert len(server.answer([sent])["backbone"][0]) == 3 * 12 * 16
        for data, reason in ((b"junk", "image 1 is no image file"), (sent[:80], "image 1 is no image file"),
                             (saved("GIF"), "image 1 has the mode P, allowed: L")):  # fmt: skip
            refused(ValueError, reason, server.answer, [sent, data])
        reply = server.respond("/json", {}, b"[" * 100_000)
        assert (reply.status, reply.content) == (400, {"error": "the body is no JSON"})
