"""Draw a lot, and write what is published and what is not: the sources are only read."""

from __future__ import annotations

import copy
import io
import tarfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from mi_core.provenance import now
from pipelines.config.sections.sources import SourceConfig
from pipelines.data.read import tar_shards
from pipelines.data.read.attributes import SUFFIXES
from pipelines.data.read.samples import Portion
from pipelines.data.read.sources import Source
from pipelines.errors import UserError
from pipelines.files import storage
from pipelines.lots.commit import bytes_digest, caption_path, captions_of
from pipelines.lots.vault import Release
from pipelines.run.parts import TaskMap

_PUBLISHED, _HELD_BACK = "published", "held_back"


class _Fate(NamedTuple):
    """The fate of one image."""

    row: Mapping[str, Any]  # of `IMAGES`: what was committed of it
    is_held: bool  # held back
    caption: int  # the die


@dataclass(frozen=True)
class _Part:
    """The fates of the images of a part.

    Args:
        source, item: where they are.
        release: that they are written for.
    """

    source: SourceConfig
    item: Portion
    release: Release

    @cached_property
    def known(self) -> tuple[dict[str, _Fate], set[str]]:
        """Fates by name, and the names of images of an earlier release, which are written nowhere.

        All others are published as they are.
        """
        release, table = self.release, self.release.images(self.item.name)
        fates, elsewhere, drawn = {}, set(), release.draw
        for row, unit in zip(table.to_pylist(), release.numbers(table).tolist(), strict=True):
            if row["sha256"] in release.earlier:
                elsewhere.add(row["name"])
            elif unit >= 0:
                fates[row["name"]] = _Fate(row, bool(drawn.held_back[unit]), int(drawn.caption[unit]))
        return fates, elsewhere

    def caption(self, fate: _Fate, own: str) -> str | None:
        """The caption that is published of an image; None: captions are not drawn.

        Raises:
            UserError: its own is not the one that was committed.
        """
        if not self.release.header.design.captions:
            return None
        if captions_of(own, fate.row["sha256"], self.release.secret["key"]) != fate.row["captions"]:
            raise _changed(f"the caption of {self.item.path}/{fate.row['name']}")
        return str(fate.row["captions"][fate.caption])


def publish(source: SourceConfig, release: Release, beacon: str, each: TaskMap) -> dict[str, int]:
    """Draw a committed release and write it; the same call goes on where an earlier one ended.

    Args:
        source: that the release was committed of.
        release: that is drawn.
        beacon: the public number; empty: there is none.
        each: runs the parts.

    Returns:
        Numbers of units ``published`` and ``held_back``.

    Raises:
        UserError: the release was drawn with another beacon, a beacon is missing or not expected, the images are not
            those that were committed, or another image of the same name is published.
    """
    _fix(release, beacon)
    items = {item.name: item for item in Source(source).items()}
    parts = []
    for name in release.parts():
        if name not in items:
            raise UserError(f"part {name} of the committed images is not there any more; put it back")
        parts.append(_Part(source, items[name], release))
    each(_write_part, [(part,) for part in parts], title="writing images")
    held_back = release.draw.held_back
    return {_PUBLISHED: int((~held_back).sum()), _HELD_BACK: int(held_back.sum())}


def _fix(release: Release, beacon: str) -> None:
    """Write down the beacon before anything is written; afterwards no other one is taken."""
    expected = release.header.beacon
    if bool(beacon) != bool(expected):
        raise UserError(
            f"release {release.number} was committed to the beacon {expected!r}; give its value with --beacon"
            if expected
            else f"release {release.number} was committed without a beacon, so that none can be given now"
        )
    if release.is_drawn:
        if release.drawing["beacon"] != beacon:
            raise UserError(f"release {release.number} was drawn with another beacon, on {release.drawing['drawn']}")
        return
    storage.write_json(f"{release.path}/draw.json", {"beacon": beacon, "drawn": now()})


