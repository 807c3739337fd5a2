"""A strict reader of tar streams: what is damaged raises, and nothing after the damage is lost in silence.

The standard reader takes a zeroed header for the end of the file, and so loses the rest of a damaged tar, or the second
of two concatenated ones, without a word. Here only zeros may follow the end marker, and a tar without one is damaged.
Members stay in memory; nothing is extracted to a path that a tar names.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from typing import Any, BinaryIO, cast

LARGEST_MEMBER = 2**28  # bytes
_DRAIN = 2**20


class TarError(OSError):
    """A tar is damaged. ``lost`` is the number of bytes from the damage to the end of the file."""

    def __init__(self, problem: str, lost: int) -> None:
        super().__init__(problem)
        self.lost = lost


def read_members(stream: BinaryIO) -> Iterator[tuple[str, bytes]]:
    """Names and contents of the regular files of a tar, in order.

    Args:
        stream: the tar's bytes, read once from front to back.

    Raises:
        TarError: the tar is empty, has a damaged header or a member cut short, lacks its end marker, goes on after
            it, or holds a member above 256 MiB. Members before the damage have been yielded and are whole.
    """
    counted = _Counted(stream)
    members = 0
    good = 0  # bytes of whole members
    try:
        with tarfile.open(fileobj=cast(Any, counted), mode="r|", tarinfo=_StrictTarInfo) as archive:
            for member in archive:
                if member.isfile():
                    if member.size > LARGEST_MEMBER:
                        raise _Damage(f"{member.name} has {member.size} bytes, more than {LARGEST_MEMBER}")
                    handle = archive.extractfile(member)
                    content = handle.read() if handle is not None else b""
                    if len(content) != member.size:
                        raise _Damage(f"{member.name} is cut short")
                    yield member.name, content
                    members += 1
                good = member.offset_data + -(-member.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
                archive.members.clear()  # type: ignore[attr-defined]
    except _NoEndMarker as error:
        raise TarError(str(error), 0) from error
    except (_Damage, tarfile.TarError, EOFError) as error:
        lost = counted.count_to_end() - good
        text = "the file is empty" if counted.position == 0 else f"damaged at byte {good}: {error}"
        raise TarError(text, lost) from error
    if not members:
        raise TarError("no file in it", 0)


class _Damage(Exception):
    """Raised inside a header; the tar reader lets it pass."""


class _NoEndMarker(_Damage):
    """The file ends cleanly after a member, but without the two zero blocks that end a tar."""


class _Counted:
    """A stream that counts what was read of it."""

    def __init__(self, stream: BinaryIO) -> None:
        self.stream = stream
        self.position = 0

    def read(self, size: int = -1) -> bytes:
        data = bytes(self.stream.read(size))
        self.position += len(data)
        return data

    def count_to_end(self) -> int:
        while self.read(_DRAIN):
            pass
        return self.position


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
            raise _NoEndMarker("the end marker is missing; the file may be cut short") from error
        except tarfile.HeaderError as error:
            raise _Damage(str(error)) from error


def _check_only_zeros_follow(stream: Any) -> None:
    while block := stream.read(_DRAIN):
        if block.strip(b"\0"):
            raise _Damage("an end marker with more data after it (a zeroed header, or tars joined together)")
