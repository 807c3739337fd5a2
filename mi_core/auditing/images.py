"""Images in any of the forms that Python programs have them in, as encoded files with keys.

Arrays, tensors and PIL images become PNG files with the values and the orientation that they have; one decoder makes
pixels of these and of other files. So nothing about their origin is made up: a blind classifier sees pixels alone.
"""

from __future__ import annotations

import io
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from mi_core import image_files
from mi_core.checks import ConfigError
from mi_core.hashing import printable
from mi_core.images import eight_bits, grey_values

_CHANNELS = (1, 2, 3, 4)
_IMAGE_KEYS = ("image", "img", "jpg", "png", "pixels")  # of the image in a dictionary
_PNG_MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")
_MOST_HELD = 2_000_000_000  # bytes of images that can be gone through once
TWICE = 16  # images of a side that are asked for twice
_ROUNDING = 1e-3  # by which values may leave their range


@dataclass(frozen=True)
class Picture:
    """One image: its key, a function that gives its encoded bytes, and why it cannot be read where that is known."""

    key: str
    data: Callable[[], bytes]
    fault: str = ""


def items_of(given: Any, name: str) -> list[Picture]:
    """The images of a side of an audit.

    Args:
        given: a folder; a list of files, of encoded bytes, of PIL images or of arrays; an array or tensor (N, H, W),
            (N, H, W, C) or (N, C, H, W), uint8 or float in [0, 1]; a data set with ``len`` and ``[]``, a DataLoader or
            anything else that yields samples. Samples are images, (image, label) or dictionaries with an image, as
            torch and Hugging Face have them. What can only be gone through once is kept in memory, as PNG files.
        name: of the side, for messages.

    Returns:
        Items with distinct keys: names of files below the folder, paths, or positions. Pictures of a folder in formats
        that are not opened have a fault, unless an image of the same name stands beside them.

    Raises:
        ConfigError: it is none of these, holds no image, or yields more than 2 GB.
    """
    if isinstance(given, str | os.PathLike):
        return _of_folder(given, name)
    if isinstance(given, Mapping):  # columns, as a slice of a Hugging Face data set has them
        held = [key for key in _IMAGE_KEYS if key in given and hasattr(given[key], "__len__")]
        if not held:
            raise ConfigError(f"{name} is a dictionary of {', '.join(map(str, given))}; give one of its parts")
        given = given[held[0]]
    if hasattr(given, "dataset") and hasattr(given, "batch_sampler"):  # a DataLoader
        given = given.dataset
    if hasattr(given, "__array__") or hasattr(given, "numpy"):
        given = _batch(given, name)
    if isinstance(given, bytes | Image.Image):
        raise ConfigError(f"{name} is a single {type(given).__name__}; give a list of images")
    if not (hasattr(given, "__len__") and hasattr(given, "__getitem__")):
        return _yielded(given, name)
    if not len(given):
        raise ConfigError(f"{name} is empty; give at least some images")
    if isinstance(given, Sequence) and all(isinstance(one, str | os.PathLike) for one in given):
        items = [Picture(printable(path.as_posix()), path.read_bytes) for path in map(Path, given)]
        key, number = Counter(item.key for item in items).most_common(1)[0]
        if number > 1:
            raise ConfigError(f"{name} lists {key} twice; list every file once")
        return items
    width = len(str(len(given) - 1))
    return [Picture(f"{at:0{width}d}", partial(_encoded_at, given, at, f"{name}[{at}]")) for at in range(len(given))]


def check_steady(item: Picture, data: bytes, side: str) -> None:
    """Raise ConfigError if an image is another one than before, ``data``, when it is asked for again."""
    if item.data() != data:
        raise ConfigError(
            f"{side}/{item.key} is another image each time that it is asked for; give the data set without its random "
            "augmentation"
        )


