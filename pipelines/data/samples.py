"""Samples, items of a source, and what cannot be used of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Sample:
    """One encoded image, its class where the source has classes, and what else a shard holds of it, by suffix."""

    key: str
    image: bytes
    label: int | None = None
    others: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Problem:
    """A sample, or with an empty key a whole item, that cannot be used."""

    key: str
    reason: str


FILES = "*"  # begins the key of a note on several files


@dataclass(frozen=True)
class Note(Problem):
    """Something to know of a sample or a source that loses nothing: it is listed and said, not counted."""


@dataclass(frozen=True)
class Damage(Problem):
    """The end of an item that cannot be read on.

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
class Item:
    """A shard, or a slice of a source without shards. ``name`` is unique in the source and fit for a file name."""

    name: str
    path: str = ""
    files: tuple[str, ...] = ()
    labels: tuple[int | None, ...] = ()
    start: int = 0
    stop: int = 0

    @property
    def count(self) -> int | None:
        """Number of samples, where it is known without reading."""
        return len(self.files) or (self.stop - self.start) or None
