"""The records that reading a source yields: samples, problems and items."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mi_core.hashing import printable


@dataclass(frozen=True)
class Sample:
    """One encoded image, its class if the source has classes, and the other members of the sample by suffix."""

    key: str
    image: bytes
    label: int | None = None
    others: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Problem:
    """A sample that cannot be used; with an empty key, a whole item. ``count``: samples that it stands for."""

    key: str
    reason: str
    count: int = field(default=1, kw_only=True)


FILES = "*"  # begins the key of a problem or note on several files
IMAGES = "*images"  # the key of a note on so many images


@dataclass(frozen=True)
class Note(Problem):
    """A remark on a sample or a source; it is listed and printed, and does not count as a loss."""


@dataclass(frozen=True)
class Damage(Problem):
    """The point of an item after which nothing can be read.

    Args:
        found: samples before the damage, usable or listed.
        read: bytes of the file that hold them.
        left: bytes of the file after them.
        cut: the end of the file is missing or unreadable, so ``left`` does not say how much is lost.
    """

    found: int = 0
    read: int = 0
    left: int = 0
    cut: bool = True


@dataclass(frozen=True)
class Portion:
    """A shard, or a slice of a source without shards. ``name`` is unique in the source and fit for a file name."""

    name: str
    path: str = ""
    files: tuple[str, ...] = ()
    labels: tuple[int | None, ...] = ()
    start: int = 0
    stop: int = 0

    @property
    def count(self) -> int | None:
        """Number of samples, if it is known without reading."""
        return len(self.files) or (self.stop - self.start) or None


def misnamed(key: str) -> str:
    """The fault of a key; no key is ever used as a path."""
    if ".." in key.split("/"):
        return "its name leads out of its folder"
    return "" if printable(key) == key else "its name is not UTF-8"
