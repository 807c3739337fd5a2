"""Where images come from: each kind of source lists its items and streams them.

Items are shards, row groups, or slices of a folder.

A sample is (key, encoded image, label); its identity in a run is (source name, key). Listing is deterministic, and
reading an item twice gives the same samples in the same order.

List the images of a folder, and account for its other files.

A suffix that is an image's makes a file an image; a file without a suffix is looked into. Nothing is passed over in
silence: a picture that cannot be read is lost, other files are counted by their suffix.
"""

from __future__ import annotations

import importlib.util
import io
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from mi_core.hashing import printable
from mi_core.image_files import HEAD, OTHER_PICTURES, SUFFIXES, never_start_ghostscript, sort_files, suffix_in
from mi_core.images import encode_png
from mi_core.plugins import BROKEN, plugged_in
from pipelines.config.sections.sources import NOISE, TORCHVISION, SourceConfig, known_dataset, noise_options
from pipelines.console import count_of
from pipelines.data.read import parquet_columns, tar_shards
from pipelines.data.read.samples import FILES, Note, Portion, Problem, Sample
from pipelines.errors import UserError
from pipelines.files import storage

SLICE = 1024  # samples per item of a source that has no shards


@dataclass(frozen=True)
class Reader:
    """A row of `READERS`: how a kind of source is listed and read.

    Args:
        items: the items of a source, in a fixed order; raises ConfigError or UserError if its settings are wrong.
        scan: everything in an item, in order, no key twice: samples, and a problem for what is not usable.
    """

    items: Callable[[SourceConfig], list[Portion]]
    scan: Callable[[SourceConfig, Portion], Iterator[Sample | Problem]]


@dataclass(frozen=True)
class Source:
    """A source of images that can be listed and read."""

    config: SourceConfig

    def items(self) -> list[Portion]:
        """The items of the source, in a fixed order.

        Raises:
            UserError: there are none, or the folder or data set cannot be read.
        """
        return self._reader.items(self.config)

    def unread(self) -> tuple[Problem, ...]:
        """The other files in a folder of images: pictures that are lost, notes on other files."""
        return contents(str(self.config.path)).unread if self.config.kind == "imagefolder" else ()

    def read(self, item: Portion, wanted: set[str] | None = None) -> Iterator[Sample]:
        """The usable samples of an item, in order, each key once; with ``wanted``, only those, as long as needed.

        Raises:
            OSError: the item is damaged before all wanted samples were found.
        """
        if wanted is None:
            yield from (sample for sample in self.scan(item) if not isinstance(sample, Problem))
            return
        left = set(wanted)
        for sample in self.scan(item) if left else ():
            if not isinstance(sample, Problem) and sample.key in left:
                left.discard(sample.key)
                yield sample
                if not left:
                    return
            elif isinstance(sample, Problem) and not sample.key:
                raise OSError(sample.reason)

    def scan(self, item: Portion) -> Iterator[Sample | Problem]:
        """Everything in an item, in order: usable samples, and a problem for what is not. No key is yielded twice."""
        found = self._reader.scan(self.config, item)
        if not self.config.shard_in_key:
            return found
        shard = item.name if self.config.kind == "shards" else parquet_columns.file_of(item)
        return (replace(one, key=f"{shard}/{one.key}") if one.key else one for one in found)

    @property
    def _reader(self) -> Reader:
        if fault := BROKEN.get(("sources", self.config.kind)):
            raise UserError(f"kind = {self.config.kind}: {fault}")
        return READERS.get(self.config.kind, _TORCHVISION_READER)


def _slices(count: int, path: str = "") -> list[Portion]:
    return [
        Portion(f"part-{index:05d}", path=path, start=start, stop=min(count, start + SLICE))
        for index, start in enumerate(range(0, count, SLICE))
    ]


