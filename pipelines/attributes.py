"""Properties of samples with a few values each: what a classifier is trained on, or what an attacker wants to know.

    attributes:
      race: {from: key, pattern: '^[0-9]+_[0-9]_([0-4])_', values: ["0", "1", "2", "3", "4"]}    # UTKFace file names
      age: {from: key, pattern: '^([0-9]+)_', bounds: [18, 30, 45, 60]}
      indoor: {from: key, pattern: '^(.+)/', table: IO_places365.txt, values: ["1", "2"]}        # Places365 folders
      male: {from: key, table: list_attr_celeba.txt, column: Male, values: ["-1", "1"]}          # CelebA
      kind: {from: class, values: {animal: [2, 3, 4, 5, 6, 7], vehicle: [0, 1, 8, 9]}}          # CIFAR-10
      smiling: {from: json:face.smiling, values: ["false", "true"]}                              # .json in the shards

A sample that lacks an attribute declared for its source is unusable and listed, like one that cannot be decoded.
"""

from __future__ import annotations

import bisect
import json
import re
from collections.abc import Mapping
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from pipelines import storage
from pipelines.errors import UserError
from pipelines.names import shortened
from pipelines.samples import Sample

CLASS, KEY, JSON = "class", "key", "json:"


def _texts(value: Any) -> Any:
    plain = isinstance(value, list | tuple) and all(isinstance(one, str | int | float) for one in value)
    return [str(one) for one in value] if plain else value


class AttributeConfig(BaseModel):
    """Where the values of one attribute come from, and which there are."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, ignored_types=(cached_property,))

    origin: str = Field(alias="from", description="class, key (the file name), or json:<field>, dots lead into it")
    pattern: str | None = Field(default=None, description="regular expression with one group, which is the text")
    table: str | None = Field(
        default=None, description="file with a line per text: the text, then values; commas or spaces between"
    )
    column: str | int = Field(default=1, description="column of the table: its name in the header, or its number")
    values: tuple[str, ...] | dict[str, tuple[str, ...]] | None = Field(
        default=None, description="texts in the order of their numbers, or several under a name"
    )
    bounds: tuple[float, ...] | None = Field(
        default=None, min_length=1, description="a number's class: how many it reaches"
    )
    sources: tuple[str, ...] | None = Field(default=None, description="sources that have it; default: all")

    @field_validator("values", mode="before")
    @classmethod
    def _as_text(cls, value: Any) -> Any:
        if isinstance(value, dict):
            return {str(name): _texts(texts) for name, texts in value.items()}
        return _texts(value)

    @model_validator(mode="after")
    def _check(self) -> AttributeConfig:
        if self.origin not in (CLASS, KEY) and not self.origin.startswith(JSON):
            raise ValueError(f"from = {self.origin!r}, allowed: {CLASS}, {KEY}, {JSON}<field>")
        if (self.values is None) == (self.bounds is None):
            raise ValueError("give values, or bounds for a number")
        if self.bounds is not None and list(self.bounds) != sorted(set(self.bounds)):
            raise ValueError(f"bounds = {list(self.bounds)}, allowed: ascending numbers")
        if len(self.names) < 2 or len(self.numbers) < sum(map(len, self._groups)):
            raise ValueError(f"values = {shortened(self.values)}, allowed: at least two, each text once")
        check_pattern(self.pattern)
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """What the values 0, 1, ... are called."""
        if self.bounds is not None:
            edges = [f"{bound:g}" for bound in self.bounds]
            middle = [f"{low} to {high}" for low, high in pairwise(edges)]
            return (f"below {edges[0]}", *middle, f"{edges[-1]} and more")
        return tuple(self.values or ())

    @property
    def _groups(self) -> list[tuple[str, ...]]:
        if isinstance(self.values, dict):
            return list(self.values.values())
        return [(text,) for text in self.values or ()]

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The number of every text."""
        return {text: number for number, texts in enumerate(self._groups) for text in texts}


