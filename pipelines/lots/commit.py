"""Fix a lot before it is drawn: read every image once, number the units, and write down what one number binds."""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mi_core.captions import captioned, credit_lines
from mi_core.checks import ConfigError
from mi_core.hashing import digest64
from mi_core.images import Decoder
from mi_core.lots.commitment import ALL, Header, entry_digest, text_digest
from mi_core.lots.draw import Design, merged_strata
from mi_core.lots.words import power_in_words
from mi_core.validity.near_duplicates import near_copies
from pipelines.config.sections.sources import SourceConfig
from pipelines.console import count_of, say
from pipelines.data.columns import DESCRIPTOR, PHASH
from pipelines.data.read.attributes import SUFFIXES
from pipelines.data.read.samples import Damage, Note, Portion, Problem, Sample
from pipelines.data.read.sources import Source
from pipelines.data.scan.scan import usable
from pipelines.errors import UserError
from pipelines.files import storage
from pipelines.lots.vault import IMAGES, UNITS, Lot, Release
from pipelines.run.parts import TaskMap

ANY_SIZE = Decoder(64, fit="squash")
"""Enough to tell near-copies; digests are of the pixels at full size."""
_SOURCES = ("imagefolder", "shards")


@dataclass(frozen=True)
class Wanted:
    """The draws that are wanted of a release.

    Args:
        share: of the images that is held back, in [0, 1).
        captions: whether one of several captions of every image is published.
    """

    share: float
    captions: bool = False


def commit(
    source: SourceConfig,
    lot: Lot,
    wanted: Wanted,
    *,
    beacon: str,
    albums: Mapping[str, str] | None,
    counted: str = ALL,
    elsewhere: SourceConfig | None = None,
    each: TaskMap,
) -> Release | None:
    """Fix the next release of a lot; the same call goes on where an earlier one ended.

    Args:
        source: a folder of images, or tars.
        lot: to which the release is added.
        wanted: what is drawn.
        beacon: which public number will decide, in words; empty: none.
        albums: the album of every name; None: the folder that an image stands in.
        counted: `ALL` or `UNTIL_DECIDED`, of the first release; later ones keep it.
        elsewhere: images that others have already; what is nearly one of them is published and left out of the lot.
        each: runs the parts.

    Returns:
        The release; None: all images are in an earlier one.

    Raises:
        UserError: the source cannot be read, holds no usable image, or has changed since the commitment was made.
    """
    if source.kind not in _SOURCES:
        raise UserError(
            f"a lot is drawn of a folder of images or of tars, not of {source.kind}; write tars first with "
            "encoder-audit shards import"
        )
    release, before = lot.new_release(), lot.chain()
    first = before[0] if before else None
    if isinstance(first, Header) and first.counted != counted:
        if counted != ALL:
            raise UserError(f"release 1 was committed to ask about {first.counted} images; that holds for all releases")
        counted = first.counted
    if release.is_committed:
        return _same(release, wanted, beacon)
    storage.write_json(f"{release.path}/source.json", source.model_dump(mode="json", exclude_defaults=True))
    items = Source(source).items()
    key = release.secret["key"]
    each(_read_part, [(source, item, release.path, wanted, key) for item in items], title="reading images")
    if not _number(release, items, wanted, albums, elsewhere):
        storage.remove(release.path)
        return None
    try:
        design = Design(tuple(np.bincount(release.units["stratum"]).tolist()), **asdict(wanted))
    except ConfigError as error:
        raise UserError(f"lot: {error}") from error
    header = Header(
        design,
        release.root(),
        text_digest(release.secret["salt"]),
        entry_digest(list(release.strata)),
        beacon,
        counted,
        before[-1].commitment if before else "",
    )
    for path in (f"{lot.path}/header-{release.number:03d}.json", f"{release.path}/header.json"):
        storage.write_json(path, header.as_json())
    lot.write_down(f"release {release.number}", header.commitment, beacon)
    return release


