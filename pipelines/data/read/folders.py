"""List the images of a folder, and account for its other files.

A suffix that is an image's makes a file an image; a file without a suffix is looked into. Nothing is passed over in
silence: a picture that cannot be read is lost, other files are counted by their suffix.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from mi_core.hashing import printable
from mi_core.image_files import HEAD, OTHER_PICTURES, SUFFIXES, sort_files, suffix_in
from pipelines.data.read.samples import FILES, Note, Problem
from pipelines.errors import UserError
from pipelines.files import storage

_REMEMBERED = 2**17  # files without a suffix, per process


@dataclass(frozen=True)
class Folder:
    """The files of a folder and its subfolders.

    Args:
        root: its absolute path.
        images: names of the images relative to it, sorted.
        unread: the other files: a problem for each picture that is lost, a note for what is none.
    """

    root: str
    images: tuple[str, ...]
    unread: tuple[Problem, ...]


def contents(folder: str) -> Folder:
    """List a folder by the names of its files; files without a suffix are opened.

    Raises:
        UserError: it is no folder, or holds no image.
    """
    if not storage.is_folder(folder):
        raise UserError(f"{folder} is no folder; give the folder of the images")
    root = storage.absolute(folder)
    listed = storage.listing(folder)
    names = [path.removeprefix(f"{root}/") for path in listed.files]
    images, lost = sort_files(names, lambda name: _head(f"{root}/{name}"))
    unread = [*_unread(names, set(images), lost), *_no_files(root, listed)]
    if not images:
        held = "; ".join(f"{one.key}: {one.reason}" for one in unread[:3])
        raise UserError(f"{folder} holds no image ({', '.join(SUFFIXES)}){'; it holds ' if held else ''}{held}")
    return Folder(root, tuple(images), tuple(unread))


@lru_cache(maxsize=_REMEMBERED)
def _head(path: str) -> bytes:
    """The first bytes of a file, read once per process; empty if it cannot be read."""
    try:
        with storage.open_input(path) as stream:
            return bytes(stream.read(HEAD))
    except (OSError, UserError):
        return b""


def _unread(names: list[str], images: set[str], lost: Mapping[str, str]) -> Iterator[Problem]:
    """List the pictures that are lost; count other files by suffix."""
    beside: Counter[str] = Counter()
    others: Counter[str] = Counter()
    for name in names:
        suffix = suffix_in(name)
        if name in lost:
            yield Problem(printable(name), lost[name])
        elif name not in images:
            (beside if suffix in OTHER_PICTURES else others)[suffix] += 1
    for suffix, count in sorted(beside.items()):
        yield Note(f"{FILES}.{suffix}", f"{_files(count)} skipped: the image of the same name is read instead")
    for suffix, count in sorted(others.items()):
        by = f"by {'its' if count == 1 else 'their'} {'suffix' if suffix else 'content'}"
        yield Note(f"{FILES}.{printable(suffix)}" if suffix else FILES, f"{_files(count)} skipped: no image {by}")


def _no_files(root: str, listed: storage.Listing) -> Iterator[Problem]:
    """List dangling links, pipes and the like; those named like a picture count as lost."""
    for path, what in listed.others.items():
        name = path.removeprefix(f"{root}/")
        kind = Problem if suffix_in(name) in (*SUFFIXES, *OTHER_PICTURES) else Note
        yield kind(printable(name), f"{what}; not read")


def _files(count: int) -> str:
    return f"{count:,} files" if count > 1 else "1 file"
