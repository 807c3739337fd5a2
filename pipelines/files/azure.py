"""A container of Azure as a file system of pyarrow, by obstore: it knows all of Azure's ways to prove who one is.

pyarrow's own client ends the process where a machine has no credentials, and its errors show a shared access signature.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import pyarrow as pa
from pyarrow import fs

from pipelines.errors import UserError

SCHEMES = ("az", "abfs", "abfss")  # az://CONTAINER, abfss://CONTAINER@ACCOUNT.dfs.core.windows.net
REQUEST = timedelta(seconds=20)  # that one request may take until the first bytes of its answer, or between two parts
STREAM = 8 * 2**20  # bytes that a stream asks for at once
PIECE = 2**20  # bytes that a file asks for at once, whose parts are read in any order
_REMEDY = (
    "set AZURE_STORAGE_ACCOUNT_NAME, and AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN, on every node, or give "
    "the machine an identity"
)


def container(address: str, attempts: int, patience: timedelta) -> Any:
    """The file system of a container; places in it are keys. Account and credentials come from the environment.

    Args:
        address: of the container, without a key.
        attempts, patience: at most so many tries of a request, and none after so long.

    Raises:
        UserError: no account is named, or its key is none.
    """
    return fs.PyFileSystem(_Container(address, attempts, patience))


@contextmanager
def _asking(address: str) -> Iterator[None]:
    """Let faults of a container be of one kind: most of its own are no OSError.

    Raises:
        UserError: this machine has no credentials, or they do not allow it.
        FileNotFoundError: the object is not there, or the container.
        OSError: any other.
    """
    from obstore.exceptions import BaseError

    try:
        yield
    except (BaseError, OSError, ValueError) as error:
        line = f"{address}: {_first_line(error)}"
        if isinstance(error, FileNotFoundError) or "status code: 404" in line:
            raise FileNotFoundError(line) from None
        if "token request" in line or re.search("status code: 40[13]", line):
            raise UserError(f"{line}; {_REMEDY}") from None
        raise OSError(line) from None


def _first_line(error: BaseException) -> str:
    return re.sub(r"(: <\?xml.*)?\n(?s:.*)", "", str(error)).removeprefix("Generic MicrosoftAzure error: ")


class _Download:
    """A reader of an object that also says whether it is closed, which pyarrow asks."""

    def __init__(self, address: str, reader: Any) -> None:
        self.address, self._reader, self.closed = address, reader, False
        self.seek, self.tell = reader.seek, reader.tell

    def read(self, size: int) -> Any:
        with _asking(self.address):
            return self._reader.read(size)

    def close(self) -> None:
        self.closed = True
        self._reader.close()


class _Upload(io.BytesIO):
    """Bytes that become an object when they are complete."""

    def __init__(self, address: str, store: Any, key: str) -> None:
        super().__init__()
        self.address, self._store, self._key = address, store, key

    def close(self) -> None:
        import obstore

        if not self.closed:
            data = self.getvalue()
            super().close()
            try:
                with _asking(self.address):
                    obstore.put(self._store, self._key, data)
            except FileNotFoundError as error:
                raise UserError(f"{error}; make the container first") from None


class _Container(fs.FileSystemHandler):  # type: ignore[misc]
    """The file system as `storage` and Ray ask it."""

    def __init__(self, address: str, attempts: int, patience: timedelta) -> None:
        from obstore.exceptions import BaseError
        from obstore.store import from_url

        self.address, self._made_of = address, (address, attempts, patience)
        retries = {"max_retries": attempts - 1, "retry_timeout": patience}
        options = {"allow_http": True, "timeout": REQUEST}
        try:
            self.store: Any = from_url(address, client_options=options, retry_config=retries)  # type: ignore[call-overload]
        except (BaseError, ValueError) as error:
            raise UserError(f"{address}: {_first_line(error)}; {_REMEDY}") from error

    def __reduce__(self) -> Any:  # on another machine, of what stands in the environment there
        return _Container, self._made_of

    def get_type_name(self) -> str:
        return "azure"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: Sequence[str]) -> list[Any]:
        return [self._info(path) for path in paths]

    def _info(self, path: str) -> Any:
        import obstore

        found = False
        with suppress(FileNotFoundError), _asking(self.address):
            if path:
                return _file(obstore.head(self.store, path))
        with suppress(FileNotFoundError), _asking(self.address):
            found = any(obstore.list(self.store, path or None, chunk_size=1)) or not path
        return fs.FileInfo(path, fs.FileType.Directory if found else fs.FileType.NotFound)

    def get_file_info_selector(self, selector: Any) -> list[Any]:
        """The files below a folder, or the files and folders in it."""
        try:
            found, folders = self._listed(selector.base_dir or None, selector.recursive)
        except FileNotFoundError:  # the container
            found, folders = [], set()
        if not found and not folders and not selector.allow_not_found:
            around = self._listed(selector.base_dir.rpartition("/")[0] or None, False)
            if selector.base_dir in around[1]:  # an empty folder, of which only this listing tells
                return []
            raise FileNotFoundError(f"{selector.base_dir} is not there")
        files = [_file(one) for one in found if one["path"] not in folders and self._is_file(one)]
        return files + [fs.FileInfo(path, fs.FileType.Directory) for path in folders if not selector.recursive]

    def _listed(self, prefix: str | None, recursive: bool) -> tuple[list[Any], set[str]]:
        """Objects, and folders that hold some."""
        import obstore

        with _asking(self.address):
            if recursive:
                found = [one for part in obstore.list(self.store, prefix) for one in part]
                return found, {one["path"].rpartition("/")[0] for one in found}
            told = obstore.list_with_delimiter(self.store, prefix)
            return list(told["objects"]), set(told["common_prefixes"])

    def _is_file(self, found: Any) -> bool:
        """Tell whether an object has this key: a folder is marked by an empty one whose key ends with a slash."""
        return bool(found["size"] or self._info(found["path"]).type == fs.FileType.File)

    def open_input_stream(self, path: str) -> Any:
        return self._reader(path, STREAM)

    def open_input_file(self, path: str) -> Any:
        return self._reader(path, PIECE)

    def _reader(self, path: str, at_once: int) -> Any:
        import obstore

        with _asking(self.address):
            reader = obstore.open_reader(self.store, path, buffer_size=at_once)
        return pa.PythonFile(_Download(self.address, reader), mode="r")

    def open_output_stream(self, path: str, metadata: Any) -> Any:
        return pa.PythonFile(_Upload(self.address, self.store, path), mode="w")

    def delete_file(self, path: str) -> None:
        import obstore

        with _asking(self.address):
            obstore.delete(self.store, path)

    def delete_dir(self, path: str) -> None:
        import obstore

        with _asking(self.address):
            for part in obstore.list(self.store, path):
                obstore.delete(self.store, [one["path"] for one in part])

    def create_dir(self, path: str, recursive: bool) -> None:
        pass  # a folder is there as soon as something is in it

    def _never(self, *_: Any) -> Any:
        raise OSError(f"{self.address}: a container does not offer this")

    delete_dir_contents = delete_root_dir_contents = move = copy_file = open_append_stream = _never


def _file(found: Any) -> Any:
    return fs.FileInfo(found["path"], fs.FileType.File, size=found["size"], mtime=found["last_modified"])
