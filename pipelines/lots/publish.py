"""Draw a lot, and write what is published and what is held back: the sources are only read."""

from __future__ import annotations

import io
import tarfile
from dataclasses import dataclass

from mi_core.provenance import now
from pipelines.config.sections.sources import SourceConfig
from pipelines.data.read import tar_shards
from pipelines.data.read.samples import Item
from pipelines.data.read.sources import Source
from pipelines.errors import UserError
from pipelines.files import storage
from pipelines.lots.commit import file_digest
from pipelines.lots.parts import Mapped
from pipelines.lots.vault import LONE, Release


@dataclass(frozen=True)
class _Part:
    """What becomes of the images of a part.

    Args:
        source, item: where they are.
        release: that they are written for.
        files: digest of the bytes of each image, by name.
        held_back: names of those that are not published.
        elsewhere: names of those that are in an earlier release, and are written nowhere.
    """

    source: SourceConfig
    item: Item
    release: Release
    files: dict[str, str]
    held_back: set[str]
    elsewhere: set[str]


def publish(source: SourceConfig, release: Release, beacon: str, each: Mapped) -> dict[str, int]:
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
    drawn = release.draw.held_back
    held = {sha for sha, is_held in zip(release.units["sha256"].to_pylist(), drawn, strict=True) if is_held}
    earlier = release.earlier()
    parts = []
    for name, table in release.images():
        if name not in items:
            raise UserError(f"part {name} of the committed images is not there any more; put it back")
        rows = table.to_pylist()
        files = {row["name"]: row["file"] for row in rows if row["file"]}
        kept = {row["name"] for row in rows if row["sha256"] in held}
        parts.append(
            _Part(source, items[name], release, files, kept, {r["name"] for r in rows if r["sha256"] in earlier})
        )
    each(_write_part, [(part,) for part in parts], "writing images")
    return {"published": len(drawn) - int(drawn.sum()), "held_back": int(drawn.sum())}


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
    drawing = {"beacon": beacon, "drawn": now(), "by": "beacon" if beacon else LONE}
    storage.write_json(f"{release.path}/draw.json", drawing)


def _write_part(part: _Part) -> None:
    """Write the images of a part to one of two folders, unless that is done."""
    done = f"{part.release.path}/done/{part.item.name}.json"
    if storage.exists(done):
        return
    (_divide_tar if part.source.kind == "shards" else _divide_folder)(part)
    storage.write_json(done, {"held_back": len(part.held_back)})


def _divide_folder(part: _Part) -> None:
    missing = part.files.keys() - set(part.item.files)
    if missing:
        raise UserError(f"{part.item.path}/{min(missing)} was committed and is not there any more; put it back")
    for name in part.item.files:
        if name in part.elsewhere:
            continue
        data = storage.read_bytes(f"{part.item.path}/{name}")
        if name in part.files and file_digest(data) != part.files[name]:
            raise _changed(f"{part.item.path}/{name}")
        _write(part, name in part.held_back, name, data)


def _divide_tar(part: _Part) -> None:
    """Two tars of one: members with headers and bytes as they were."""
    source = part.source
    rules = tar_shards.ShardRules(source.key == "last-dot", source.image, source.end_marker == "required")
    buffers = {True: io.BytesIO(), False: io.BytesIO()}
    left = dict(part.files)
    with (
        storage.open_input(part.item.path) as stream,
        tarfile.open(fileobj=stream, mode="r|*") as given,
        tarfile.open(fileobj=buffers[True], mode="w", format=tarfile.GNU_FORMAT) as back,
        tarfile.open(fileobj=buffers[False], mode="w", format=tarfile.GNU_FORMAT) as shown,
    ):
        for member in given:
            key, _ = rules.split(member.name)
            key = f"{part.item.name}/{key}" if source.shard_in_key else key
            if key in part.elsewhere:
                left.pop(key, None)
                continue
            content = given.extractfile(member) if member.isfile() else None
            data = b"" if content is None else content.read()
            if left.get(key) == file_digest(data):
                del left[key]
            (back if key in part.held_back else shown).addfile(member, io.BytesIO(data))
    if left:
        raise _changed(f"{part.item.path}, image {min(left)}")
    for is_held, buffer in buffers.items():
        _write(part, is_held, f"{part.item.name}.tar", buffer.getvalue())


def _write(part: _Part, is_held: bool, name: str, data: bytes) -> None:
    """Write one file, unless an interrupted call did.

    Raises:
        UserError: another file has its name.
    """
    path = f"{part.release.held_back if is_held else part.release.lot.published}/{name}"
    if not storage.exists(path):
        storage.write_atomic(path, data)
    elif storage.read_bytes(path) != data:
        raise UserError(f"{path} is another image of an earlier release; rename the new one and start again")


def _changed(what: str) -> UserError:
    return UserError(f"{what} is not as it was committed; put the old one back")