def _write_part(part: _Part) -> None:
    """Write the images of a part to their folders, unless that is done."""
    done = f"{part.release.path}/done/{part.item.name}.json"
    if storage.exists(done):
        return
    (_divide_tar if part.source.kind == "shards" else _divide_folder)(part)
    storage.write_json(done, {"images": len(part.known[0])})


def _divide_folder(part: _Part) -> None:
    fates, elsewhere = part.known
    if missing := fates.keys() - set(part.item.files):
        raise UserError(f"{part.item.path}/{min(missing)} was committed and is not there any more; put it back")
    for name in part.item.files:
        if name in elsewhere:
            continue
        data, fate = storage.read_bytes(f"{part.item.path}/{name}"), fates.get(name)
        if fate is None:
            _write(part, _PUBLISHED, name, data)
            continue
        if bytes_digest(data) != fate.row["file"]:
            raise _changed(f"{part.item.path}/{name}")
        place = _HELD_BACK if fate.is_held else _PUBLISHED
        text = storage.file_or_none(caption_path(f"{part.item.path}/{name}")) if fate.row["captions"] else None
        caption = part.caption(fate, (text or b"").decode(errors="replace").strip())
        _write(part, place, name, data)
        if caption is not None:
            _write(part, place, caption_path(name), caption.encode())


def _divide_tar(part: _Part) -> None:
    """A tar for each folder: members in order, with headers and bytes as they were, but for captions that are drawn."""
    source = part.source
    buffers = {place: io.BytesIO() for place in (_PUBLISHED, _HELD_BACK)}
    (fates, elsewhere), texts = part.known, _texts(part)
    left = dict(fates)
    with ExitStack() as stack:
        stream = stack.enter_context(storage.open_input(part.item.path))
        given = stack.enter_context(tarfile.open(fileobj=stream, mode="r|*"))
        tars = {
            place: stack.enter_context(tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT))
            for place, buffer in buffers.items()
        }
        for member in given:
            key, suffix = tar_shards.split(member.name, source)
            key = f"{part.item.name}/{key}" if source.shard_in_key else key
            if key in elsewhere:
                continue
            content = given.extractfile(member) if member.isfile() else None
            data, fate = b"" if content is None else content.read(), fates.get(key)
            if fate is None:
                _add(tars[_PUBLISHED], member, data)
                continue
            if key in left and bytes_digest(data) == fate.row["file"]:
                del left[key]
                part.caption(fate, texts.get(key, ("", ""))[1])
            elif key in texts and suffix == texts[key][0]:
                data = fate.row["captions"][fate.caption].encode()
            _add(tars[_HELD_BACK if fate.is_held else _PUBLISHED], member, data)
    if left:
        raise _changed(f"{part.item.path}, image {min(left)}")
    for place, buffer in buffers.items():
        _write(part, place, f"{part.item.name}.tar", buffer.getvalue())


def _texts(part: _Part) -> dict[str, tuple[str, str]]:
    """The suffix and the caption of every image of a tar whose captions are drawn."""
    if not part.release.header.design.captions:
        return {}
    found: dict[str, tuple[str, str]] = {}
    for sample in Source(part.source).scan(part.item):
        others = getattr(sample, "others", {})
        for suffix in SUFFIXES:
            if suffix in others and sample.key not in found:
                found[sample.key] = suffix, others[suffix].decode(errors="replace").strip()
    return found


def _add(tar: tarfile.TarFile, member: tarfile.TarInfo, data: bytes) -> None:
    """Add a member with its own header and some bytes."""
    header = copy.copy(member)
    if header.isfile():
        header.size = len(data)
    tar.addfile(header, io.BytesIO(data))


def _write(part: _Part, place: str, name: str, data: bytes) -> None:
    """Write one file, unless an interrupted call did.

    Raises:
        UserError: another file has its name.
    """
    release = part.release
    path = f"{release.lot.published if place == _PUBLISHED else release.held_back}/{name}"
    if not storage.exists(path):
        storage.write_atomic(path, data)
    elif storage.read_bytes(path) != data:
        raise UserError(f"{path} is another image of an earlier release; rename the new one and start again")


def _changed(what: str) -> UserError:
    return UserError(f"{what} is not as it was committed; put the old one back")
