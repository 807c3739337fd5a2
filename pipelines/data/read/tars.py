"""A strict reader of tar streams: damage raises, and nothing after the damage is lost in silence.

The standard reader takes a zeroed header for the end of the file, and so loses the rest of a damaged tar, or the second
of two concatenated ones, without a word. Here only zeros may follow the end marker, and a tar without one is damaged.
Members stay in memory; nothing is extracted to a path that a tar names.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple, cast

import pyarrow as pa

LARGEST_MEMBER = 2**28  # bytes
MOST_PADDING = 2**16  # zero bytes after the last member; tar's own default is 10 KiB at most
_DRAIN = 2**20
_MARKER = 2 * tarfile.BLOCKSIZE
_CODECS = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"\x04\x22\x4d\x18": "lz4"}
_CODECS |= {b"BZh%d1AY&SY" % level: "bz2" for level in range(1, 10)}
_UNREAD = {b"\xfd7zXZ\x00": "xz", b"PK\x03\x04": "zip", b"7z\xbc\xaf\x27\x1c": "7z"}


class Member(NamedTuple):
    """A file of a tar; ``problem`` says why its content cannot be had."""

    name: str
    content: bytes
    problem: str = ""


class TarError(OSError):
    """A tar is damaged.

    Args:
        read: bytes of the file up to the end of the last whole member.
        left: bytes of the file after it.
        cut: the end of the file is missing or unreadable, so more than ``left`` may be lost.
    """

    def __init__(self, problem: str, read: int, left: int, cut: bool) -> None:
        super().__init__(problem)
        self.read, self.left, self.cut = read, left, cut


def read_members(stream: BinaryIO, *, end_marker: bool = True) -> Iterator[Member]:
    """The files of a tar, in order; links and special files come with a problem, folders are passed over.

    Args:
        stream: the tar's bytes, read once from front to back; gzip, bz2, zstd and lz4 are unpacked.
        end_marker: whether a tar that ends after a whole member, without the end marker, is damaged.

    Raises:
        TarError: the tar is empty or compressed in an unknown way, has a damaged header or a member cut short, lacks
            its end marker, goes on after it, or cannot be read on. Members before the damage have been yielded whole.
    """
    raw = _Counted(stream)
    try:
        yield from _members(raw, _unpacked(raw), end_marker)
    except OSError as error:  # while the first bytes were read
        if isinstance(error, TarError):
            raise
        raise TarError(f"unreadable: {error}", 0, 0, True) from error


def _members(raw: _Counted, plain: _Counted, end_marker: bool) -> Iterator[Member]:
    good = read = members = 0  # bytes of whole members, and of the file up to there
    try:
        with tarfile.open(fileobj=cast(Any, plain), mode="r|", tarinfo=_StrictTarInfo) as archive:
            for info in archive:
                if not info.isdir():
                    yield _member(archive, info)
                    members += 1
                good = archive.offset
                read = good if plain is raw else raw.position
                archive.members.clear()  # type: ignore[attr-defined]
        if not members:
            raise _Damage("no file in it")
    except _NoEndMarker as error:
        if end_marker or not members:
            raise TarError(str(error), read, 0, True) from error
    except (_Damage, tarfile.TarError, EOFError, OSError) as error:
        ended = plain.count_to_end()
        raw.count_to_end()
        whole = ended and members > 0 and plain.position - plain.data_end >= _MARKER
        end = raw.data_end if plain is raw and raw.data_end > good else raw.position  # without padding
        raise TarError(_in_words(error, plain, good), read, end - read, not whole) from error


def _in_words(error: Exception, plain: _Counted, good: int) -> str:
    if plain.position == 0:
        return "the file is empty"
    if isinstance(error, OSError):
        return f"unreadable after byte {good}: {error}"
    return f"damaged at byte {good}: {error}"


def _member(archive: tarfile.TarFile, info: tarfile.TarInfo) -> Member:
    problem = _problem(info)
    if problem:
        return Member(info.name, b"", problem)
    handle = archive.extractfile(info)
    content = handle.read() if handle is not None else b""
    if len(content) != info.size:
        raise _Damage(f"{info.name} is cut short")
    return Member(info.name, content)


def _problem(info: tarfile.TarInfo) -> str:
    if info.islnk():
        return f"a hard link to {info.linkname}, which holds the content; write the tar with --hard-dereference"
    if info.issym():
        return f"a symbolic link to {info.linkname}; write the tar with --dereference"
    if not info.isfile():
        return f"not a file but a special entry of type {info.type!r}"
    if info.size > LARGEST_MEMBER:
        return f"it has {info.size} bytes, more than {LARGEST_MEMBER}"
    return ""


class _Damage(Exception):
    """Raised inside a header; the tar reader lets it pass."""


class _NoEndMarker(_Damage):
    """The file ends cleanly after a member, but without the two zero blocks that end a tar."""


class _Counted:
    """A stream that counts what was read of it, and knows where its last byte stood that is not zero."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.position = 0
        self.data_end = 0
        self._ahead = b""

    def peek(self, size: int) -> bytes:
        self._ahead = bytes(self.stream.read(size))
        return self._ahead

    def read(self, size: int) -> bytes:
        data, self._ahead = self._ahead[:size], self._ahead[size:]
        data = data or bytes(self.stream.read(size))
        filled = len(data.rstrip(b"\0"))
        self.data_end = self.position + filled if filled else self.data_end
        self.position += len(data)
        return data

    def count_to_end(self) -> bool:
        """Read on to the end; whether it could be reached."""
        try:
            while self.read(_DRAIN):
                pass
        except OSError:
            return False
        return True


class _Sips(io.RawIOBase):
    """The bytes for an unpacker in pieces so small that their count tells how far it has come."""

    def __init__(self, raw: _Counted) -> None:
        super().__init__()
        self.raw = raw

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        piece = min(2**16, max(512, self.raw.position // 64))
        return self.raw.read(piece if size < 0 else min(size, piece))


def _unpacked(raw: _Counted) -> _Counted:
    head = raw.peek(10)
    for mark, name in _UNREAD.items():
        if head.startswith(mark):
            raw.count_to_end()
            raise TarError(f"compressed with {name}, which is not read here; use gzip or zstd", 0, raw.position, True)
    for mark, codec in _CODECS.items():
        if head.startswith(mark):
            return _Counted(pa.CompressedInputStream(pa.PythonFile(_Sips(raw), mode="r"), codec))
    return raw


class _StrictTarInfo(tarfile.TarInfo):
    """Headers that raise on damage, where the standard ones end the archive."""

    @classmethod
    def fromtarfile(cls, tarfile_: tarfile.TarFile) -> _StrictTarInfo:
        try:
            return super().fromtarfile(tarfile_)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]  # the first zero block
            _check_only_zeros_follow(tarfile_.fileobj)
            raise
        except tarfile.EmptyHeaderError as error:  # type: ignore[attr-defined]
            if tarfile_.offset == 0:
                raise _Damage("the file is empty") from error
            raise _NoEndMarker(
                "the end marker is missing, so the file may be cut short (if its writer leaves the marker out, set "
                "end_marker: optional on the source)"
            ) from error
        except tarfile.HeaderError as error:
            raise _Damage(str(error)) from error


def _check_only_zeros_follow(stream: Any) -> None:
    zeros = tarfile.BLOCKSIZE
    while block := stream.read(_DRAIN):
        if block.strip(b"\0"):
            raise _Damage("an end marker with more data after it (a zeroed header, or tars joined together)")
        zeros += len(block)
    if zeros > MOST_PADDING:
        raise _Damage(f"it ends in {zeros} zero bytes; the file may not have been written completely")
