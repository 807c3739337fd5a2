"""Fix a lot before it is drawn: read every image once, number the units, and write down what one number binds."""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from mi_core.checks import ConfigError
from mi_core.images import Decoder
from mi_core.lots.commitment import Header, salt_digest
from mi_core.lots.draw import Design, merged_strata
from mi_core.provenance import now
from pipelines.config.sections.sources import SourceConfig
from pipelines.console import count_of, say
from pipelines.data.read.samples import Damage, Item, Note, Problem
from pipelines.data.read.sources import Source
from pipelines.data.scan.scan import usable
from pipelines.errors import UserError
from pipelines.files import storage
from pipelines.lots.parts import Mapped
from pipelines.lots.vault import COMMITMENTS, Lot, Release

_ANY_SIZE = Decoder(1)
_SOURCES = ("imagefolder", "shards")


def commit(
    source: SourceConfig,
    lot: Lot,
    *,
    share: float,
    beacon: str,
    albums: Mapping[str, str] | None,
    each: Mapped,
) -> Release:
    """Fix the next release of a lot; the same call goes on where an earlier one ended.

    Args:
        source: a folder of images, or tars.
        lot: to which the release is added.
        share: of the images that is held back, in (0, 1).
        beacon: which public number will decide, in words; empty: none.
        albums: the album of every name; None: the folder that an image stands in.
        each: runs the parts.

    Raises:
        UserError: the source cannot be read, holds no new image, or has changed since the commitment was made.
    """
    if source.kind not in _SOURCES:
        raise UserError(
            f"a lot is drawn of a folder of images or of tars, not of {source.kind}; write tars first with "
            "encoder-audit shards import"
        )
    release = lot.new_release()
    if release.is_committed:
        return _same(release, share, beacon)
    storage.write_json(f"{release.path}/source.json", source.model_dump(mode="json", exclude_defaults=True))
    items = Source(source).items()
    each(_read_part, [(source, item, release.path) for item in items], "reading images")
    _number(release, items, share, albums)
    try:
        design = Design(tuple(np.bincount(release.units["stratum"]).tolist()), share)
    except ConfigError as error:
        raise UserError(f"lot: {error}") from error
    previous = lot.releases()[:-1]
    before = previous[-1].header.commitment if previous else ""
    header = Header(design, release.root(), salt_digest(release.secret["salt"]), beacon, before)
    storage.write_json(f"{release.path}/header.json", header.as_json())
    _tell(release, header)
    return release


def _same(release: Release, share: float, beacon: str) -> Release:
    """A release that is committed already, if that is what is asked for."""
    header = release.header
    for name, given, fixed in (("--share", share, header.design.share), ("--beacon", beacon, header.beacon)):
        if given != fixed:
            raise UserError(
                f"release {release.number} is committed with {name} {fixed or 'none'!r}, not {given or 'none'!r}; draw "
                f"it as it is, or remove {release.path} before its commitment was shown to anybody"
            )
    _tell(release, header)
    return release


def _tell(release: Release, header: Header) -> None:
    """Write the line of a release where it is missing."""
    path = f"{release.lot.path}/{COMMITMENTS}"
    told = storage.read_bytes(path).decode() if storage.exists(path) else ""
    if header.commitment not in told:
        line = f"release {release.number}  {now()}  {header.commitment}  beacon: {header.beacon or 'none'}\n"
        storage.write_atomic(path, (told + line).encode())


def _read_part(source: SourceConfig, item: Item, folder: str) -> None:
    """Read the images of a part and write names and digests, unless that is done."""
    path, stamp = f"{folder}/images/{item.name}.parquet", _stamp(item)
    if storage.exists(path) and (storage.read_table(path, []).schema.metadata or {}).get(b"stamp") == stamp:
        return
    rows: list[dict[str, str]] = []
    for found in usable(source, item, _ANY_SIZE):
        if isinstance(found, Note):
            continue
        if isinstance(found, Damage) or (isinstance(found, Problem) and not found.key):
            raise UserError(f"{item.path} is damaged ({found.reason}); mend it, so that no image of it is lost")
        if isinstance(found, Problem):
            rows.append({"name": found.key, "sha256": "", "file": "", "reason": found.reason})
            continue
        sample, _, sha, _ = found
        rows.append({"name": sample.key, "sha256": sha, "file": file_digest(sample.image), "reason": ""})
    schema = pa.schema([(name, pa.string()) for name in ("name", "sha256", "file", "reason")])
    storage.write_table(path, pa.Table.from_pylist(rows, schema).replace_schema_metadata({"stamp": stamp}))


def _stamp(item: Item) -> bytes:
    """What tells whether the files of a part are those that were read."""
    paths = [f"{item.path}/{name}" for name in item.files] or [item.path]
    return hashlib.sha256("\n".join(f"{path} {storage.stamp(path)}" for path in paths).encode()).hexdigest().encode()


def file_digest(data: bytes) -> str:
    """What tells whether the bytes of an image are those that were committed."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _number(release: Release, items: Sequence[Item], share: float, albums: Mapping[str, str] | None) -> None:
    """Number the units, and write units.parquet. A unit is all copies of an image; its album is that of the first."""
    read = {item.name: f"{release.path}/images/{item.name}.parquet" for item in items}
    for path in set(storage.list_files(f"{release.path}/images")) - set(read.values()):
        storage.remove(path)  # of an earlier call, on other images
    parts = [(name, storage.read_table(path)) for name, path in read.items()]
    known = release.earlier()
    album_of: dict[str, str] = {}
    count = lost = earlier = 0
    for _, table in parts:
        for name, sha in zip(table["name"].to_pylist(), table["sha256"].to_pylist(), strict=True):
            count += 1
            lost += not sha
            earlier += sha in known
            if sha and sha not in known and sha not in album_of:
                if albums is not None and name not in albums:
                    raise UserError(f"--albums names no album of {name}; add a line for it")
                album_of[sha] = name.rpartition("/")[0] if albums is None else albums[name]
    if not album_of:
        raise UserError(f"no new image: of {count:,} images {earlier:,} are in an earlier release, {lost:,} unreadable")
    digests = sorted(album_of)
    strata, names = merged_strata([album_of[sha] for sha in digests], share)
    order = np.argsort(strata, kind="stable")
    table = pa.table({"sha256": pa.array(digests).take(pa.array(order)), "stratum": strata[order]})
    table = table.replace_schema_metadata({"strata": "\n".join(names)})
    storage.write_table(f"{release.path}/units.parquet", table)
    copies, divided = count - lost - earlier - len(digests), count_of(len(names), "album", "albums")
    say(
        "lot",
        f"{count_of(count, 'image', 'images')}: {len(digests):,} in the lot, in {divided}, "
        f"{copies:,} copies, {earlier:,} of earlier releases, {lost:,} unreadable and published as they are",
    )


def read_albums(path: str) -> dict[str, str]:
    """The albums of a table with the columns ``name`` and ``album``.

    Raises:
        UserError: it cannot be read, or has other columns.
    """
    try:
        rows = csv.DictReader(io.StringIO(storage.read_bytes(path).decode("utf-8-sig")))
        if not {"name", "album"} <= set(rows.fieldnames or ()):
            raise UserError(
                f"{path} has the columns {', '.join(rows.fieldnames or ()) or 'none'}; name and album are needed"
            )
        return {row["name"]: row["album"] for row in rows}
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--albums {path} cannot be read ({error})") from error
