"""Import any source into WebDataset shards, and inspect a source.

An import keeps the bytes of every image. It reads twice: first each item is a task, which tells what decodes; then each
task writes whole shards. What a shard holds follows from what decodes, and not from who writes it. Each shard appears
whole, the manifest last. A sample that does not decode is left out and listed.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby, islice
from typing import Any

from pydantic import ValidationError
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from mi_core.image_files import SUFFIXES, open_image, suffix_of
from mi_core.images import Decoder
from pipelines.config.mistakes import first_mistake
from pipelines.config.sections.sources import KINDS, ON_FILES, SETTINGS, SHARDED, TORCHVISION, SourceConfig
from pipelines.console import bars, say
from pipelines.data.database import one_by_one
from pipelines.data.read.samples import Note, Portion, Problem, Sample
from pipelines.data.read.shard_paths import PARQUET, TARS, expand
from pipelines.data.read.sources import Source
from pipelines.data.read.tar_shards import is_image
from pipelines.data.scan.losses import MANIFEST, Rejection, ScanReceipt, Tally, rejections
from pipelines.data.scan.scan import repeated, usable
from pipelines.errors import UserError
from pipelines.files import storage
from pipelines.run.parts import TaskMap

MOST_SAMPLES = 1024  # per shard
MOST_BYTES = 256 * 2**20  # per shard
LISTED = 20
_FILES = {"shards": TARS, "parquet": PARQUET}
_GIVE = "give a folder of images, tars, Parquet files, digits or torchvision:<Name>"
_ANY_SIZE = Decoder(32)  # sizes do not matter here: only whether an image decodes, and the hash of its full pixels


def source_of(text: str, *, root: str | None = None, options: dict[str, Any] | None = None) -> SourceConfig:
    """Parse a word or path of the command line into a source.

    Args:
        text: ``digits``, ``torchvision:<Name>``, a folder of images, or tars or Parquet files (folder, path, range,
            glob, URI).
        root: folder of a torchvision data set.
        options: its arguments, for example ``{"train": False}``; of tars, settings such as ``{"key": "last-dot"}``;
            of Parquet files, columns such as ``{"image": "photo"}``.

    Raises:
        UserError: there is nothing of that kind.
    """
    try:
        if text.startswith(TORCHVISION):
            return SourceConfig(kind=text, path=root, options=options or {})
        if text in KINDS and text not in ON_FILES:
            return SourceConfig(kind=text)
    except ValidationError as error:
        raise UserError(first_mistake(error)) from error
    folder = storage.is_folder(text)
    kinds = (
        kind for kind, files in _FILES.items() if (files.paths_in(text) if folder else text.endswith(files.endings))
    )
    kind = next(kinds, "imagefolder" if folder else "shards")
    if kind == "imagefolder":
        return SourceConfig(kind=kind, path=text)
    if not folder and not any(mark in text for mark in "{*?[") and not storage.exists(text):
        raise UserError(f"{text} does not exist; {_GIVE}")
    expand(text, _FILES[kind])
    try:
        own = dict(options or {})
        if kind == "parquet" and (columns := {name: own.pop(name) for name in own.keys() - SETTINGS.keys()}):
            own["columns"] = columns
        return SourceConfig(**{**own, "kind": kind, "path": text})
    except ValidationError as error:
        raise UserError(f"--option {first_mistake(error)}") from error


def import_shards(
    source: SourceConfig, out: str, *, max_rejected: float = 0.01, task_map: TaskMap = one_by_one
) -> dict[str, Any]:
    """Write the usable samples of a source as WebDataset shards, with a manifest.

    Args:
        source: where images come from.
        out: folder or URI for ``shard-000000.tar`` ... and ``manifest.json``.
        max_rejected: share of unusable samples that is allowed, in [0, 1].
        task_map: runs the tasks; the shards are the same bytes with any.

    Returns:
        The manifest: samples, bytes, classes of an image folder, shards with sha256, rejected samples.

    Raises:
        UserError: as `unfinished_shards`; the source is empty, too damaged, or was changed meanwhile.
    """
    out = storage.target(out)
    left = unfinished_shards(out)
    storage.remove_unfinished(out)
    for path in left:
        storage.remove(path)
    read = task_map(_read, [(source, item) for item in Source(source).items()], title="reading")
    tally = _tally(source, [one.reading for one in read])
    tally.check(max_rejected if tally.used else -1, f"--max-rejected {max_rejected:g}")
    tasks = [(source, out, work) for work in _divided(read)]
    shards = [shard for written in task_map(_write, tasks, title="writing") for shard in written]
    formats: Counter[str] = sum((shard.pop("formats") for shard in shards), Counter())
    manifest = {
        "source": source.describe(),
        "samples": sum(shard["samples"] for shard in shards),
        "bytes": sum(shard["bytes"] for shard in shards),
        "formats": dict(formats),
        "shards": shards,
        "rejected": [asdict(bad) | {"source": source.kind} for bad in tally.rejected],
    }
    storage.write_json(f"{out}/{MANIFEST}", manifest)
    say("import", f"{manifest['samples']} samples in {len(shards)} shards; {tally}; {out}/{MANIFEST}")
    for note in tally.notes():
        say("import", note)
    return manifest


def unfinished_shards(out: str) -> list[str]:
    """Paths of the shards that an interrupted import has left in a folder.

    Raises:
        UserError: the folder holds something else or finished shards.
    """
    left = storage.list_files(out)
    names = [path.rpartition("/")[2] for path in left]
    if any(name == MANIFEST or not (name.startswith("shard-") and name.endswith(".tar")) for name in names):
        raise UserError(f"{out} is not empty; give another folder")
    return left


@dataclass(frozen=True)
class _ReadItem:
    """The outcome of reading an item: key and bytes of each usable sample, in order, beside the reading."""

    reading: ScanReceipt
    sizes: Mapping[str, int]


@dataclass(frozen=True)
class _Piece:
    """The samples of a shard that stand in one item: by the key there, the key in the shard and the bytes."""

    item: Portion
    samples: dict[str, tuple[str, int]]


_Work = list[tuple[str, list[_Piece]]]
"""Names of shards, and their pieces."""


def _read(source: SourceConfig, item: Portion) -> _ReadItem:
    """Decode an item."""
    sizes: dict[str, int] = {}
    problems: list[Problem] = []
    for found in usable(source, item, _ANY_SIZE):
        if not isinstance(found, Problem):
            sizes[found[0].key] = _size(found[0])
        elif not isinstance(found, Note):  # what a run does to an image on the way to its size
            problems.append(found)
    return _ReadItem(ScanReceipt(item, len(sizes), tuple(problems)), sizes)


def _divided(read: Sequence[_ReadItem]) -> Iterator[_Work]:
    """The shards that each task writes: those whose first samples stand in the same item, which is read once more."""
    used: set[str] = set()
    shards: _Work = []
    count = size = MOST_SAMPLES  # as if one were full
    for one in read:
        for number, (key, added) in enumerate(one.sizes.items()):
            if is_full := count >= MOST_SAMPLES or size >= MOST_BYTES:
                shards.append((f"shard-{len(shards):06d}.tar", []))
                count = size = 0
            if is_full or not number:
                shards[-1][1].append(_Piece(one.reading.item, {}))
            shards[-1][1][-1].samples[key] = _unique(key, used), added
            count, size = count + 1, size + added
    yield from (list(some) for _, some in groupby(shards, key=lambda shard: shard[1][0].item.name))


def _write(source: SourceConfig, out: str, work: _Work) -> list[dict[str, Any]]:
    """Write some shards; their entries in the manifest, with formats.

    Raises:
        UserError: a sample is not there any more, or another.
    """
    entries = _entries(source, [piece for _, pieces in work for piece in pieces])
    return [
        _written(f"{out}/{name}", list(islice(entries, sum(len(piece.samples) for piece in pieces))))
        for name, pieces in work
    ]


def _entries(source: SourceConfig, pieces: Sequence[_Piece]) -> Iterator[tuple[dict[str, Any], str]]:
    """The samples of some pieces, in order, as `_entry`; an item is read as far as needed."""
    for item, some in groupby(pieces, key=lambda piece: piece.item):
        left = {key: wanted for piece in some for key, wanted in piece.samples.items()}
        for sample in Source(source).scan(item):
            if isinstance(sample, Problem) or sample.key not in left:
                continue
            name, size = left[sample.key]
            if _size(sample) != size:
                break
            del left[sample.key]
            yield _entry(sample, name)
            if not left:
                break
        if left:
            place = f"{item.name}/{next(iter(left))}"
            raise UserError(f"{source.path or source.kind}: {place} was changed during the import; run it again")


def _written(path: str, entries: Sequence[tuple[dict[str, Any], str]]) -> dict[str, Any]:
    import webdataset

    buffer = io.BytesIO()
    with webdataset.TarWriter(buffer, encoder=False, mtime=0) as writer:
        for entry, _ in entries:
            writer.write(entry)
    data = buffer.getvalue()
    storage.write_atomic(path, data)
    return {
        "name": path.rpartition("/")[2],
        "samples": len(entries),
        "bytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
        "formats": Counter(suffix for _, suffix in entries),
    }


def _tally(source: SourceConfig, readings: list[ScanReceipt]) -> Tally:
    used = sum(reading.used for reading in readings)
    rejected = rejections("", source, readings, whole=True)
    return Tally.from_rejections(used, rejected, {"": [reading.item for reading in readings]})


def _unique(key: str, used: set[str]) -> str:
    """The key that a sample gets in shards, which no other has.

    A key ends at the first dot, so dots in names become _.
    """
    folder, _, base = key.rpartition("/")
    stem, dot, ending = base.rpartition(".")
    name = (stem if dot and ending.lower() in SUFFIXES else base).replace(".", "_")
    wanted = unique = f"{folder}/{name}".lstrip("/")
    number = 1
    while unique in used:
        number += 1
        unique = f"{wanted}-{number}"
    used.add(unique)
    return unique


def _others(sample: Sample) -> dict[str, bytes]:
    """The parts of a sample that are kept beside its image and class: no other image."""
    return {name: content for name, content in sample.others.items() if not is_image(name)}


def _size(sample: Sample) -> int:
    return len(sample.image) + sum(map(len, _others(sample).values()))


def _entry(sample: Sample, key: str) -> tuple[dict[str, Any], str]:
    """The sample as WebDataset writes it, and its suffix."""
    suffix = suffix_of(open_image(sample.image).format or "")
    entry: dict[str, Any] = {"__key__": key, suffix: sample.image, **_others(sample)}
    if sample.label is not None:
        entry["cls"] = str(sample.label).encode()
    if key != sample.key and "json" not in entry:
        entry["json"] = json.dumps({"origin": sample.key}).encode()
    return entry, suffix


@dataclass
class Inspection:
    """Counts, formats, sizes, classes, problems and duplicate images of a source."""

    samples: int = 0
    bytes: int = 0
    formats: Counter[str] = field(default_factory=Counter)
    sides: tuple[int, int] = (2**31, 0)
    labels: Counter[int] = field(default_factory=Counter)
    tally: Tally = field(default_factory=lambda: Tally(0, (), {}))
    duplicates: list[tuple[str, str]] = field(default_factory=list)
    _first: dict[str, str] = field(default_factory=dict)  # by pixel hash, the place of the first such image

    def add(self, place: str, sample: Sample, sha: str) -> None:
        """Count a sample that decodes, of a place (shard/key) and a hash of its pixels."""
        info = open_image(sample.image)
        self.samples += 1
        self.bytes += len(sample.image)
        self.formats[f"{info.format} {info.mode}"] += 1
        smallest, largest = self.sides
        self.sides = (min(smallest, info.width, info.height), max(largest, info.width, info.height))
        if sample.label is not None:
            self.labels[sample.label] += 1
        if (first := self._first.setdefault(sha, place)) != place:
            self.duplicates.append((first, place))

    @property
    def problems(self) -> tuple[Rejection, ...]:
        """Samples and shards that a run could not use."""
        return tuple(self.tally.unusable)

    def table(self) -> RenderableType:
        """The counts as a table for the console."""
        table = Table(show_header=False, box=None)
        smallest, largest = self.sides
        rows = {
            "shards or parts": f"{sum(self.tally.shards.values()):,}",
            "usable samples": f"{self.samples:,}",
            "bytes of images": f"{self.bytes:,}",
            "formats": ", ".join(f"{name} {count:,}" for name, count in self.formats.most_common()),
            "shorter to longer side": f"{smallest} to {largest} pixels" if self.samples else "",
            "classes": f"{len(self.labels)}" if self.labels else "none",
            "left out": str(self.tally) if self.problems else "none",
            "duplicate images": f"{len(self.duplicates):,}",
        }
        for name, value in rows.items():
            table.add_row(name, value)
        parts: list[RenderableType] = [table]
        for bad in self.problems[:LISTED]:
            parts.append(Text(f"bad        {bad.shard}{'/' if bad.key else ''}{bad.key}: {bad.reason}"))
        parts += [Text(f"note       {note}") for note in self.tally.notes()]
        for one, two in self.duplicates[:LISTED]:
            parts.append(Text(f"duplicate  {two} has the pixels of {one}"))
        left = max(0, len(self.problems) - LISTED) + max(0, len(self.duplicates) - LISTED)
        if left:
            parts.append(Text(f"... and {left:,} more"))
        return Group(*parts)


def inspect(source: SourceConfig) -> Inspection:
    """Read a whole source and count its contents; as in a run, a key that an earlier shard has is a problem."""
    inspection, readings = Inspection(), []
    shard_of: dict[str, str] = {}
    with bars("shards") as progress:
        for item in progress.track(Source(source).items(), description="reading"):
            problems: list[Problem] = []
            before = inspection.samples
            for found in usable(source, item, _ANY_SIZE):
                if isinstance(found, Note):  # what a run does to an image on the way to its size
                    continue
                if isinstance(found, Problem):
                    problems.append(found)
                    continue
                sample, _, sha, _ = found
                if source.kind in SHARDED and (shard := shard_of.setdefault(sample.key, item.name)) != item.name:
                    problems.append(repeated(sample.key, shard))
                else:
                    inspection.add(f"{item.name}/{sample.key}", sample, sha)
            readings.append(ScanReceipt(item, inspection.samples - before, tuple(problems)))
    inspection.tally = _tally(source, readings)
    return inspection