def _same(release: Release, wanted: Wanted, beacon: str) -> Release:
    """A release that is committed already, if that is what is asked for."""
    header, design = release.header, release.header.design
    for name, given, fixed in (
        ("--share", wanted.share, design.share),
        ("--decided-by", beacon, header.beacon),
        ("--captions", wanted.captions, design.captions),
    ):
        if given != fixed:
            raise UserError(
                f"release {release.number} is committed with {name} {fixed or 'none'!r}, not {given or 'none'!r}; draw "
                "it with encoder-audit lot draw, or start again in another --out"
            )
    release.lot.write_down(f"release {release.number}", header.commitment, header.beacon)
    return release


def _read_part(source: SourceConfig, item: Portion, folder: str, wanted: Wanted, key: str) -> None:
    """Read the images of a part and write names and digests, unless that is done."""
    path, stamp = f"{folder}/images/{item.name}.parquet", _stamp(item, wanted)
    if storage.exists(path) and (storage.read_table(path, []).schema.metadata or {}).get(b"stamp") == stamp:
        return
    rows: list[dict[str, Any]] = []
    for found in usable(source, item, ANY_SIZE, near=True):
        if isinstance(found, Note):
            continue
        if isinstance(found, Damage) or (isinstance(found, Problem) and not found.key):
            raise UserError(f"{item.path} is damaged ({found.reason}); mend it, so that no image of it is lost")
        if isinstance(found, Problem):
            rows.append({"name": found.key, "sha256": "", "reason": found.reason})
            continue
        sample, _, sha, marks = found
        caption = _caption_beside(source, item, sample) if wanted.captions else ""
        if wanted.captions and not caption:
            raise UserError(f"{item.path}/{sample.key} has no caption; put a text file of its name beside it")
        rows.append(
            {
                "name": sample.key,
                "sha256": sha,
                "file": bytes_digest(sample.image),
                PHASH: marks[PHASH],
                DESCRIPTOR: marks[DESCRIPTOR],
                "captions": captions_of(caption, sha, key) if wanted.captions else [],
                "reason": "",
            }
        )
    storage.write_table(path, pa.Table.from_pylist(rows, IMAGES).replace_schema_metadata({"stamp": stamp}))