def _digits_scan(_: SourceConfig, item: Portion) -> Iterator[Sample | Problem]:
    for row, (*levels, digit) in enumerate(_digits()[item.start : item.stop], start=item.start):
        pixels = np.round(np.reshape(levels, (8, 8)) * (255 / 16)).astype(np.uint8)
        yield Sample(f"{row:04d}", encode_png(pixels), int(digit))


@cache
def _digits() -> npt.NDArray[np.float64]:
    """(1797, 65) levels from 0 to 16 and the digit, from scikit-learn's file: importing it takes a second."""
    (folder,) = importlib.util.find_spec("sklearn").submodule_search_locations  # type: ignore[union-attr,misc]
    return np.loadtxt(f"{folder}/datasets/data/digits.csv.gz", delimiter=",")


def _noise_scan(source: SourceConfig, item: Portion) -> Iterator[Sample | Problem]:
    options = noise_options(source)
    shape = (options.size, options.size, 3)
    for row in range(item.start, item.stop):
        generator = np.random.default_rng([row, options.size])
        drawn = generator.integers(0, 256, shape)
        if options.distribution == "gaussian":
            drawn = np.clip(np.round(generator.normal(127.5, 64, shape)), 0, 255).astype(np.int64)
        yield Sample(f"{row:07d}", encode_png(drawn.astype(np.uint8)))


def _folder_items(source: SourceConfig) -> list[Portion]:
    folder = contents(str(source.path))
    classes = sorted({name.split("/")[0] for name in folder.images if "/" in name})
    numbers = {name: number for number, name in enumerate(classes)}
    labels = [numbers.get(name.split("/")[0]) if "/" in name else None for name in folder.images]
    return [
        Portion(
            f"part-{index:05d}",
            path=folder.root,
            files=folder.images[start : start + SLICE],
            labels=tuple(labels[start : start + SLICE]),
        )
        for index, start in enumerate(range(0, len(folder.images), SLICE))
    ]


def _folder_scan(_: SourceConfig, item: Portion) -> Iterator[Sample | Problem]:
    for name, label in zip(item.files, item.labels, strict=True):
        if printable(name) != name:
            yield Problem(printable(name), "its name is not UTF-8")
            continue
        try:
            image = storage.read_bytes(f"{item.path}/{name}")
        except OSError as error:
            yield Problem(name, f"unreadable: {error}")
            continue
        yield Sample(name, image, label)


def _torchvision_dataset(source: SourceConfig, root: str, *, download: bool) -> Any:
    return _opened_dataset(source.kind, root, json.dumps(source.options, sort_keys=True), download)


@lru_cache(maxsize=4)
def _opened_dataset(kind: str, root: str, options: str, download: bool) -> Any:
    """A data set in memory, once per process: several items read the same one."""
    import inspect

    from torchvision import datasets

    made = getattr(datasets, known_dataset(kind.removeprefix(TORCHVISION)))
    accepted = inspect.signature(made.__init__).parameters
    arguments: dict[str, Any] = json.loads(options)
    if "root" in accepted:
        arguments["root"] = root
    if "download" in accepted:
        arguments["download"] = download
    never_start_ghostscript()  # torchvision's folders open files by themselves
    try:
        return made(**arguments)
    except (RuntimeError, OSError, TypeError, ValueError) as error:
        raise UserError(f"{kind}: {' '.join(str(error).split())}") from error


def _torchvision_items(source: SourceConfig) -> list[Portion]:
    root = storage.absolute(str(source.path or "data"))
    return _slices(len(_torchvision_dataset(source, root, download=True)), root)


def _torchvision_scan(source: SourceConfig, item: Portion) -> Iterator[Sample | Problem]:
    dataset = _torchvision_dataset(source, item.path, download=False)
    for row in range(item.start, item.stop):
        key = f"{row:07d}"
        try:
            entry = dataset[row]
        except (OSError, ValueError) as error:
            yield Problem(key, f"unreadable: {error}")
            continue
        image, label = entry if isinstance(entry, tuple) else (entry, None)
        if not isinstance(image, Image.Image):
            yield Problem(key, f"the data set returns a {type(image).__name__}, not an image")
            continue
        buffer = io.BytesIO()
        image.save(buffer, "PNG")
        labelled = isinstance(label, int) and label >= 0  # STL10 says -1 of images without a class
        yield Sample(key, buffer.getvalue(), int(label) if labelled else None)