def _yielded(given: Any, name: str) -> list[Picture]:
    if not hasattr(given, "__iter__"):
        raise ConfigError(
            f"{name} is a {type(given).__name__}; give a folder, a list of images, an array or a data set"
        )
    held: list[bytes] = []
    room = _MOST_HELD
    try:
        for image in given:
            held.append(encoded(image, f"{name}[{len(held)}]"))
            room -= len(held[-1])
            if room < 0:
                break
    except Exception as error:
        raise ConfigError(f"{name}[{len(held)}]: {error_in_words(error)}") from error
    if room < 0:
        raise ConfigError(
            f"{name} yields more than {_MOST_HELD // 10**9} GB in {len(held):,} images; give a folder, or a data set "
            "with len() and [], which is read piece by piece"
        )
    if not held:
        raise ConfigError(f"{name} yields nothing; give at least some images")
    width = len(str(len(held) - 1))
    return [Picture(f"{row:0{width}d}", partial(bytes, one)) for row, one in enumerate(held)]


def error_in_words(error: Exception) -> str:
    """The message of an exception in one line; our own as it is, another with its type."""
    text = " ".join(str(error).split()) or "no message"
    return text if isinstance(error, ConfigError | image_files.ImageError) else f"{type(error).__name__}: {text}"


def _of_folder(place: str | os.PathLike[str], name: str) -> list[Picture]:
    folder, told = Path(place), f"{name} = {os.fspath(place)!r}"
    if not folder.is_dir():
        raise ConfigError(f"{told} {_no_folder(os.fspath(place))}")
    if (folder / "state.json").is_file() or (folder / "dataset_dict.json").is_file():
        raise ConfigError(f"{told} is a folder of the datasets package; give datasets.load_from_disk({str(folder)!r})")
    names = [path.relative_to(folder).as_posix() for path in _files(folder)]
    images, lost = image_files.sort_files(names, lambda name: _head(folder / name))
    if not images:
        raise ConfigError(f"{told} holds no image ({', '.join(image_files.SUFFIXES)})")
    files = sorted((printable(name), name) for name in (*images, *lost))
    return [Picture(key, (folder / name).read_bytes, lost.get(name, "")) for key, name in files]


def _no_folder(place: str) -> str:
    """Why a place is no folder of images, and what to give."""
    if "://" in place:
        return "is an address, which Python does not read; the command encoder-audit audit does"
    if any(sign in place for sign in "*?["):
        return "is a pattern; give the list of files: sorted(glob.glob(...))"
    suffix = image_files.suffix_in(place)
    if suffix in ("tar", "parquet"):
        reader = "webdataset.WebDataset(...)" if suffix == "tar" else "datasets.Dataset.from_parquet(...)"
        return f"is a shard; give a data set that reads it, such as {reader}, or use the command encoder-audit audit"
    return "is a single file; give a list of files" if Path(place).is_file() else "does not exist; give a folder"


def _files(folder: Path) -> Iterator[Path]:
    """Files below a folder but hidden ones; a link to a folder that it stands in is not followed."""
    pending: list[tuple[Path, frozenset[tuple[int, int]]]] = [(folder, frozenset())]
    while pending:
        place, above = pending.pop()
        status = place.stat()
        here = (status.st_dev, status.st_ino)
        if here in above:
            continue
        for path in place.iterdir():
            if path.name.startswith("."):
                continue
            if path.is_dir():
                pending.append((path, above | {here}))
            else:
                yield path


def _head(path: Path) -> bytes:
    """The first bytes of a file; none of a dangling link, or of a pipe, which would never end."""
    if not path.is_file():
        return b""
    with path.open("rb") as stream:
        return stream.read(image_files.HEAD)


def _encoded_at(given: Any, row: int, name: str) -> bytes:
    return encoded(given[row], name)


