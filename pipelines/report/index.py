"""One page over all runs below a folder, on a disk or an object store.

A run is never left out without a word: one without a report, or with one that cannot be read, is listed with the
reason. Seeds and points of sweeps are folders of their run, so the search does not enter them.
"""

from __future__ import annotations

import os
import posixpath
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from functools import partial
from urllib.parse import quote

from mi_core.report.contents import plain
from mi_core.report.page.index import MARK, Entry, Unread, entry_of, render_index
from pipelines.errors import UserError
from pipelines.files import storage
from pipelines.files.stores import Address
from pipelines.files.walk import Folder, walk
from pipelines.run.folder import OF_RUN, RunFolder
from pipelines.run.heartbeat import Status, lines

PAGE = "index.html"
REPORT, PAGE_OF_RUN, RESULTS = "report.json", "report.html", "results.json"
_STARTED = {"config.yaml", "manifest.json"}
_HEAD = 4096  # bytes of a page that say who wrote it
_WRONG = (AttributeError, LookupError, OSError, RecursionError, TypeError, ValueError)


@dataclass(frozen=True)
class Index:
    """The outcome of `write`.

    Args:
        page: where it stands.
        entries: runs with a report; unread: all others that were seen.
    """

    page: str
    entries: tuple[Entry, ...]
    unread: tuple[Unread, ...]


def write(folder: str, out: str | None = None) -> Index:
    """Write one static page over all runs below a folder.

    Args:
        folder: a path or URI; it may be a run itself.
        out: the page; None: index.html in the folder.

    Raises:
        UserError: the folder is not there, cannot be listed or holds no run; or index.html there is not a page of
            this command.
    """
    page = f"{storage.target(folder)}/{PAGE}" if out is None else storage.target(out)
    if out is None and storage.exists(page):
        with storage.open_input(page) as stream:
            if MARK.encode() not in stream.read(_HEAD):
                raise UserError(f"{page} is there and no page of encoder-audit index; name another one with --out")
    elif out is not None and not storage.is_uri(page) and storage.is_folder(page):
        raise UserError(f"--out {out} is a folder; give the name of a page, such as {out.rstrip('/')}/{PAGE}")
    entries, unread = seen_below(folder, page)
    storage.write_atomic(page, render_index(entries, unread, folder, datetime.now(UTC)).encode())
    return Index(page, entries, unread)


def seen_below(folder: str, page: str) -> tuple[tuple[Entry, ...], tuple[Unread, ...]]:
    """All runs below a folder, with links from a page: those with a report, and the others.

    Raises UserError: the folder is not there, cannot be listed or holds no run.
    """
    root = storage.target(folder)
    if not storage.is_folder(root):
        raise UserError(f"{folder} is no folder; give one that holds runs")
    seen = [one for one in walk(root, _enters) if one.fault or _is_run(one)]
    if not seen:
        raise UserError(f"{folder} holds no run; give a folder with run folders in it")
    if seen[0].path == root and seen[0].fault:
        raise UserError(f"{folder}: {seen[0].fault}")
    paths, folders = [one.path for one in seen], {one.path: one for one in seen}
    found = storage.at_once(partial(_read, root=root, page=page, folders=folders), paths)
    unread = tuple(one for one in found if isinstance(one, Unread))
    return tuple(one for one in found if isinstance(one, Entry)), unread


def _is_run(folder: Folder) -> bool:
    files = set(folder.files)
    return bool({REPORT, RESULTS} & files) or files >= _STARTED


def _enters(folder: Folder, name: str) -> bool:
    return not (_is_run(folder) and any(fnmatchcase(name, pattern) for pattern in OF_RUN))


def _read(path: str, *, root: str, page: str, folders: dict[str, Folder]) -> Entry | Unread:
    below = path.removeprefix(root).lstrip("/") or "."
    folder, name = folders[path], plain(below)
    if folder.fault:
        return Unread(name, f"the folder cannot be read: {plain(folder.fault)}")
    if REPORT not in folder.files:
        return _unfinished(path, name, folder)
    try:
        report = storage.read_json(f"{path}/{REPORT}")
    except (OSError, RecursionError, ValueError) as error:
        return Unread(name, plain(f"{REPORT} cannot be read ({type(error).__name__}: {error})"))
    return entry_of(report, name, _link(f"{path}/{PAGE_OF_RUN}", page) if PAGE_OF_RUN in folder.files else "")


def _unfinished(path: str, name: str, folder: Folder) -> Unread:
    """Why a run has no report, and how far it is."""
    if not set(folder.files) >= _STARTED:
        return Unread(name, f"holds {RESULTS}, but no {REPORT}")
    try:
        found = Status.at(RunFolder(path))
        under_way = "; ".join(["", *lines(found.pieces)])
        counted = [(piece.done, piece.total) for piece in found.pieces if piece.total]
        share = sum(done for done, _ in counted) / sum(total for _, total in counted) if counted else None
        return Unread(name, plain(f"no {REPORT}; {found.headline}{under_way}", 300), share)
    except _WRONG as error:
        return Unread(name, plain(f"no {REPORT}, and progress.json cannot be read ({type(error).__name__})"))


def _link(report: str, page: str) -> str:
    """The address of a report relative to a page; empty where they share no disk or store."""
    if storage.is_uri(report) is not storage.is_uri(page):
        return ""
    if not storage.is_uri(report):
        return quote(os.fsencode(os.path.relpath(report, posixpath.dirname(page))))
    there, here = Address.parse(report), Address.parse(page)
    if there[:2] != here[:2]:
        return ""
    return quote(posixpath.relpath(f"/{there.key}", posixpath.dirname(f"/{here.key}")))
