"""Where images come from: each kind of source lists its items (shards, or slices of a folder) and streams them.

A sample is (key, encoded image, label); its identity in a run is (source name, key). Listing is deterministic, and
reading an item twice gives the same samples in the same order.
"""

from __future__ import annotations

import ast
import importlib.util
import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from mi_core.checks import check_choice, check_range
from mi_core.image_files import never_start_ghostscript
from mi_core.images import encode_png
from pipelines import storage
from pipelines.errors import UserError
from pipelines.folders import contents, printable
from pipelines.methods import build
from pipelines.names import shortened
from pipelines.paths import check_braces
from pipelines.samples import Item, Problem, Sample
from pipelines.tarshards import ShardRules, items_of, scan_shard

SLICE = 1024  # samples per item of a source that has no shards
OF_SHARDS = ("key", "image", "end_marker")  # settings of a source of kind shards
TORCHVISION = "torchvision:"
NOISE = "noise"
KINDS = ("digits", NOISE, "imagefolder", "shards")


class SourceConfig(BaseModel):
    """Where images come from."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: str = Field(description="digits, imagefolder, shards, noise, or torchvision:<Name>")
    path: str | tuple[str, ...] | None = Field(
        default=None, description="folder; or tars: paths, {000..009} ranges, globs, URIs"
    )
    options: dict[str, Any] = Field(
        default_factory=dict, description="arguments of a torchvision data set, or of noise: see NoiseOptions"
    )
    key: Literal["first-dot", "last-dot"] = Field(
        default="first-dot", description="where the key ends in a name of a tar; first-dot is WebDataset's rule"
    )
    image: str | None = Field(
        default=None, min_length=1, description="suffix of the image where samples of a tar hold several, such as jpg"
    )
    end_marker: Literal["required", "optional"] = Field(
        default="required", description="optional: tars without end marker are whole (their writer leaves it out)"
    )

    @field_validator("kind")
    @classmethod
    def _known(cls, value: str) -> str:
        if value not in KINDS and not value.startswith(TORCHVISION):
            raise ValueError(f"kind = {value!r}, allowed: {', '.join(KINDS)}, {TORCHVISION}<Name>")
        if value.startswith(TORCHVISION):
            known_dataset(value.removeprefix(TORCHVISION))
        return value

    @model_validator(mode="after")
    def _has_path(self) -> SourceConfig:
        if self.kind in ("imagefolder", "shards") and not self.path:
            raise ValueError(f"path is missing for a source of kind {self.kind}")
        for path in (self.path,) if isinstance(self.path, str) else self.path or ():
            check_braces(path)
        if self.kind == NOISE:
            noise_options(self)
        elif self.options and not self.kind.startswith(TORCHVISION):
            raise ValueError(f"options are for {TORCHVISION}<Name> and {NOISE}, not for {self.kind}")
        strange = [name for name in OF_SHARDS if getattr(self, name) != type(self).model_fields[name].default]
        if strange and self.kind != "shards":
            raise ValueError(f"{strange[0]} is for shards, not for {self.kind}")
        return self

    @model_serializer(mode="wrap")
    def _without_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Settings of shards are left out at their defaults: what hashes a source is the same as before they came."""
        fields = type(self).model_fields
        written: dict[str, Any] = handler(self)
        return {
            name: value for name, value in written.items() if name not in OF_SHARDS or value != fields[name].default
        }

    @property
    def patterns(self) -> list[str]:
        """The paths as given."""
        return [self.path] if isinstance(self.path, str) else list(self.path or ())

    def describe(self) -> str:
        """The source in words, for the report."""
        place = "" if self.path is None else f" {self.path if isinstance(self.path, str) else ', '.join(self.path)}"
        return ("scikit-learn's handwritten digits" if self.kind == "digits" else self.kind) + place


@dataclass(frozen=True)
class _Reader:
    items: Callable[[SourceConfig], list[Item]]
    scan: Callable[[SourceConfig, Item], Iterator[Sample | Problem]]


@dataclass(frozen=True)
class Source:
    """A source of images that can be listed and read."""

    config: SourceConfig

    def items(self) -> list[Item]:
        """The items of the source, in a fixed order.

        Raises:
            UserError: there are none, or the folder or data set cannot be read.
        """
        return self._reader.items(self.config)

    def unread(self) -> tuple[Problem, ...]:
        """What stands in a folder of images beside the images: pictures that are lost, notes on other files."""
        return contents(str(self.config.path)).unread if self.config.kind == "imagefolder" else ()

    def read(self, item: Item, wanted: set[str] | None = None) -> Iterator[Sample]:
        """The usable samples of an item, in order, each key once; with ``wanted``, only those, as long as needed.

        Raises:
            OSError: the item is damaged before all wanted samples were found.
        """
        left = None if wanted is None else set(wanted)
        for sample in self.scan(item):
            if left is not None and not left:
                return
            if isinstance(sample, Problem):
                if not sample.key and left is not None:
                    raise OSError(sample.reason)
            elif left is None or sample.key in left:
                if left is not None:
                    left.discard(sample.key)
                yield sample
                if left is not None and not left:
                    return

    def scan(self, item: Item) -> Iterator[Sample | Problem]:
        """Everything in an item, in order: usable samples, and a problem for what is not. No key is yielded twice."""
        return self._reader.scan(self.config, item)

    @property
    def _reader(self) -> _Reader:
        return READERS.get(self.config.kind, _TORCHVISION_READER)


