"""Files of images: which formats are opened, and the one place where Pillow opens anything.

The first bytes of a file say what it is, never its name. Only the formats named here are opened: left to itself Pillow
tries some forty, and starts Ghostscript for PostScript that is called ``.jpg``. HEIC and JPEG XL need packages of their
own, which are used where they are installed.
"""

from __future__ import annotations

import io
import re
import struct
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from PIL import EpsImagePlugin, Image, TiffImagePlugin, UnidentifiedImageError, features

T = TypeVar("T")
MOST_PIXELS = 100_000_000  # a file that claims more is refused before it is decoded
HEAD = 132  # first bytes of a file that are looked at
ORIENTATION = 0x112  # of EXIF and TIFF
_PNG_KEPT = frozenset((b"IHDR", b"PLTE", b"IDAT", b"IEND", b"tRNS", b"eXIf"))  # chunks that make the pixels


class ImageError(ValueError):
    """An image cannot be decoded; the message says why."""


@dataclass(frozen=True)
class Loaded:
    """A decoded file.

    Args:
        image: of several frames the first.
        orientation: that its metadata tell, 1 (as stored) to 8, as EXIF numbers them.
        turned: whether it has been applied already, as Pillow does with TIFF.
        deep: whether a colour has 16 bits in the file, of which the upper 8 were read.
        metadata: whether they could be read.
    """

    image: Image.Image
    orientation: int
    turned: bool
    deep: bool
    metadata: bool


@dataclass(frozen=True)
class Format:
    """A format of image files.

    Args:
        suffixes: of its files; the first is the one to write.
        magic: regular expression that the first bytes match.
        package: what installs a decoder of it.
        feature: what Pillow has to be built with, in its own word.
        plugin: module that brings the decoder.
    """

    suffixes: tuple[str, ...]
    magic: bytes
    package: str = "pillow"
    feature: str = ""
    plugin: str = ""


FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        "JPEG": Format(("jpg", "jpeg", "jpe", "jfif", "mpo"), rb"\xff\xd8\xff"),
        "PNG": Format(("png", "apng"), rb"\x89PNG\r\n\x1a\n"),
        "WEBP": Format(("webp",), rb"RIFF....WEBP", feature="webp"),
        "GIF": Format(("gif",), rb"GIF8[79]a"),
        "BMP": Format(("bmp",), rb"BM.{4}\0{4}"),
        "TIFF": Format(("tif", "tiff"), rb"II[*+]\0|MM\0[*+]"),
        "PPM": Format(("ppm", "pgm", "pbm", "pnm"), rb"P[1-6]\s"),
        "JPEG2000": Format(
            ("jp2", "j2k", "jpx", "jpc", "j2c"), rb"\xff\x4f\xff\x51|\0\0\0\x0cjP  \r\n\x87\n", feature="jpg_2000"
        ),
        "AVIF": Format(("avif",), rb".{4}ftyp(avif|avis|mif1.{0,12}avif)", "'pillow>=11.3'", feature="avif"),
        "HEIF": Format(
            ("heic", "heif", "hif"), rb".{4}ftyp(hei[cxms]|hev[cxms]|mif1|msf1)", "pillow-heif", plugin="pillow_heif"
        ),
        "JXL": Format(("jxl",), rb"\xff\x0a|\0\0\0\x0cJXL \r\n\x87\n", "pillow-jxl-plugin", plugin="pillow_jxl"),
    }
)
SUFFIXES = tuple(suffix for kind in FORMATS.values() for suffix in kind.suffixes)
NOT_EVERYWHERE = frozenset(suffix for kind in FORMATS.values() if kind.package != "pillow" for suffix in kind.suffixes)
"""Suffixes of formats that some machines cannot read."""
_DICOM = b"DICM"  # after 128 bytes of any content
_CONVERTERS = {
    **dict.fromkeys(("dcm", "dicom"), "convert all with one window to PNG, such as by dcm2img of DCMTK or pydicom"),
    **dict.fromkeys(("mrxs", "ndpi", "scn", "svs"), "cut the slides into tiles, such as by OpenSlide"),
    **dict.fromkeys(("mha", "nii", "nrrd"), "write the slices as PNG, such as by SimpleITK"),
}
OTHER_PICTURES = frozenset(
    (
        *_CONVERTERS,
        "3fr", "arw", "cr2", "cr3", "crw", "dng", "erf", "kdc", "mrw", "nef", "nrw", "orf", "pef", "raf", "raw", "rw2",
        "rwl", "sr2", "srf", "srw", "x3f",  # what cameras write
        "dds", "eps", "exr", "hdr", "icns", "ico", "pcx", "psb", "psd", "qoi", "sgi", "svg", "tga", "wmf", "xcf",
    )
)  # fmt: skip
"""Suffixes of pictures in formats that are not opened."""
_MANY_FRAMES = ("PNG", "WEBP", "GIF", "TIFF", "AVIF")  # further frames of a JPEG or HEIC are depth and previews


def suffix_in(name: str) -> str:
    """The suffix of a file by its name or path, in lower case and without the dot; empty: it has none."""
    base = name.rpartition("/")[2]
    return base.rpartition(".")[2].lower() if "." in base else ""


