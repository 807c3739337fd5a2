"""Attributes: properties of samples with a few values each, which classifiers learn or attackers infer.

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

import re
from functools import cached_property
from itertools import pairwise
from typing import Any

from pydantic import ConfigDict, Field, field_validator, model_validator

from pipelines.config.paths import shortened
from pipelines.config.sections.section import Section

_Text = str | int | float
CLASS, KEY, JSON = "class", "key", "json:"


class AttributeConfig(Section):
    """The origin of one attribute, and its values."""

    model_config = ConfigDict(ignored_types=(cached_property,))

    origin: str = Field(alias="from", description="class, key (the file name), or json:<field>; dots go deeper")
    pattern: str | None = Field(default=None, description="regular expression whose one group is the text")
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

    @field_validator(
        "values", mode="before", json_schema_input_type=tuple[_Text, ...] | dict[str, tuple[_Text, ...]] | None
    )
    @classmethod
    def _as_text(cls, value: Any) -> Any:
        if isinstance(value, dict):
            return {str(name): cls._as_text(texts) for name, texts in value.items()}
        plain = isinstance(value, list | tuple) and all(isinstance(one, str | int | float) for one in value)
        return [str(one) for one in value] if plain else value

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
        """Names of the values 0, 1, ..."""
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


class GroupConfig(Section):
    """Groups of samples (one person, album or burst) that are drawn, judged and resampled as one.

    group_by: json:person                                   # .json in the shards
    group_by: {from: key, pattern: '^([^/]+)/'}             # the folder
    """

    origin: str = Field(alias="from", description="key (the file name), or json:<field>; dots go deeper")
    pattern: str | None = Field(default=None, description="regular expression whose one group names the group")

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