def _stamp(item: Portion, wanted: Wanted) -> bytes:
    """A digest that tells whether the files of a part are those that were read, and read for the same."""
    paths = [f"{item.path}/{name}" for name in item.files] or [item.path]
    lines = [f"{path} {storage.stamp(path)}" for path in paths] + [repr(wanted.captions)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest().encode()


def _number(
    release: Release,
    items: Sequence[Portion],
    wanted: Wanted,
    albums: Mapping[str, str] | None,
    elsewhere: SourceConfig | None,
) -> bool:
    """Number the units, and write units.parquet; False: all images are in an earlier release.

    A unit is all copies of an image; the first of them speaks for it.
    """
    read = {item.name: f"{release.path}/images/{item.name}.parquet" for item in items}
    for path in set(storage.list_files(f"{release.path}/images")) - set(read.values()):
        storage.remove(path)  # of an earlier call, on other images
    columns = ["name", "sha256", "captions", PHASH, DESCRIPTOR]
    whole = pa.concat_tables([storage.read_table(path, columns) for path in read.values()])
    count, readable = len(whole), whole.filter(pc.not_equal(whole["sha256"], ""))
    new = _without(readable, release.earlier)
    fresh = len(new)
    if elsewhere is not None:
        new = _without(new, _find_seen(new, elsewhere))
        say("lot", f"{count_of(fresh - len(new), 'image', 'images')} seen elsewhere: published, and not in the lot")
    every = len(new)
    if len(readable) and not fresh:
        return False
    if not len(new):
        raise UserError(
            f"no new image: of {count:,} images {len(readable) - fresh:,} are in an earlier release, "
            f"{count - len(readable):,} unreadable, {fresh:,} seen elsewhere"
        )
    _, first = np.unique(np.asarray(new["sha256"].to_pylist(), dtype="S64"), return_index=True)
    new = new.take(pa.array(first)).select(["sha256", "name", "captions"])
    strata, names = merged_strata(_albums(new["name"].to_pylist(), albums), wanted.share)
    order = pa.array(np.argsort(strata, kind="stable"))
    units = new.append_column("stratum", pa.array(strata)).take(order).select(UNITS.names)
    storage.write_table(
        f"{release.path}/units.parquet", units.cast(UNITS).replace_schema_metadata({"strata": "\n".join(names)})
    )
    told = {
        "copies": every - len(units),
        "of earlier releases": len(readable) - fresh,
        "unreadable and published as they are": count - len(readable),
    }
    rest = "".join(f", {number:,} {what}" for what, number in told.items() if number)
    divided = count_of(len(names), "album", "albums")
    say("lot", f"{count_of(count, 'image', 'images')}: {len(units):,} in the lot, in {divided}{rest}")
    if wanted.share:
        held_back = round(wanted.share * len(units))
        say("lot", power_in_words(len(units) - held_back, held_back))
    return True


def _without(images: pa.Table, shas: set[str]) -> pa.Table:
    """The images whose pixels are not among some."""
    return images.filter(pc.invert(pc.is_in(images["sha256"], value_set=pa.array(sorted(shas), pa.string()))))


def _find_seen(images: pa.Table, source: SourceConfig) -> set[str]:
    """The pixels (SHA-256) of those images of a lot that stand in a source, as they are or nearly.

    Args:
        images: of the lot, with columns of `IMAGES`: pixels and marks.
        source: where the others are.

    Raises:
        UserError: the source cannot be read.
    """
    shas, marks = [], []
    for item in Source(source).items():
        for found in usable(source, item, ANY_SIZE, near=True):
            if not isinstance(found, Problem):
                shas.append(found[2])
                marks.append((found[3][PHASH], found[3][DESCRIPTOR]))
    mine = images["sha256"].to_pylist()
    seen = set(mine) & set(shas)
    if not marks or not mine:
        return seen
    own = zip(images[PHASH].to_pylist(), images[DESCRIPTOR].to_pylist(), strict=True)
    pairs = near_copies([*own, *marks])
    across = pairs[(pairs[:, 0] < len(mine)) & (pairs[:, 1] >= len(mine))]
    return seen | {mine[row] for row in across[:, 0].tolist()}


def _albums(names: Sequence[str], albums: Mapping[str, str] | None) -> list[str]:
    """The album of each image."""
    if albums is None:
        return [name.rpartition("/")[0] for name in names]
    missing = next((name for name in names if name not in albums), None)
    if missing is not None:
        raise UserError(f"--albums names no album of {missing}; add a line for it")
    return [albums[name] for name in names]


def read_albums(path: str) -> dict[str, str]:
    """The albums of a table with the columns ``name`` and ``album``.

    Raises:
        UserError: it cannot be read, has other columns, or lacks an album.
    """
    try:
        rows = csv.DictReader(io.StringIO(storage.read_bytes(path).decode("utf-8-sig")))
        if not {"name", "album"} <= set(rows.fieldnames or ()):
            raise UserError(
                f"{path} has the columns {', '.join(rows.fieldnames or ()) or 'none'}; name and album are needed"
            )
        albums: dict[str, str] = {}
        for row in rows:
            if row["album"] is None:
                raise UserError(f"line {rows.line_num} of {path} has no album; write name and album, with a comma")
            albums[row["name"]] = row["album"]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"--albums {path} cannot be read ({error})") from error
    return albums


def captions_of(caption: str, sha256: str, key: str) -> list[str]:
    """All captions of an image, the same whenever they are made.

    Args:
        caption: its own.
        sha256: of its pixels.
        key: secret of the release.
    """
    return [captioned(caption, line) for line in credit_lines(digest64(key, "caption", sha256))]


def _caption_beside(source: SourceConfig, item: Portion, sample: Sample) -> str:
    """The caption of an image: in the tar, or in a text file of its name beside it; empty: there is none."""
    if source.kind == "shards":
        data = next((sample.others[suffix] for suffix in SUFFIXES if suffix in sample.others), None)
    else:
        data = storage.file_or_none(caption_path(f"{item.path}/{sample.key}"))
    return (data or b"").decode(errors="replace").strip()


def caption_path(path: str) -> str:
    """The text file that belongs to an image file."""
    folder, slash, name = path.rpartition("/")
    stem, dot, _ = name.rpartition(".")
    return f"{folder}{slash}{stem if dot else name}.{SUFFIXES[0]}"


def bytes_digest(data: bytes) -> str:
    """A digest that tells whether bytes are those that were committed."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()
