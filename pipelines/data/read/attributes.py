"""Read the attributes and the group of a sample from its key, class, JSON or a table."""

from __future__ import annotations

import bisect
import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from mi_core.captions import ClassWords, templated_caption
from pipelines.config.sections.attributes import CLASS, JSON, KEY, AttributeConfig, GroupConfig
from pipelines.config.sections.data import DataConfig
from pipelines.data.read.samples import Sample
from pipelines.errors import UserError
from pipelines.files import storage


def value_of(attribute: AttributeConfig, rows: Mapping[str, str] | None, sample: Sample) -> int:
    """The number of a sample's value. ``rows``: of the attribute's table; None: it has no table.

    Raises:
        ValueError: it has none; the message says why.
    """
    text = text_of(sample, attribute.origin, attribute.pattern)
    if rows is not None:
        if text not in rows:
            raise ValueError(f"{text!r} is not in {attribute.table}")
        text = rows[text]
    if attribute.bounds is not None:
        try:
            return bisect.bisect_right(attribute.bounds, float(text))
        except ValueError as error:
            raise ValueError(f"{text!r} is no number") from error
    if text not in attribute.numbers:
        raise ValueError(f"{text!r} is not among {', '.join(attribute.numbers)}")
    return attribute.numbers[text]


def group_of(group: GroupConfig, sample: Sample) -> str:
    """The name of a sample's group.

    Raises:
        ValueError: it has none; the message says why.
    """
    try:
        return text_of(sample, group.origin, group.pattern)
    except ValueError as error:
        raise ValueError(f"group_by: {error}") from error


def text_of(sample: Sample, origin: str, pattern: str | None) -> str:
    """The text of a sample's key, class or JSON, or the part of it that matches a pattern.

    Raises:
        ValueError: it says nothing; the message tells why.
    """
    text = _whole_text(sample, origin)
    if pattern is None:
        return text
    match = re.search(pattern, text)
    if match is None:
        raise ValueError(f"{text!r} does not match {pattern!r}")
    return str(match.group(1))


def _whole_text(sample: Sample, origin: str) -> str:
    if origin == KEY:
        return sample.key
    if origin == CLASS:
        if sample.label is None:
            raise ValueError("it has no class")
        return str(sample.label)
    value = json_beside(sample.others)
    for name in origin.removeprefix(JSON).split("."):
        if not isinstance(value, dict) or name not in value:
            raise ValueError(f"its JSON has no field {origin.removeprefix(JSON)}")
        value = value[name]
    return value if isinstance(value, str) else json.dumps(value)


def json_beside(others: Mapping[str, bytes]) -> Any:
    """The JSON that a shard holds beside an image, parsed; None if there is none.

    Raises:
        ValueError: it is no JSON, or nested too deeply to be read.
    """
    try:
        return json.loads(others.get("json", b"null"))
    except RecursionError as error:
        raise ValueError("its JSON is nested too deeply") from error


class Attributes:
    """Attributes of samples; their tables are read at once, so that a fault of a table is none of a sample.

    Raises:
        UserError: a table cannot be read.
    """

    def __init__(self, attributes: Mapping[str, AttributeConfig]) -> None:
        self._known = {
            name: (one, None if one.table is None else read_table(one.table, one.column))
            for name, one in attributes.items()
        }

    def values_of(self, sample: Sample) -> dict[str, int]:
        """The number of each attribute's value of a sample.

        Raises:
            ValueError: it lacks one; the message names it.
        """
        values = {}
        for name, (attribute, rows) in self._known.items():
            try:
                values[name] = value_of(attribute, rows, sample)
            except ValueError as error:
                raise ValueError(f"attribute {name}: {error}") from error
        return values


def read_table(path: str, column: str | int) -> dict[str, str]:
    """Read a text table into a mapping from the first column to another, once per process and state of the file.

    A header is a line that holds the column's name, with or without a name for the texts; lines before it are skipped.

    Raises:
        UserError: no such file or column, or a line that is too short.
    """
    try:
        return _rows(path, column, storage.stamp(path))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read as a table: {error}") from error


@lru_cache(maxsize=8)
def _rows(path: str, column: str | int, _written: str) -> dict[str, str]:
    lines = storage.read_bytes(path).decode("utf-8").splitlines()
    rows = [re.split(r"\s*,\s*|\s+", line.strip()) for line in lines if line.strip()]
    start, place = 0, column
    if isinstance(column, str):
        headers = [number for number, row in enumerate(rows) if column in row]
        if not headers:
            raise UserError(f"{path} has no column {column!r}")
        start = headers[0] + 1
        after = rows[start] if start < len(rows) else []
        place = rows[headers[0]].index(column) + (len(after) - len(rows[headers[0]]))
    texts = {}
    for number, row in enumerate(rows[start:], start=start):
        if int(place) >= len(row):
            raise UserError(f"{path}, row {number + 1} ({row[0]!r}) has no column {column}")
        texts[row[0].strip("/")] = row[int(place)]
    return texts


SUFFIXES = ("txt", "caption")


def caption_of(
    config: DataConfig, source: str, key: str, others: Mapping[str, bytes], label: int | None
) -> tuple[str, bool]:
    """The caption of a sample, and whether it was made from the class."""
    own = own_caption(others)
    made = "" if own else made_caption(config, source, key, label)
    return own or made, bool(made)


def made_caption(config: DataConfig, source: str, key: str, label: int | None) -> str:
    """A caption made from the class of a sample; empty if ``data.captions`` has no entry for the class."""
    if label not in config.captions:
        return ""
    words = config.captions[label]
    return templated_caption(ClassWords(words.name, words.attributes), source, key)


def own_caption(others: Mapping[str, bytes]) -> str:
    """The caption that a shard holds beside an image; empty if there is none."""
    for suffix in SUFFIXES:
        if suffix in others:
            return others[suffix].decode(errors="replace").strip()
    try:
        content = json_beside(others)
    except ValueError:
        return ""
    caption = content.get("caption", "") if isinstance(content, dict) else ""
    return caption.strip() if isinstance(caption, str) else ""