def encoded(image: Any, name: str = "image") -> bytes:
    """One image as an encoded file.

    Args:
        image: encoded bytes, a path, a PIL image, an array or tensor (H, W), (H, W, C) or (C, H, W), or one of these
            first in a tuple, or in a dictionary under ``image``, ``img``, ``jpg``, ``png`` or ``pixels``.
        name: for messages.

    Raises:
        ConfigError: it is none of these.
    """
    if isinstance(image, bytes | bytearray):
        return bytes(image)
    if isinstance(image, str | os.PathLike):
        return Path(image).read_bytes()
    if isinstance(image, Image.Image):
        return _png_of(image)
    if isinstance(image, Mapping):
        held = [key for key in _IMAGE_KEYS if key in image]
        if not held and isinstance(image.get("bytes"), bytes):
            return bytes(image["bytes"])
        if not held:
            raise ConfigError(f"{name} has the fields {', '.join(map(str, image))}; none is called {_IMAGE_KEYS}")
        return encoded(image[held[0]], name)
    if isinstance(image, tuple | list) and len(image):
        return encoded(image[0], name)
    if hasattr(image, "__array__") or hasattr(image, "numpy"):
        return _png_of(Image.fromarray(_pixels(_as_array(image), name)))
    raise ConfigError(f"{name} is a {type(image).__name__}; give bytes, a path, a PIL image or an array")


def _png_of(image: Image.Image) -> bytes:
    """A file that is decoded as the image's own would be."""
    if fault := image_files.sample_fault(image):
        raise image_files.ImageError(fault)
    image.load()  # which turns a TIFF
    exif = Image.Exif()
    exif[image_files.ORIENTATION] = image_files.orientation_of(image) or 1
    if image.mode.startswith("I"):
        values, depth, _ = grey_values(image, 16)
        image = Image.fromarray(values.astype(np.uint16)) if depth == 16 else eight_bits(image)
    elif image.mode not in _PNG_MODES:
        image = eight_bits(image)
    buffer = io.BytesIO()
    image.save(buffer, "PNG", **({"exif": exif} if exif[image_files.ORIENTATION] != 1 else {}), icc_profile=None)
    return buffer.getvalue()


def _as_array(image: Any) -> np.ndarray:
    if hasattr(image, "detach"):
        image = image.detach().cpu()
        return np.asarray(image.float().numpy() if image.dtype.is_floating_point else image.numpy())
    return np.asarray(image)


def _batch(given: Any, name: str) -> Any:
    array = _as_array(given)
    if array.dtype.kind in "US" and array.ndim == 1:
        return array.tolist()
    if array.dtype == object or array.ndim not in (3, 4):
        raise ConfigError(f"{name} has the shape {array.shape}; give (N, H, W), (N, H, W, C) or (N, C, H, W)")
    return array


def _pixels(array: np.ndarray, name: str) -> np.ndarray:
    """(H, W), (H, W, 3) or (H, W, 4) uint8 of an image, or (H, W) uint16."""
    if array.ndim == 3 and array.shape[0] in _CHANNELS and array.shape[2] not in _CHANNELS:
        array = array.transpose(1, 2, 0)
    if array.ndim == 3 and array.shape[2] in (1, 2):
        array = array[:, :, 0]  # grey; a second channel is alpha
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in _CHANNELS):
        raise ConfigError(
            f"{name} has the shape {array.shape}; give (H, W), (H, W, C) or (C, H, W) with 1 to 4 channels"
        )
    low, high = (float(array.min()), float(array.max())) if array.size else (0.0, 0.0)
    floating = np.issubdtype(array.dtype, np.floating)
    if array.dtype == bool or (floating and low >= -_ROUNDING and high <= 1 + _ROUNDING):
        return np.ascontiguousarray(np.round(np.clip(array, 0, 1) * 255).astype(np.uint8))
    if array.dtype == np.uint16 and array.ndim == 2:
        return np.ascontiguousarray(array)
    if np.issubdtype(array.dtype, np.integer) and low >= 0 and high <= 255:
        return np.ascontiguousarray(array.astype(np.uint8))
    raise ConfigError(f"{name} is {array.dtype} from {low:g} to {high:g}; give uint8, or float in [0, 1]")
