"""Images in any of the forms that Python programs have them in, as encoded files with keys.

Arrays, tensors and PIL images become PNG files; PIL images are turned upright, as their files would be. So nothing
about their origin is made up: a blind classifier sees their pixels alone.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from mi_core.checks import ConfigError
from mi_core.image_files import HEAD, OTHER_PICTURES, SUFFIXES, format_of
from mi_core.images import encode_png

_IMAGE_KEYS = ("image", "img", "jpg", "png", "pixels")  # of the image in a dictionary
_SAVED_AS_THEY_ARE = ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")


@dataclass(frozen=True)
class Item:
    """One image: its key, a function that gives its encoded bytes, and why it cannot be read where that is known."""

    key: str
    data: Callable[[], bytes]
    fault: str = ""


def items_of(given: Any, name: str) -> list[Item]:
    """The images of a side of an audit.

    Args:
        given: a folder; a list of files, of encoded bytes, of PIL images or of arrays; an array or tensor (N, H, W),
            (N, H, W, C) or (N, C, H, W), uint8 or float in [0, 1]; or a data set with ``len`` and ``[]`` whose samples
            are images, (image, label) or dictionaries with an image, as torch and Hugging Face have them.
        name: of the side, for messages.

    Returns:
        Items with distinct keys: names of files below the folder, paths, or positions. Pictures of a folder in formats
        that are not opened have a fault, unless an image of the same name stands beside them.

    Raises:
        ConfigError: it is none of these, or holds no image.
    """
    if isinstance(given, str | os.PathLike):
        return _of_folder(Path(given), name)
    if hasattr(given, "__array__") or hasattr(given, "numpy"):
        given = _batch(given, name)
    if not (hasattr(given, "__len__") and hasattr(given, "__getitem__")) or isinstance(given, bytes | Mapping):
        raise ConfigError(
            f"{name} is a {type(given).__name__}; give a folder, a list of images, an array or a data set"
        )
    if not len(given):
        raise ConfigError(f"{name} is empty; give at least some images")
    if isinstance(given, Sequence) and all(isinstance(one, str | os.PathLike) for one in given):
        return _of_files([Path(one) for one in given], name)
    width = len(str(len(given) - 1))
    return [Item(f"{row:0{width}d}", partial(_encoded_at, given, row, f"{name}[{row}]")) for row in range(len(given))]


def _of_folder(folder: Path, name: str) -> list[Item]:
    if not folder.is_dir():
        raise ConfigError(f"{name} = {str(folder)!r} is no folder; give the folder of the images")
    files = list(_files(folder))
    images = [path for path in files if _suffix(path) in SUFFIXES or (not path.suffix and _has_image(path))]
    if not images:
        raise ConfigError(f"{name} = {str(folder)!r} holds no image ({', '.join(SUFFIXES)})")
    twins = {path.with_suffix("") for path in images}
    others = [path for path in files if _suffix(path) in OTHER_PICTURES and path.with_suffix("") not in twins]
    faults = {path: f".{_suffix(path)} pictures cannot be read; convert it to PNG or JPEG" for path in others}
    keys = {path.relative_to(folder).as_posix(): path for path in (*images, *others)}
    return [Item(key, path.read_bytes, faults.get(path, "")) for key, path in sorted(keys.items())]


def _files(folder: Path) -> Iterator[Path]:
    """Files below a folder but hidden ones; a link to a folder that it stands in is not followed."""
    pending: list[tuple[Path, frozenset[tuple[int, int]]]] = [(folder, frozenset())]
    while pending:
        place, above = pending.pop()
        here = above | {_identity(place)}
        for path in place.iterdir():
            if path.name.startswith("."):
                continue
            if not path.is_dir():
                yield path
            elif _identity(path) not in here:
                pending.append((path, here))


def _identity(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino


def _suffix(path: Path) -> str:
    return path.suffix.lower().removeprefix(".")


def _has_image(path: Path) -> bool:
    if not path.is_file():  # a dangling link, or a pipe, which would never end
        return False
    with path.open("rb") as stream:
        return format_of(stream.read(HEAD)) is not None


def _of_files(paths: Iterable[Path], name: str) -> list[Item]:
    items = [Item(path.as_posix(), path.read_bytes) for path in paths]
    seen: set[str] = set()
    for item in items:
        if item.key in seen:
            raise ConfigError(f"{name} lists {item.key} twice; list every file once")
        seen.add(item.key)
    return items


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
        buffer, image = io.BytesIO(), ImageOps.exif_transpose(image)
        (image if image.mode in _SAVED_AS_THEY_ARE else image.convert("RGB")).save(buffer, "PNG")
        return buffer.getvalue()
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
        return encode_png(_pixels(_as_array(image), name))
    raise ConfigError(f"{name} is a {type(image).__name__}; give bytes, a path, a PIL image or an array")


def _as_array(image: Any) -> np.ndarray:
    return np.asarray(image.detach().cpu().numpy() if hasattr(image, "detach") else image)


def _batch(given: Any, name: str) -> np.ndarray:
    array = _as_array(given)
    if array.dtype == object or array.ndim not in (3, 4):
        raise ConfigError(f"{name} has the shape {array.shape}; give (N, H, W), (N, H, W, C) or (N, C, H, W)")
    return array


def _pixels(array: np.ndarray, name: str) -> np.ndarray:
    """(H, W) or (H, W, 3) uint8 of an image."""
    if array.ndim == 3 and array.shape[0] in (1, 3) and array.shape[2] not in (1, 3):
        array = array.transpose(1, 2, 0)
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] != 3):
        raise ConfigError(
            f"{name} has the shape {array.shape}; give (H, W), (H, W, C) or (C, H, W) with 1 or 3 channels"
        )
    if array.dtype == np.uint8:
        return np.ascontiguousarray(array)
    if not np.issubdtype(array.dtype, np.floating) or not (array.min() >= 0 and array.max() <= 1):
        raise ConfigError(
            f"{name} is {array.dtype} from {array.min()} to {array.max()}; give uint8, or float in [0, 1]"
        )
    return np.ascontiguousarray(np.round(array * 255).astype(np.uint8))