READERS: dict[str, Reader] = {
    "digits": Reader(lambda _: _slices(len(_digits())), _digits_scan),
    NOISE: Reader(lambda source: _slices(noise_options(source).count), _noise_scan),
    "imagefolder": Reader(_folder_items, _folder_scan),
    "shards": Reader(lambda source: tar_shards.items_of(source.patterns), tar_shards.scan_shard),
    "parquet": Reader(
        lambda source: parquet_columns.items_of(source.patterns, source.columns),
        lambda source, item: parquet_columns.scan_row_group(item, source.columns),
    ),
}
READERS |= plugged_in("sources", READERS, Reader, key=None)
_TORCHVISION_READER = Reader(_torchvision_items, _torchvision_scan)


@dataclass(frozen=True)
class Folder:
    """The files of a folder and its subfolders.

    Args:
        root: its absolute path.
        images: names of the images relative to it, sorted.
        unread: the other files: a problem for each picture that is lost, a note for what is none.
    """

    root: str
    images: tuple[str, ...]
    unread: tuple[Problem, ...]


def contents(folder: str) -> Folder:
    """List a folder by the names of its files; files without a suffix are opened.

    Raises:
        UserError: it is no folder, or holds no image.
    """
    if not storage.is_folder(folder):
        alone = folder.endswith((".npy", ".npz", ".pt", ".csv", ".parquet"))
        why = ": from embeddings alone nothing tells use from a difference of the groups" if alone else ""
        raise UserError(f"{folder} is no folder; give the folder of the images{why}")
    root = storage.absolute(folder)
    listed = storage.listing(folder)
    names = [path.removeprefix(f"{root}/") for path in listed.files]
    images, lost = sort_files(names, lambda name: _head(f"{root}/{name}"))
    unread = list(_unread(names, set(images), lost))
    for path, what in listed.others.items():  # dangling links, pipes and the like; pictures by their names are lost
        name = path.removeprefix(f"{root}/")
        kind = Problem if suffix_in(name) in (*SUFFIXES, *OTHER_PICTURES) else Note
        unread.append(kind(printable(name), f"{what}; not read"))
    if not images:
        held = "; ".join(f"{one.key}: {one.reason}" for one in unread[:3])
        raise UserError(f"{folder} holds no image ({', '.join(SUFFIXES)}){'; it holds ' if held else ''}{held}")
    return Folder(root, tuple(images), tuple(unread))


@lru_cache(maxsize=2**17)
def _head(path: str) -> bytes:
    """The first bytes of a file, read once per process; empty if it cannot be read."""
    try:
        with storage.open_input(path) as stream:
            return bytes(stream.read(HEAD))
    except (OSError, UserError):
        return b""


def _unread(names: list[str], images: set[str], lost: Mapping[str, str]) -> Iterator[Problem]:
    """List the pictures that are lost; count other files by suffix."""
    beside: Counter[str] = Counter()
    others: Counter[str] = Counter()
    for name in names:
        suffix = suffix_in(name)
        if name in lost:
            yield Problem(printable(name), lost[name])
        elif name not in images:
            (beside if suffix in OTHER_PICTURES else others)[suffix] += 1
    for suffix, count in sorted(beside.items()):
        skipped = f"{count_of(count, 'file', 'files')} skipped"
        yield Note(f"{FILES}.{suffix}", f"{skipped}: the image of the same name is read instead")
    for suffix, count in sorted(others.items()):
        by = f"by {'its' if count == 1 else 'their'} {'suffix' if suffix else 'content'}"
        place = f"{FILES}.{printable(suffix)}" if suffix else FILES
        yield Note(place, f"{count_of(count, 'file', 'files')} skipped: no image {by}")
