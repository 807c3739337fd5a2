"""All input and output: files and folders on a disk, s3:// or gs:// alike, through pyarrow.fs.

Writes are whole or not at all: on a disk a temporary file is flushed and renamed, on an object store one object appears
when its stream is closed. Bytes are complete in memory before anything is written.
"""

from __future__ import annotations

import errno
import io
import json
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from pipelines.errors import UserError
from pipelines.files.conditional import Conditional
from pipelines.files.damage import DAMAGED
from pipelines.files.stores import Address, check_names, check_place, connected, store_of

THREADS = 16  # requests at once
UNFINISHED = ".tmp-"  # how names of files begin that are being written


def is_uri(path: str) -> bool:
    """Tell whether a path names an object store instead of a file on this machine."""
    return "://" in path and not path.startswith("file://")


def is_missing(path: str) -> bool:
    """Tell whether a path on this machine leads to nothing; addresses of stores and of the Hub are asked later."""
    return not is_uri(path) and not exists(path)


def absolute(path: str) -> str:
    """The path without ``.`` and ``~``, so that workers in other folders find it; URIs stay.

    Raises:
        UserError: as `Address.parse`, or no file can be called so.
    """
    check_place(path)
    if is_uri(path):
        Address.parse(path)
        return path.rstrip("/")
    check_names(path)
    return str(Path(path.removeprefix("file://")).expanduser().absolute())


def target(path: str) -> str:
    """The place that a user names for output: absolute, with ``..`` resolved.

    Raises:
        UserError: as `absolute`.
    """
    whole = absolute(path)
    return whole if is_uri(whole) else os.path.normpath(whole)


def refuse_climbing(path: str) -> None:
    """Raise UserError if a path to be written leads out of a folder: names in it, of encoders or sweeps, never may.

    Places that users name have been through `target`, so that ``..`` can only come from such a name.
    """
    if ".." in path.split("/") or "\0" in path:
        raise UserError(f"{path!r} leads out of its folder; nothing is written there: choose names without / and ..")


def _resolve(path: str) -> tuple[Any, str]:
    return store_of(path) if is_uri(path) else (fs.LocalFileSystem(), absolute(path))


def _info(path: str) -> Any:
    filesystem, place = _resolve(path)
    with connected(path):
        return filesystem.get_file_info(place)


def exists(path: str) -> bool:
    """Tell whether a file or folder is there."""
    return bool(_info(path).type != fs.FileType.NotFound)


def existing(paths: Iterable[str]) -> set[str]:
    """The files among some that exist; every folder is listed once."""
    folders = {path.rpartition("/")[0] for path in paths}
    return {path for folder in folders for path in list_files(folder, recursive=False)}


def stamp(path: str) -> str:
    """When a file was written and how long it is: another stamp says that it was written again."""
    return _stamp(_info(path))


def _stamp(info: Any) -> str:
    return f"{info.mtime_ns}:{info.size}"


def is_folder(path: str) -> bool:
    """Tell whether a folder is there."""
    return bool(_info(path).type == fs.FileType.Directory)


def list_files(folder: str, *, recursive: bool = True) -> list[str]:
    """Paths of the files in a folder, sorted; empty when the folder is not there. Hidden files are left out."""
    return list(listing(folder, recursive=recursive).files)


@dataclass(frozen=True)
class Listing:
    """The content of a folder.

    Args:
        files: paths, sorted, without hidden files and those in hidden folders.
        others: entries that are neither file nor folder, in words by path, sorted. A link to a folder around it is not
            followed.
    """

    files: tuple[str, ...]
    others: Mapping[str, str]


def listing(folder: str, *, recursive: bool = True) -> Listing:
    """The content of a folder; empty when it is not there.

    Raises:
        OSError: it is no folder, or one in it cannot be read.
    """
    if not is_uri(folder):
        return _local_listing(absolute(folder), recursive)
    root = absolute(folder)
    paths = [path for path, _ in _files_in(folder, recursive=recursive)]
    hidden = {path for path in paths if "/." in path.removeprefix(root)}
    return Listing(tuple(sorted(set(paths) - hidden)), {})