def _slices(count: int, path: str = "") -> list[Item]:
    return [
        Item(f"part-{index:05d}", path=path, start=start, stop=min(count, start + SLICE))
        for index, start in enumerate(range(0, count, SLICE))
    ]


def _digits_items(_: SourceConfig) -> list[Item]:
    from sklearn.datasets import load_digits

    return _slices(len(load_digits().target))


def _digits_scan(_: SourceConfig, item: Item) -> Iterator[Sample | Problem]:
    from sklearn.datasets import load_digits

    digits = load_digits()
    for row in range(item.start, item.stop):
        pixels = np.round(digits.images[row] * (255 / 16)).astype(np.uint8)
        yield Sample(f"{row:04d}", encode_png(pixels), int(digits.target[row]))


@dataclass(frozen=True)
class NoiseOptions:
    """Images of random pixels (LpLA, AsiaCCS 2025, section 4.2, as non-members that need no data).

    Args:
        count: how many.
        size: side in pixels; give data.image_size, or resizing will smooth them.
        distribution: ``uniform`` over 0 to 255, or ``gaussian`` around the middle with a deviation of 64.
    """

    count: int
    size: int
    distribution: str = "uniform"

    def __post_init__(self) -> None:
        check_range("options.count", self.count, 1)
        check_range("options.size", self.size, 1)
        check_choice("options.distribution", self.distribution, ("uniform", "gaussian"))


def noise_options(source: SourceConfig) -> NoiseOptions:
    """The options of a source of random pixels. Raises ValueError: they are none."""
    try:
        return build(NoiseOptions, source.options)
    except ValueError as error:
        raise ValueError(f"options of noise: {error}") from error


def _noise_items(source: SourceConfig) -> list[Item]:
    return _slices(noise_options(source).count)


def _noise_scan(source: SourceConfig, item: Item) -> Iterator[Sample | Problem]:
    options = noise_options(source)
    shape = (options.size, options.size, 3)
    for row in range(item.start, item.stop):
        generator = np.random.default_rng([row, options.size])
        drawn = generator.integers(0, 256, shape)
        if options.distribution == "gaussian":
            drawn = np.clip(np.round(generator.normal(127.5, 64, shape)), 0, 255).astype(np.int64)
        yield Sample(f"{row:07d}", encode_png(drawn.astype(np.uint8)))


def _folder_items(source: SourceConfig) -> list[Item]:
    folder = contents(str(source.path))
    classes = sorted({name.split("/")[0] for name in folder.images if "/" in name})
    numbers = {name: number for number, name in enumerate(classes)}
    labels = [numbers.get(name.split("/")[0]) if "/" in name else None for name in folder.images]
    return [
        Item(
            f"part-{index:05d}",
            path=folder.root,
            files=folder.images[start : start + SLICE],
            labels=tuple(labels[start : start + SLICE]),
        )
        for index, start in enumerate(range(0, len(folder.images), SLICE))
    ]


def _folder_scan(_: SourceConfig, item: Item) -> Iterator[Sample | Problem]:
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


def _shard_items(source: SourceConfig) -> list[Item]:
    return items_of(source.patterns)


def _shard_scan(source: SourceConfig, item: Item) -> Iterator[Sample | Problem]:
    return scan_shard(item.path, ShardRules(source.key == "last-dot", source.image, source.end_marker == "required"))


def _torchvision_class(name: str) -> Any:
    from torchvision import datasets

    return getattr(datasets, known_dataset(name))


def known_dataset(name: str) -> str:
    """The name of a data set of torchvision. Raises ValueError if there is none."""
    if name not in _dataset_names():
        raise ValueError(f"torchvision has no data set {shortened(name)}, allowed: {', '.join(_dataset_names())}")
    return name


@lru_cache(maxsize=1)
def _dataset_names() -> tuple[str, ...]:
    """What torchvision says it has, read off its source: importing it takes seconds."""
    (folder,) = importlib.util.find_spec("torchvision").submodule_search_locations  # type: ignore[union-attr,misc]
    for statement in ast.parse((Path(folder) / "datasets" / "__init__.py").read_text()).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__all__":
            return tuple(sorted(ast.literal_eval(statement.value)))
    raise RuntimeError("torchvision.datasets lists no __all__")


def _torchvision_dataset(source: SourceConfig, root: str, *, download: bool) -> Any:
    return _opened_dataset(source.kind, root, json.dumps(source.options, sort_keys=True), download)


@lru_cache(maxsize=4)
def _opened_dataset(kind: str, root: str, options: str, download: bool) -> Any:
    """A data set in memory, once per process: several items read the same one."""
    import inspect

    made = _torchvision_class(kind.removeprefix(TORCHVISION))
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


def _torchvision_items(source: SourceConfig) -> list[Item]:
    root = storage.absolute(str(source.path or "data"))
    return _slices(len(_torchvision_dataset(source, root, download=True)), root)


def _torchvision_scan(source: SourceConfig, item: Item) -> Iterator[Sample | Problem]:
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
            yield Problem(key, f"the data set gives a {type(image).__name__}, not an image")
            continue
        buffer = io.BytesIO()
        image.save(buffer, "PNG")
        yield Sample(key, buffer.getvalue(), int(label) if isinstance(label, int) else None)


READERS: dict[str, _Reader] = {
    "digits": _Reader(_digits_items, _digits_scan),
    NOISE: _Reader(_noise_items, _noise_scan),
    "imagefolder": _Reader(_folder_items, _folder_scan),
    "shards": _Reader(_shard_items, _shard_scan),
}
_TORCHVISION_READER = _Reader(_torchvision_items, _torchvision_scan)