class GroupConfig(BaseModel):
    """Which samples belong together (one person, album or burst) and are drawn, judged and resampled as one.

    group_by: json:person                                   # .json in the shards
    group_by: {from: key, pattern: '^([^/]+)/'}             # the folder
    """

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    origin: str = Field(alias="from", description="key (the file name), or json:<field>, dots lead into it")
    pattern: str | None = Field(default=None, description="regular expression with one group, which names the group")

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        return {"from": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _check(self) -> GroupConfig:
        if self.origin != KEY and not self.origin.startswith(JSON):
            raise ValueError(f"from = {self.origin!r}, allowed: {KEY}, {JSON}<field>")
        check_pattern(self.pattern)
        return self


def check_pattern(pattern: str | None) -> None:
    """Raise ValueError unless a pattern is a regular expression with one group, or there is none."""
    if pattern is None:
        return
    try:
        groups = re.compile(pattern).groups
    except re.error as error:
        raise ValueError(f"pattern = {pattern!r}: {error}") from error
    if groups != 1:
        raise ValueError(f"pattern = {pattern!r} has {groups} groups, expected one, the text")


def value_of(attribute: AttributeConfig, sample: Sample) -> int:
    """The number of a sample's value.

    Raises:
        ValueError: it has none; the message says why.
        UserError: the table cannot be read.
    """
    text = text_of(sample, attribute.origin, attribute.pattern)
    if attribute.table is not None:
        rows = read_table(attribute.table, attribute.column)
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
    """What a sample's name, class or JSON says, or with a pattern its part that matches.

    Raises:
        ValueError: it says nothing; the message tells why.
    """
    text = _whole_text(sample, origin)
    if pattern is None:
        return text
    found = re.search(pattern, text)
    if found is None:
        raise ValueError(f"{text!r} does not match {pattern!r}")
    return str(found.group(1))


def _whole_text(sample: Sample, origin: str) -> str:
    if origin == KEY:
        return sample.key
    if origin == CLASS:
        if sample.label is None:
            raise ValueError("it has no class")
        return str(sample.label)
    found = json_beside(sample.others)
    for name in origin.removeprefix(JSON).split("."):
        if not isinstance(found, dict) or name not in found:
            raise ValueError(f"its JSON has no field {origin.removeprefix(JSON)}")
        found = found[name]
    return found if isinstance(found, str) else json.dumps(found)


def json_beside(others: Mapping[str, bytes]) -> Any:
    """The content of the JSON among what a shard holds of a sample, by suffix; None where there is none.

    Raises:
        ValueError: it is no JSON, or nested too deeply to be read.
    """
    try:
        return json.loads(others.get("json", b"null"))
    except RecursionError as error:
        raise ValueError("its JSON is nested too deeply") from error


def values_of(attributes: Mapping[str, AttributeConfig], sample: Sample) -> dict[str, int]:
    """The attributes of a sample.

    Raises:
        ValueError: it lacks one; the message names it.
    """
    found = {}
    for name, attribute in attributes.items():
        try:
            found[name] = value_of(attribute, sample)
        except ValueError as error:
            raise ValueError(f"attribute {name}: {error}") from error
    return found


@lru_cache(maxsize=8)
def read_table(path: str, column: str | int) -> dict[str, str]:
    """Text to value of a file with a line per text, read once per process.

    A header is a line that holds the column's name, with or without a name for the texts; lines before it are skipped.

    Raises:
        UserError: no such file or column, or a line that is too short.
    """
    try:
        lines = storage.read_bytes(path).decode("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read as a table: {error}") from error
    rows = [re.split(r"\s*,\s*|\s+", line.strip()) for line in lines if line.strip()]
    start, place = 0, column
    if isinstance(column, str):
        headers = [number for number, row in enumerate(rows) if column in row]
        if not headers:
            raise UserError(f"{path} has no column {column!r}")
        start = headers[0] + 1
        after = rows[start] if start < len(rows) else []
        place = rows[headers[0]].index(column) + (len(after) - len(rows[headers[0]]))
    found = {}
    for number, row in enumerate(rows[start:], start=start):
        if int(place) >= len(row):
            raise UserError(f"{path}, row {number + 1} ({row[0]!r}) has no column {column}")
        found[row[0].strip("/")] = row[int(place)]
    return found