def _local_listing(root: str, recursive: bool) -> Listing:
    files: list[str] = []
    others: dict[str, str] = {}
    pending: list[tuple[str, frozenset[tuple[int, int]]]] = [(root, frozenset())]
    while pending:
        place, above = pending.pop()
        try:
            here = above | {_identity(place)}
            entries = list(os.scandir(place))
        except FileNotFoundError:
            continue
        for entry in entries:
            if entry.name.startswith("."):
                continue
            kind = _kind(entry)
            if kind == "file":
                files.append(entry.path)
            elif kind != "folder":
                others[entry.path] = kind
            elif recursive and entry.is_symlink() and _identity(entry.path) in here:
                others[entry.path] = "a link to a folder that it stands in"
            elif recursive:
                pending.append((entry.path, here))
    return Listing(tuple(sorted(files)), dict(sorted(others.items())))


def _identity(path: str) -> tuple[int, int]:
    status = Path(path).stat()
    return status.st_dev, status.st_ino


def _kind(entry: os.DirEntry[str]) -> str:
    try:
        if entry.is_file():
            return "file"
        if entry.is_dir():
            return "folder"
    except OSError as error:  # such as a link to itself
        return f"unreadable: {error.strerror}"
    return "a link to what is not there" if entry.is_symlink() else "no file but a pipe, socket or device"


def sizes(folder: str) -> dict[str, int]:
    """Bytes of the files that stand in a folder itself, by path; empty when the folder is not there."""
    return {path: info.size for path, info in _files_in(folder)}


def stamps(folder: str, *, recursive: bool = False) -> dict[str, str]:
    """As `stamp`, by path, of the files that stand in a folder itself, or below it; empty when it is not there."""
    return {path: _stamp(info) for path, info in _files_in(folder, recursive=recursive)}


def _files_in(folder: str, *, recursive: bool = False) -> Iterator[tuple[str, Any]]:
    filesystem, place = _resolve(folder)
    root = absolute(folder)
    with connected(folder):
        found = filesystem.get_file_info(fs.FileSelector(place, allow_not_found=True, recursive=recursive))
    for info in found:
        with suppress(UnicodeDecodeError):  # a name that is not UTF-8
            if info.type == fs.FileType.File:
                yield f"{root}/{info.path.removeprefix(place).lstrip('/')}", info


@contextmanager
def open_input(path: str, *, unpacked: bool = True) -> Iterator[Any]:
    """A buffered stream of a file's bytes; ``unpacked`` where its name says that it is compressed.

    Raises:
        OSError: the file is not there or cannot be read.
    """
    filesystem, place = _resolve(path)
    with (
        connected(path),
        filesystem.open_input_stream(place, "detect" if unpacked else None, buffer_size=2**20) as stream,
    ):
        yield stream


@contextmanager
def open_seekable(path: str) -> Iterator[Any]:
    """A file's bytes, to be read in any order. Raises OSError as `open_input`."""
    filesystem, place = _resolve(path)
    with connected(path), filesystem.open_input_file(place) as file:
        yield file


def read_bytes(path: str) -> bytes:
    """The whole file. Raises OSError as `open_input`."""
    with open_input(path) as stream:
        return bytes(stream.read())


def file_or_none(path: str) -> bytes | None:
    """The whole file; None: there is none, or it is a folder."""
    return read_bytes(path) if _info(path).type == fs.FileType.File else None


