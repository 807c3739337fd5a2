"""The way from one folder to another: it stays true if a folder around both is moved."""

from __future__ import annotations

import posixpath

from pipelines.files.storage import absolute


def way(folder: str, other: str) -> str:
    """The relative path from a folder to another one, both on a disk or in one object store."""
    return posixpath.relpath(absolute(other), absolute(folder))


def follow(folder: str, relative: str) -> str:
    """The folder that a way leads to."""
    scheme, mark, place = absolute(folder).rpartition("://")
    return scheme + mark + posixpath.normpath(posixpath.join(place, relative))
