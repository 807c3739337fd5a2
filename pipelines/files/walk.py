"""The folders below a folder, on a disk or an object store, one listing each; callers choose which to enter."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pyarrow import fs

from pipelines.files import storage
from pipelines.files.storage import absolute
from pipelines.files.stores import store_of


@dataclass(frozen=True)
class Folder:
    """One folder of a walk.

    Args:
        path: as `storage` reads it.
        files, folders: names of what stands in it, sorted; hidden entries are left out.
        fault: why it could not be listed, in words; empty: it was.
    """

    path: str
    files: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    fault: str = ""


def walk(root: str, into: Callable[[Folder, str], bool]) -> Iterator[Folder]:
    """A folder and those below it, level by level; many are listed at once, because a store answers slowly.

    A folder that links lead to several times comes once. One that cannot be listed comes with its fault.

    Args:
        root: an absolute path or a URI.
        into: whether to enter the folder of this name in a folder.
    """
    level, seen = [root], set[str]()
    while level:
        new: dict[str, str] = {}
        for path in level:
            new.setdefault(path if storage.is_uri(path) else os.path.realpath(path), path)
        found: list[Folder] = storage.at_once(_listed, [new[one] for one in new if one not in seen])
        seen |= new.keys()
        yield from found
        level = [f"{folder.path}/{name}" for folder in found for name in folder.folders if into(folder, name)]


def _listed(path: str) -> Folder:
    try:
        entries = sorted(_in_store(path) if storage.is_uri(path) else _on_disk(path))
    except OSError as error:
        return Folder(path, fault=" ".join(str(error.strerror or error).split()))
    except UnicodeError:
        return Folder(path, fault="its name is not UTF-8")
    shown = [entry for entry in entries if not entry[0].startswith(".")]
    files, folders = (tuple(name for name, is_folder in shown if is_folder is kind) for kind in (False, True))
    return Folder(path, files, folders)


def _on_disk(path: str) -> list[tuple[str, bool]]:
    """Name of each entry, and whether it is a folder."""
    path.encode()  # a name that is not UTF-8 cannot be read through pyarrow
    with os.scandir(path) as entries:
        return [(entry.name, _is_folder(entry)) for entry in entries]


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # such as a link to itself
        return False


def _in_store(path: str) -> list[tuple[str, bool]]:
    filesystem, place = store_of(path)
    found = filesystem.get_file_info(fs.FileSelector(place))
    return [(info.base_name, info.type == fs.FileType.Directory) for info in found]


def way(folder: str, other: str) -> str:
    """The relative path from a folder to another one, both on a disk or in one object store."""
    return posixpath.relpath(absolute(other), absolute(folder))


def follow(folder: str, relative: str) -> str:
    """The folder that a way leads to."""
    scheme, mark, place = absolute(folder).rpartition("://")
    return scheme + mark + posixpath.normpath(posixpath.join(place, relative))
