"""Columns of Parquet files: which holds the image, the class, the caption and the key of a row.

Parquet files that hold the bytes of images, such as data sets on the Hub: a row group is an item.

A row group is read in small batches, so that memory depends on its pages and not on its size. Footers are read once per
process and state of a file.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipelines.config.paths import shortened
from pipelines.config.sections.sources import ColumnsConfig
from pipelines.data.read.samples import Damage, Portion, Problem, Sample, misnamed
from pipelines.data.read.shard_paths import PARQUET, expand, names_of
from pipelines.errors import UserError
from pipelines.files import storage

IMAGES = ("image", "img", "jpg", "jpeg", "png", "webp", "image_bytes", "bytes")
LABELS = ("label", "labels", "cls", "class")
CAPTIONS = ("caption", "text", "txt")
KEYS = ("__key__", "key", "uid")
"""Usual names of columns: of data sets on the Hub, of WebDataset and of DataComp."""


@dataclass(frozen=True)
class Columns:
    """The columns of a file that are read.

    Args:
        image: of bytes; a dot leads into a struct.
        label, caption, key: None where the file has none.
        beside: other plain columns, which become the JSON of a sample.
        path: beside the bytes in a struct, which says where an image was; None: there is none.
    """

    image: str
    label: str | None
    caption: str | None
    key: str | None
    beside: tuple[str, ...]
    path: str | None = None

    @classmethod
    def from_schema(cls, schema: pa.Schema, given: ColumnsConfig) -> Columns:
        """Find the columns of a file.

        Args:
            schema: of the file.
            given: names that the user gave; others are found by their usual names and types.

        Raises:
            ValueError: a given column is missing or of another type, or no single column holds images.
        """
        if again := [name for name, count in Counter(schema.names).items() if count > 1]:
            raise ValueError(f"column {shortened(again[0])} stands there twice; rename one of them")
        image = _image(schema, given.image)
        label = _column_named(schema, given.label, LABELS, _is_class, "label", "a whole number")
        caption = _column_named(schema, given.caption, CAPTIONS, _is_text, "caption", "a text")
        key = key_column(schema, given.key)
        used = {image.partition(".")[0], label, caption, key}
        beside = tuple(field.name for field in schema if field.name not in used and _is_plain(field.type))
        return cls(image, label, caption, key, beside, _path_beside(schema, image))

    @property
    def read(self) -> list[str]:
        """Names of all columns that are read."""
        return [self.image, *filter(None, (self.label, self.caption, self.key, self.path)), *self.beside]

    def cells(self, batch: pa.RecordBatch) -> Mapping[str, pa.Array]:
        """The columns of some rows, by name."""
        return {name: _column(batch, name) for name in self.read}

    def sample(self, cells: Mapping[str, pa.Array], row: int, place: str) -> Sample | Problem:
        """One row as a sample, or what is wrong with it.

        Args:
            cells: of some rows.
            row: which of them.
            place: file and row in words; the key where the file has no column for it.
        """
        try:
            values: dict[str, Any] = {name: column[row].as_py() for name, column in cells.items()}
        except UnicodeDecodeError:
            return Problem(place, "a text of it is not UTF-8")
        key = place if self.key is None else "" if values[self.key] is None else str(values[self.key])
        if not key:
            return Problem(place, f"its key (column {self.key}) is null or empty")
        if problem := misnamed(key):
            return Problem(key, problem)
        if values[self.image] is None:
            nulls = f"its image bytes (column {self.image}) are null"
            if self.path is not None and values[self.path] is not None:
                nulls += f", though {self.path} names a file: write the bytes of the files into the column"
            return Problem(key, nulls)
        label = None if self.label is None else values[self.label]
        others = {}
        if self.caption is not None and values[self.caption] is not None:
            others["txt"] = values[self.caption].encode()
        if self.beside:
            others["json"] = json.dumps({name: values[name] for name in self.beside}).encode()
        return Sample(key, values[self.image], label if label is not None and label >= 0 else None, others)


def key_column(schema: pa.Schema, given: str | None, usual: tuple[str, ...] = KEYS) -> str | None:
    """The column of keys that the user gave, or the first usual one; None if there is none.

    Raises:
        ValueError: the given one is missing, of another type, or there twice.
    """
    name = given or next((name for name in usual if name in schema.names), "")
    if schema.names.count(name) > 1:
        raise ValueError(f"column {name} stands there twice; rename one of them")
    return _column_named(schema, given, usual, _is_key, "key", "a text or a whole number")


def _image(schema: pa.Schema, given: str | None) -> str:
    if given is not None:
        leaf = _bytes_in(_type_of(schema, given), given)
        if leaf is None:
            what = shortened(str(_type_of(schema, given)))
            raise ValueError(f"columns.image = {given}: it holds {what}, no bytes; {_IMAGE_IS}")
        return leaf
    found = {field.name: leaf for field in schema if (leaf := _bytes_in(field.type, field.name)) is not None}
    usual = [found[name] for name in IMAGES if name in found]
    if usual or len(found) == 1:
        return [*usual, *found.values()][0]
    if found:
        raise ValueError(f"several columns hold bytes: {', '.join(found)}; set columns.image to one of them")
    likely = sorted(schema.names, key=lambda name: name.removesuffix("s") not in IMAGES)
    told = next(filter(None, (_remedy_for(schema.field(name).type, name) for name in likely)), _IMAGE_IS)
    raise ValueError(f"no column holds images, among {shortened(', '.join(schema.names))}; {told}")


_IMAGE_IS = "an image column is binary, or a struct with a binary field bytes"


def _remedy_for(kind: pa.DataType, name: str) -> str:
    """The content of a column that might hold images, and the remedy; empty: nothing of the kind."""
    kind = _plain(kind)
    inner = _plain(kind.value_type) if _is_list(kind) else kind
    if leaf := _leaf(inner, name):
        if _is_list(kind):
            return f"{name} holds lists of images: write one row for each image"
        return f"{leaf} is binary: set columns.image to it"
    if name.removesuffix("s") not in IMAGES:
        return ""
    if _is_text(inner):
        return f"{name} holds texts, such as addresses or base64: write the bytes of the image files into it"
    if _is_list(kind):
        return f"{name} holds lists, such as pixels: write the bytes of an image file, such as PNG, into each row"
    return ""


def _leaf(kind: pa.DataType, name: str) -> str:
    """The first binary field in a type, by its path; empty: there is none."""
    if _is_binary(kind):
        return name
    fields = list(kind) if pa.types.is_struct(kind) else []
    return next(filter(None, (_leaf(_plain(field.type), f"{name}.{field.name}") for field in fields)), "")


def _path_beside(schema: pa.Schema, image: str) -> str | None:
    """The field ``path`` beside the bytes of an image in a struct."""
    struct, dot, _ = image.rpartition(".")
    kind = _type_of(schema, struct) if dot and image not in schema.names else None
    place = kind.get_field_index("path") if kind is not None else -1
    return f"{struct}.path" if kind is not None and place >= 0 and _is_text(kind.field(place).type) else None


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type of the values: a dictionary, as of a category of pandas, holds each once."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _is_list(kind: pa.DataType) -> bool:
    lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list, pa.types.is_list_view)
    return any(is_one(kind) for is_one in lists)


def _bytes_in(kind: pa.DataType, name: str) -> str | None:
    """Where a column has bytes: itself, or its field ``bytes``."""
    if _is_binary(kind):
        return name
    inner = kind.get_field_index("bytes") if pa.types.is_struct(kind) else -1
    return f"{name}.bytes" if inner >= 0 and _is_binary(kind.field(inner).type) else None


def _column_named(
    schema: pa.Schema,
    given: str | None,
    usual: tuple[str, ...],
    fits: Callable[[pa.DataType], bool],
    field: str,
    wanted: str,
) -> str | None:
    """The column that the user gave, or the first usual one of a fitting type; None if there is none."""
    if given is None:
        return next((name for name in usual if name in schema.names and fits(schema.field(name).type)), None)
    kind = _type_of(schema, given)
    if not fits(kind):
        raise ValueError(f"columns.{field} = {given}: it holds {shortened(str(kind))}, not {wanted}")
    return given


def _type_of(schema: pa.Schema, name: str) -> pa.DataType:
    """The type of a column, or of a field in a struct. Raises ValueError: there is none."""
    if name in schema.names:
        return schema.field(name).type
    kind = pa.struct(list(schema))
    for part in name.split("."):
        place = kind.get_field_index(part) if pa.types.is_struct(kind) else -1
        if place < 0:
            raise ValueError(f"no column {shortened(name)}, allowed: {shortened(', '.join(schema.names))}")
        kind = kind.field(place).type
    return kind


def _column(batch: pa.RecordBatch, name: str) -> pa.Array:
    if name in batch.schema.names:
        return batch.column(name)
    first, *inner = name.split(".")
    return pc.struct_field(batch.column(first), inner)


def _is_binary(kind: pa.DataType) -> bool:
    kind = _plain(kind)
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind))


def _is_text(kind: pa.DataType) -> bool:
    kind = _plain(kind)
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_class(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(_plain(kind)) and _plain(kind) != pa.uint64())  # the classes of a scan are int64


def _is_key(kind: pa.DataType) -> bool:
    return _is_text(kind) or bool(pa.types.is_integer(_plain(kind)))


def _is_plain(kind: pa.DataType) -> bool:
    """Tell whether values become JSON; lists, such as embeddings, are left out."""
    kind = _plain(kind)
    if pa.types.is_struct(kind):
        return all(_is_plain(field.type) for field in kind)
    number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    return bool(number) or _is_text(kind)


BATCH = 16  # rows in memory at once
_BUFFER = 4 * 2**20  # bytes of a column in one request
_FAULTS = (OSError, pa.ArrowException)


def items_of(patterns: Sequence[str], columns: ColumnsConfig) -> list[Portion]:
    """The row groups of the files that some patterns name, in order; ``start`` and ``stop`` are rows of the file.

    A file without a readable footer is an item of unknown size; reading it tells the damage.

    Raises:
        UserError: nothing matches, no file has a row, or the first one lacks a column.
    """
    paths = [path for pattern in patterns for path in expand(pattern, PARQUET)]
    folders = dict.fromkeys(path.rpartition("/")[0] for path in paths)
    written = {path: stamp for folder in folders for path, stamp in storage.stamps(folder).items()}

    def rows_of(path: str) -> tuple[int, ...] | None:
        try:
            return _rows(path, written.get(path, ""))
        except _FAULTS:
            return None

    items: list[Portion] = []
    checked = False
    for path, name, rows in zip(paths, names_of(paths, ".parquet"), storage.at_once(rows_of, paths), strict=True):
        if rows is None:
            items.append(Portion(f"{name}-00000", path=path))
            continue
        if not checked:
            try:
                Columns.from_schema(_footer(path, written.get(path, "")).schema.to_arrow_schema(), columns)
            except ValueError as error:
                raise UserError(f"{path}: {error}") from error
            checked = True
        start = 0
        for group, count in enumerate(rows):
            items += [Portion(f"{name}-{group:05d}", path=path, start=start, stop=start + count)] if count else []
            start += count
    if not items:
        raise UserError(f"{', '.join(patterns)} holds no row")
    return items


def scan_row_group(item: Portion, given: ColumnsConfig) -> Iterator[Sample | Problem]:
    """All rows of a row group in order: usable samples, a problem for each other row, and the damage that ends it."""
    found = 0
    file_name = file_of(item)
    seen: set[str] = set()
    try:
        footer = _footer(item.path, storage.stamp(item.path))
        with storage.open_seekable(item.path) as stream:
            settings = {"pre_buffer": False, "buffer_size": _BUFFER, "page_checksum_verification": True}
            file = pq.ParquetFile(stream, metadata=footer, **settings)
            columns = Columns.from_schema(file.schema_arrow, given)
            group = _number_of(footer, item)
            for batch in file.iter_batches(BATCH, row_groups=[group], columns=columns.read, use_threads=False):
                cells = columns.cells(batch)
                for row in range(len(batch)):
                    sample = columns.sample(cells, row, f"{file_name}/{item.start + found:07d}")
                    found += 1
                    twice = sample.key in seen and not isinstance(sample, Problem)
                    yield Problem(sample.key, "the row group has this key twice") if twice else sample
                    seen.add(sample.key)
    except _FAULTS as error:
        # where rows are not known, the bytes of the file tell about how many are lost
        left = storage.sizes(item.path.rpartition("/")[0]).get(item.path, 0) if item.count is None else 0
        yield Damage("", f"unreadable: {' '.join(str(error).split())}", found, left=left)
    except ValueError as error:  # a column is missing, or the file was written again
        yield Damage("", f"{item.path.rpartition('/')[2]}: {error}", found)


def file_of(item: Portion) -> str:
    """The name of the file that a row group is of, without its ending."""
    return item.name.rpartition("-")[0]


@lru_cache(maxsize=8)
def _footer(path: str, _written: str) -> pq.FileMetaData:
    """The footer of a file in one state. Raises OSError, or ArrowException: it is no Parquet file."""
    with storage.open_seekable(path) as stream:
        return pq.read_metadata(stream)


@lru_cache(maxsize=2**17)
def _rows(path: str, written: str) -> tuple[int, ...]:
    """Rows of the row groups of a file in one state. Raises as `_footer`."""
    footer = _footer(path, written)
    return tuple(footer.row_group(group).num_rows for group in range(footer.num_row_groups))


def _number_of(footer: pq.FileMetaData, item: Portion) -> int:
    """The number of an item's row group. Raises ValueError: the file was written again since it was listed."""
    start = 0
    for group in range(footer.num_row_groups):
        rows = footer.row_group(group).num_rows
        if rows and (start, start + rows) == (item.start, item.stop):
            return group
        start += rows
    raise ValueError("it was written again since its row groups were listed; run the same command again")