def sort_files(names: Iterable[str], head: Callable[[str], bytes]) -> tuple[list[str], dict[str, str]]:
    """The images among the files of a folder, and why other pictures are lost, by name.

    A picture in a format that is not opened is no loss where an image of the same name stands beside it. ``head`` gives
    the first `HEAD` bytes of a file; those without a suffix, or with a number, are looked into.

    Example:
        >>> sort_files(["a.png", "a.psd", "b.psd", "c.txt", "d"], lambda name: b"BM0000" + bytes(4))
        (['a.png', 'd'], {'b.psd': '.psd pictures cannot be read; convert it to PNG or JPEG'})
    """
    kinds = {name: suffix_in(name) for name in names}
    heads = {name: head(name) for name, kind in kinds.items() if not kind or kind.isdigit()}
    kinds |= {name: "dcm" for name, first in heads.items() if first[128:] == _DICOM}  # some begin as a TIFF does
    images = [name for name, kind in kinds.items() if kind in SUFFIXES or (not kind and format_of(heads[name]))]
    stems = {name: name.removesuffix(f".{name.rpartition('.')[2]}") if kind else name for name, kind in kinds.items()}
    twins = {stems[name] for name in images}
    lost = [name for name, kind in kinds.items() if kind in OTHER_PICTURES and stems[name] not in twins]
    return images, {
        name: f".{kinds[name]} pictures cannot be read; {_CONVERTERS.get(kinds[name], 'convert it to PNG or JPEG')}"
        for name in lost
    }


def format_of(head: bytes) -> str | None:
    """The format, a key of `FORMATS`, that a file's first `HEAD` bytes show; None: it is no image of these."""
    return next((name for name, kind in FORMATS.items() if re.match(kind.magic, head, re.DOTALL)), None)


@cache
def readable() -> tuple[str, ...]:
    """The formats that can be opened in this process; their packages are imported on the first call."""
    Image.init()
    return tuple(name for name, kind in FORMATS.items() if _decoder(name, kind))


def _decoder(name: str, kind: Format) -> bool:
    if kind.plugin:
        try:
            module = import_module(kind.plugin)
        except ImportError:
            return False
        getattr(module, "register_heif_opener", bool)()
    return name in Image.OPEN and (not kind.feature or bool(features.check(kind.feature)))


def open_image(data: bytes) -> Image.Image:
    """Read the header of an encoded image; its pixels are decoded when they are first asked for.

    Raises:
        ImageError: the bytes are no image of a format that is opened, or claim more than 100 million pixels; for a
            format whose package is missing the message names the package.
    """
    return _opened(data, lambda image: image)[0]


def load_image(data: bytes, least: int | None = None) -> Loaded:
    """Decode an encoded image.

    Args:
        data: the file.
        least: a JPEG comes at the smallest of 1/1, 1/2, 1/4 and 1/8 of its size with both sides at least this long,
            which takes a fraction of the time, without up to 7 pixels at the right and the lower border; other formats
            come as they are. None: the full size.

    Raises:
        ImageError: as `open_image`, or the file is empty, damaged or cut short.
    """
    if not data:
        raise ImageError("the file is empty")

    def loaded(image: Image.Image) -> Loaded:
        deep = ";16" in str(getattr(image, "tile", "")) and not image.mode.startswith("I")
        before = orientation_of(image)
        drafted = None if least is None else image.draft(image.mode, (least, least))
        image.load()
        after = orientation_of(image)
        turned = image.format == "TIFF" and before is not None
        orientation = before if turned else after
        if drafted is not None:
            (_, (_, _, width, height)) = drafted  # a block that the border cuts would count as a whole one
            image = image.crop((0, 0, int(width), int(height)))
        return Loaded(image, orientation or 1, turned, deep, None not in (before, after))

    found, whole = _opened(data, loaded)
    return found if whole else replace(found, metadata=False)


def _opened(data: bytes, finish: Callable[[Image.Image], T]) -> tuple[T, bool]:
    """The result for an opened image, and whether it is that of the whole file: not of a PNG with damaged metadata."""
    kind = format_of(data[:HEAD])
    if kind == "JXL":
        _check_size(*_jxl_size(data))  # its package decodes what it opens
    try:
        return _tried(data, finish), True
    except ImageError as error:
        bare = data
        if kind == "PNG":  # without texts, profiles and all else that its pixels do not depend on
            bare = data[:8] + b"".join(chunk for name, chunk in png_chunks(data) if name in _PNG_KEPT)
        if len(bare) == len(data):
            raise
        try:
            return _tried(bare, finish), False
        except ImageError:
            raise error from None


def _tried(data: bytes, finish: Callable[[Image.Image], T]) -> T:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            image = Image.open(io.BytesIO(data), formats=readable())
            _check_size(image.width, image.height)
            if fault := sample_fault(image):
                raise ImageError(fault)
            return finish(image)
    except ImageError:
        raise
    except Image.DecompressionBombError as error:
        raise ImageError(f"more than {MOST_PIXELS} pixels") from error
    except Exception as error:
        unknown = isinstance(error, UnidentifiedImageError) or "raw mode" in str(error)
        raise ImageError(_unopened(data) or (unknown and tiff_in_words(data)) or reason_of(error)) from error


