"""Photos in a public list of training data: found there or not. Being listed is not being used.

A list is a folder of images, or a file with a digest or an address of each image. Of a folder files are compared by
their bytes, by their pixels, and by the perceptual hash with its check (`mi_core.validity.near_duplicates`). Of a file
digests of the bytes are compared, or the last part of an address with the name of a photo.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit

from mi_core.auditing.images import Picture, error_in_words, items_of
from mi_core.images import Decoder, decode_and_hash
from mi_core.validity.near_duplicates import clusters, marks, near_copies
from pipelines.console import count_of
from pipelines.data.read.key_lists import keys_in
from pipelines.errors import UserError
from pipelines.files import storage

COLUMNS = ("sha256", "md5", "sha1", "url", "URL", "image_url")  # that are looked for, in this order
BYTES, PIXELS, NEAR, NAME = "the same file", "the same pixels", "nearly the same picture", "a file of this name"
_DIGESTS = {64: "sha256", 40: "sha1", 32: "md5"}  # by their hexadecimal digits
_SIDE = 64  # pixels to which images are decoded for the perceptual hash
_SHOWN = 20  # photos by name


@dataclass(frozen=True)
class Lookup:
    """What a list holds of some photos.

    Args:
        photos: names of all.
        found: by photo, how it is listed (`BYTES`, `PIXELS`, `NEAR` or `NAME`) and the entry.
        unread: photos that cannot be compared, and why.
        entries: of the list; unread_entries: of those, images that cannot be read.
        compared: by what photos were compared, in words.
    """

    photos: tuple[str, ...]
    found: Mapping[str, tuple[str, str]]
    unread: Mapping[str, str]
    entries: int
    unread_entries: int
    compared: str

    def __str__(self) -> str:
        lost = f", of which {self.unread_entries:,} cannot be read" if self.unread_entries else ""
        told = [f"{name}: {how}, {entry}" for name, (how, entry) in self.found.items()]
        told += [f"{name}: cannot be read, {why}" for name, why in self.unread.items()]
        told[_SHOWN:] = [f"and {len(told) - _SHOWN} more; --json names all"] if len(told) > _SHOWN else []
        photos, entries = count_of(len(self.photos), "photo", "photos"), count_of(self.entries, "entry", "entries")
        first = f"{len(self.found)} of {photos} listed, compared by {self.compared}, with {entries}{lost}."
        last = "Listed does not say used: a trainer may leave entries out. Not found does not say unused."
        return "\n".join(["\n  ".join([first, *told]), last])


def look_up(photos: str, where: str, column: str | None = None) -> Lookup:
    """Look for photos in a list.

    Args:
        photos: folder of images.
        where: folder of images, or a file (.txt, .csv, .parquet) of digests (SHA-256, SHA-1, MD5) or addresses.
        column: of the file; None: the first of `COLUMNS` that it has.

    Raises:
        UserError: the list is not there, cannot be read, is empty, or holds neither digests nor addresses.
        ConfigError: a folder holds no image.
    """
    if not storage.exists(where):
        raise UserError(f"LIST = {where!r} does not exist; give a folder or a file")
    mine = items_of(photos, "PHOTOS")
    return _in_folder(mine, items_of(where, "LIST")) if storage.is_folder(where) else _in_file(mine, where, column)


def _in_file(mine: Sequence[Picture], where: str, column: str | None) -> Lookup:
    entries = chain.from_iterable(keys_in(where, column, COLUMNS))
    first = next(entries, "")
    kind = _DIGESTS.get(len(first)) if set(first.lower()) <= set("0123456789abcdef") else None
    if kind is None and "/" not in first:
        raise UserError(f"{where}: {first[:60]!r} is no SHA-256, SHA-1, MD5 or address; choose another --column")
    wanted: dict[str, list[str]] = {}
    for item in mine:
        key = _name_of(item.key) if kind is None else hashlib.new(kind, item.data(), usedforsecurity=False).hexdigest()
        wanted.setdefault(key, []).append(item.key)
    found: dict[str, tuple[str, str]] = {}
    count = 0
    for entry in chain([first], entries):
        count += 1
        for name in wanted.get(_name_of(entry) if kind is None else entry.lower(), ()):
            found.setdefault(name, (NAME if kind is None else BYTES, entry))
    compared = "names in addresses, which others may use too" if kind is None else f"the {kind} of files"
    return Lookup(tuple(item.key for item in mine), found, {}, count, 0, compared)


def _name_of(address: str) -> str:
    return unquote(PurePosixPath(urlsplit(address).path if "://" in address else address).name)


def _in_folder(mine: Sequence[Picture], listed: Sequence[Picture]) -> Lookup:
    decoder = Decoder(_SIDE)
    kept: list[tuple[bool, str, dict[str, str]]] = []  # whether it is listed, its name, its digests
    told: list[tuple[int, bytes]] = []
    unread: dict[bool, dict[str, str]] = {True: {}, False: {}}
    for is_listed, item in [*((False, item) for item in mine), *((True, item) for item in listed)]:
        try:
            data = item.data()
            pixels, sha256, side, _ = decode_and_hash(data, decoder)
        except Exception as error:  # noqa: BLE001 - whatever a damaged file raises
            unread[is_listed][item.key] = item.fault or error_in_words(error)
            continue
        kept.append((is_listed, item.key, {BYTES: hashlib.sha256(data).hexdigest(), PIXELS: sha256}))
        told.append(marks(pixels, side))
    for (*_, digests), group in zip(kept, clusters(len(kept), near_copies(told)), strict=True):
        digests[NEAR] = str(group)
    entries: dict[tuple[str, str], str] = {}  # the first of the list, by what is compared
    for is_listed, name, digests in kept:
        for one in digests.items() if is_listed else ():
            entries.setdefault(one, name)
    found = {}
    for is_listed, name, digests in kept:
        hits = [(one[0], entries[one]) for one in digests.items() if one in entries]
        if hits and not is_listed:
            found[name] = hits[0]
    names, compared = tuple(item.key for item in mine), "bytes, pixels and, from 32 pixels a side on, likeness"
    return Lookup(names, found, unread[False], len(listed), len(unread[True]), compared)