def write_atomic(path: str, data: bytes) -> None:
    """Write a file whole: readers see the old one or the new one, never a part.

    Raises:
        UserError: the path leads out of its folder.
    """
    refuse_climbing(path)
    filesystem, place = _resolve(path)
    if is_uri(path):
        with connected(path), filesystem.open_output_stream(place) as stream:
            stream.write(data)
        return
    target = Path(place)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, FileNotFoundError, NotADirectoryError) as error:
        raise OSError(errno.ENOTDIR, f"cannot be made ({error.strerror})", str(target.parent)) from error
    temporary = target.with_name(f"{UNFINISHED}{uuid.uuid4().hex}")
    try:
        with naming(path), temporary.open("wb") as handle:
            handle.write(data)
            handle.flush()
            os.fsync(handle.fileno())
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def create(path: str, data: bytes) -> bool:
    """Write a file unless it is there; whether it was written. Object stores see one request.

    Raises:
        UserError: as `write_atomic`.
    """
    refuse_climbing(path)
    if is_uri(path):
        with suppress(ValueError):  # no store that can write on condition
            written = Conditional(path).write(data, None)
            if written is not None:
                return written
    if exists(path):
        return False
    write_atomic(path, data)
    return True


@contextmanager
def naming(path: str) -> Iterator[None]:
    """Let system errors in the block name the file that is written: by themselves they name none."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, path) from error


def remove_unfinished(folder: str) -> None:
    """Remove the leftovers of killed writes in a folder on a disk; only its one writer may do so."""
    if is_uri(folder):
        return
    for place, folders, files in os.walk(absolute(folder)):
        for name in (name for name in (*folders, *files) if name.startswith(UNFINISHED)):
            remove(f"{place}/{name}")


def copy(source: str, target: str) -> None:
    """Copy a file; the target is whole or not there."""
    write_atomic(target, read_bytes(source))


def read_json(path: str) -> Any:
    """The content of a JSON file. Raises ValueError: it is damaged; the message names the file."""
    try:
        return json.loads(read_bytes(path))
    except (RecursionError, ValueError) as error:
        raise ValueError(f"{path} {DAMAGED}: no JSON ({error})") from error


def read_json_or(path: str, default: Any) -> Any:
    """The content of a JSON file, or a default where there is no file."""
    return read_json(path) if exists(path) else default


def write_json(path: str, content: Any) -> None:
    """Write JSON whole; NaN and infinity are refused."""
    write_atomic(path, (json.dumps(content, indent=2, allow_nan=False) + "\n").encode())


def read_table(path: str, columns: Sequence[str] | None = None) -> pa.Table:
    """The content of a Parquet file, or of some of its columns. Raises ArrowInvalid, with the file: it is damaged."""
    try:
        return pq.read_table(io.BytesIO(read_bytes(path)), columns=columns)
    except pa.ArrowException as error:
        raise pa.ArrowInvalid(f"{path} {DAMAGED}: no table ({error})") from error


def read_columns(path: str, columns: Sequence[str]) -> pa.Table:
    """Read the columns among some that a Parquet file has."""
    file = pq.ParquetFile(io.BytesIO(read_bytes(path)))
    return file.read([name for name in columns if name in file.schema_arrow.names])


def data_set(paths: Sequence[str]) -> Any:
    """Some Parquet files of one folder tree and one schema, to be streamed: a ``pyarrow.dataset.Dataset``."""
    from pyarrow import dataset

    filesystem, _ = _resolve(paths[0])
    return dataset.dataset([_resolve(path)[1] for path in paths], format="parquet", filesystem=filesystem)


def at_once(function: Callable[[Any], Any], given: Sequence[Any]) -> list[Any]:
    """A function of many paths or files, in order, by threads: a store answers slowly but many at a time."""
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(function, given))


def write_table(path: str, table: pa.Table) -> None:
    """Write a Parquet file whole."""
    write_atomic(path, table_bytes(table))


def table_bytes(table: pa.Table) -> bytes:
    """The Parquet file of a table, as `write_table` writes it."""
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    return buffer.getvalue()


def remove(path: str) -> None:
    """Remove a file, or a folder with all it holds; nothing happens when it is not there.

    Raises:
        UserError: the path leads out of its folder.
    """
    refuse_climbing(path)
    filesystem, place = _resolve(path)
    kind = _info(path).type
    with connected(path):
        if kind == fs.FileType.Directory:
            with suppress(FileNotFoundError):  # Google's client looks for an object of the folder at last
                filesystem.delete_dir(place)
        elif kind == fs.FileType.File:
            filesystem.delete_file(place)