def png_chunks(png: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The name and all bytes of each chunk of a PNG."""
    start = 8
    while start + 12 <= len(png):
        end = start + 12 + int.from_bytes(png[start : start + 4])
        yield png[start + 4 : start + 8], png[start:end]
        start = end


def orientation_of(image: Image.Image) -> int | None:
    """The orientation, 1 to 8, that the metadata of an image tell; 1: they tell none; None: they cannot be read."""
    try:
        return int(image.getexif().get(ORIENTATION, 1))
    except Exception:  # noqa: BLE001 - damaged metadata fail in any way
        return None


def suffix_of(kind: str) -> str:
    """The suffix of files of a format, by Pillow's name of the format."""
    return FORMATS["JPEG" if kind == "MPO" else kind].suffixes[0]


def has_more_frames(data: bytes) -> bool:
    """True if an image that decodes is an animation or has several pages, of which only the first is used."""
    kind = format_of(data[:HEAD])
    if kind not in _MANY_FRAMES or (kind == "PNG" and b"acTL" not in data[: data.find(b"IDAT")]):
        return False  # a PNG says before its pixels that it is an animation
    try:
        return bool(getattr(open_image(data), "is_animated", False))
    except (OSError, SyntaxError, TypeError, ValueError, IndexError, struct.error):  # a broken second frame
        return True


def never_start_ghostscript() -> None:
    """Let Pillow in this process refuse PostScript, for packages that open files by themselves."""
    EpsImagePlugin.gs_binary = False


def lacking(messages: Iterable[str]) -> tuple[str, ...]:
    """The formats, keys of `FORMATS`, whose packages were missing, as messages of `ImageError` say."""
    told = list(messages)
    return tuple(name for name in FORMATS if any(_needs(name) in message for message in told))


def _needs(name: str) -> str:
    return f"{name} is read by another package: pip install {FORMATS[name].package}"


def _unopened(data: bytes) -> str:
    """The reason that an image has no decoder here; empty: it has one."""
    name = format_of(data[:HEAD])
    if name is None:
        return f"no image of a format that is read ({', '.join(FORMATS)})"
    return "" if name in readable() else _needs(name)


def reason_of(error: Exception) -> str:
    """The message of a decoder, in words for people."""
    text = str(error).split("<_io.BytesIO object")[0].strip()  # an address in memory helps nobody
    return text or type(error).__name__


def _check_size(width: int, height: int) -> None:
    if width * height > MOST_PIXELS:
        raise ImageError(f"{width} x {height} pixels, more than {MOST_PIXELS}")


def _jxl_size(data: bytes) -> tuple[int, int]:
    """Width and height that a JPEG XL file claims (ISO/IEC 18181-1, SizeHeader); 0 where it is cut short."""
    code = data if data[:2] == b"\xff\x0a" else _jxl_codestream(data)
    bits, place = int.from_bytes(code[2:14], "little"), 0

    def take(count: int) -> int:
        nonlocal place
        place += count
        return bits >> (place - count) & ((1 << count) - 1)

    def side(small: int) -> int:
        return 8 * (1 + take(5)) if small else 1 + take((9, 13, 18, 30)[take(2)])

    if len(code) < 14:
        return 0, 0
    small = take(1)
    height = side(small)
    ratio = take(3)
    over, under = ((0, 1), (1, 1), (12, 10), (4, 3), (3, 2), (16, 9), (5, 4), (2, 1))[ratio]
    return (height * over // under if ratio else side(small)), height


def _jxl_codestream(data: bytes) -> bytes:
    """The first piece of the image itself in a container of boxes."""
    place = 0
    while place + 8 <= len(data):
        size, kind = int.from_bytes(data[place : place + 4]), data[place + 4 : place + 8]
        if kind in (b"jxlc", b"jxlp"):
            return data[place + (8 if kind == b"jxlc" else 12) :]
        place += max(8, int.from_bytes(data[place + 8 : place + 16]) if size == 1 else size)
    return b""


SIGNED = 2
_KINDS = {1: "unsigned", SIGNED: "signed", 3: "floating-point"}
_REMEDY = "pixels of this kind cannot be read; save it with 8 or 16 bits, unsigned"


class PixelSamples(NamedTuple):
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


def samples_of(image: Image.Image) -> PixelSamples:
    """The samples of an image that Pillow opened."""
    return _samples_in(image.tag_v2) if isinstance(image, TiffImagePlugin.TiffImageFile) else PixelSamples()


def _samples_in(tags: Mapping[int, Any]) -> PixelSamples:
    bits = tags.get(258, (1,))
    return PixelSamples(bits[0], tags.get(339, (1,))[0], tags.get(277, len(bits)), tags.get(262, 0), tags.get(284) == 2)


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
        return _samples_in(tags).words() if len(tags) else ""
    except Exception:  # noqa: BLE001 - damaged tags fail in any way
        return ""
