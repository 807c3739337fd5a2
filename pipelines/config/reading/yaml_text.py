"""YAML as text to plain values: mappings with text for keys, lists, text, numbers, true, false and null.

Ambiguous text is refused with its line: a key that stands twice, a number beyond 64 bits. Too many levels or aliases of
aliases are refused before they are built.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Any

import yaml
from yaml.composer import Composer

from pipelines.config.paths import shortened
from pipelines.errors import UserError
from pipelines.files import storage

MOST_VALUES = 100_000  # in one text, aliases counted as often as they stand there
MOST_LEVELS = 32
_NO_TEXT = re.compile("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")
_YAML = "tag:yaml.org,2002:"
_KINDS = {"int": "whole number", "float": "number", "bool": "true or false", "null": "null"}
_TAGS = {yaml.MappingNode: ("map",), yaml.SequenceNode: ("seq",), yaml.ScalarNode: ("str", "merge", *_KINDS)}


class _Loader(Composer, yaml.CSafeLoader):
    """Values of JSON only; keys are text as written, dates too. The parser is libyaml's: four times as fast."""

    def __init__(self, text: str) -> None:
        yaml.CSafeLoader.__init__(self, text)
        Composer.__init__(self)
        self._extents: dict[int, tuple[int, int]] = {}
        self._level = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        self._level += 1
        event: Any = self.peek_event()
        line = event.start_mark.line + 1
        if self._level > MOST_LEVELS:
            raise _Refused(line, f"more than {MOST_LEVELS} levels in each other")
        node = super().compose_node(parent, index)
        self._level -= 1
        if isinstance(event, yaml.AliasEvent) and id(node) not in self._extents:
            raise _Refused(line, "an alias stands inside of what it stands for")
        if id(node) not in self._extents:
            self._extents[id(node)] = self._extent(node, line)
        return node

    def _extent(self, node: Any, line: int) -> tuple[int, int]:
        """Number of values in a node, itself and repeated aliases included, and of levels."""
        if node.tag.removeprefix(_YAML) not in _TAGS[type(node)]:
            raise _Refused(line, f"the tag {node.tag} is not for configs; write the value without it")
        inner = []
        if isinstance(node, yaml.MappingNode):
            inner = [part for pair in node.value for part in pair]
        elif isinstance(node, yaml.SequenceNode):
            inner = node.value
        known = [self._extents[id(part)] for part in inner]
        values, levels = 1 + sum(size for size, _ in known), 1 + max((depth for _, depth in known), default=0)
        if values > MOST_VALUES:
            raise _Refused(line, f"more than {MOST_VALUES:,} values, with aliases spelled out")
        if levels > MOST_LEVELS:
            raise _Refused(line, f"more than {MOST_LEVELS} levels in each other")
        return values, levels

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        lines: dict[str, int] = {}
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                raise _Refused(line, "a key is a list or a mapping; a key has to be text")
            if key.value in lines and key.tag != f"{_YAML}merge":
                raise _Refused(line, f"the key {key.value} stands here and in line {lines[key.value]}; keep one")
            lines[key.value] = line
        self.flatten_mapping(node)
        return {self.construct_text(key): self.construct_object(value, deep=deep) for key, value in node.value}

    def construct_text(self, node: yaml.ScalarNode) -> str:
        if _NO_TEXT.search(node.value):
            raise _Refused(node.start_mark.line + 1, "a control character; write text without it")
        return str(node.value)

    def construct_known(self, node: yaml.ScalarNode) -> Any:
        kind = node.tag.removeprefix(_YAML)
        try:
            value = getattr(super(), f"construct_yaml_{kind}")(node)
        except (ValueError, LookupError) as error:
            raise _Refused(
                node.start_mark.line + 1, f"{shortened(node.value)} is no {_KINDS[kind]}; quote text"
            ) from error
        if kind == "int" and abs(value) >= 2**63:
            raise _Refused(node.start_mark.line + 1, "a whole number beyond 64 bits; quote it if it is text")
        return value


class _Refused(Exception):
    """A refusal: the reason and the line."""

    def __init__(self, line: int, what: str) -> None:
        super().__init__(what)
        self.line, self.what = line, what


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag.removeprefix(_YAML) not in ("timestamp", "value")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_constructor(f"{_YAML}str", _Loader.construct_text)
for _kind in _KINDS:
    _Loader.add_constructor(f"{_YAML}{_kind}", _Loader.construct_known)


def read_text(text: str, origin: str) -> Any:
    """The plain values that a text in YAML holds.

    Args:
        text: one document.
        origin: names the text in errors.

    Raises:
        UserError: it is no YAML, or holds something that no config can; with the line.
    """
    try:
        if (at := text.find("\ufeff", 1)) > 0:  # columns behind it would be counted wrongly
            raise _Refused(text.count("\n", 0, at) + 1, "a byte-order mark; remove it")
        loader = _Loader(text)
        try:
            return loader.get_single_data()
        finally:
            loader.dispose()
    except _Refused as error:
        raise UserError(f"{_in_line(origin, text, error.line)}: {error.what}") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = " ".join(str(error.problem or error.context).split())
        raise UserError(f"{_in_line(origin, text, mark.line + 1 if mark else 1)}: not valid YAML: {what}") from error
    except yaml.YAMLError as error:
        raise UserError(f"{origin}: not valid YAML: {' '.join(str(error).split())}") from error


def _in_line(origin: str, text: str, line: int) -> str:
    return f"{origin}, line {line}" if "\n" in text.strip() else origin


def read_value(text: str, origin: str) -> Any:
    """The value of an override on the command line, in YAML without comments: ``#`` is an ordinary character.

    Raises:
        UserError: as `read_text`.

    Example:
        >>> read_value("my #1 photos", "x"), read_value("[1, 2]", "x"), read_value("3", "x")
        ('my #1 photos', [1, 2], 3)
    """
    stripped = text.strip()
    if not re.search(r"(^|\s)#", stripped):
        return read_text(text, origin)
    try:
        tokens = list(yaml.scan(stripped, Loader=yaml.SafeLoader))
    except yaml.YAMLError:
        tokens = []
    scalars = [token for token in tokens if isinstance(token, yaml.ScalarToken)]
    if len(tokens) == 2 or (len(tokens) == 3 and scalars and scalars[0].plain):  # nothing, or plain text, to the #
        return stripped
    try:
        value = read_text(text, origin)
    except UserError as error:
        raise UserError(f"{error}; put text with # in quotes") from error
    ends = [token.end_mark.index for token in tokens if token.end_mark.index > token.start_mark.index]
    if ends[-1] == len(stripped):
        return value
    raise UserError(f"{origin}: what follows # would be lost; put text with # in quotes")


FOLDER = str(files("pipelines") / "configs")


@cache
def shipped() -> dict[str, str]:
    """Name to file of every config that comes with the package; those of papers last."""
    paths = [path for folder in (FOLDER, f"{FOLDER}/papers") for path in storage.list_files(folder, recursive=False)]
    return {path.rpartition("/")[2].removesuffix(".yaml"): path for path in paths if path.endswith(".yaml")}


def config_file(name: str, folder: str = "") -> str:
    """The file that a name stands for: one that is there, with or without ``.yaml``, before one of the package.

    Args:
        name: of a config, or the path of a file.
        folder: to which a path is relative; empty: the current one.

    Raises:
        UserError: there is neither; it lists the names.
    """
    place = name if not folder or name.startswith("/") or storage.is_uri(name) else f"{folder}/{name}"
    for path in (place, f"{place}.yaml"):
        if storage.exists(path) and not storage.is_folder(path):
            return path
    bare = name.removesuffix(".yaml").removeprefix("papers/")
    if bare in shipped():
        return shipped()[bare]
    if "=" in name:
        raise UserError(f"{name} changes a field; name the config before it, such as quickstart {name}")
    near = get_close_matches(bare, shipped(), 3) or [one for one, path in shipped().items() if "/papers/" not in path]
    raise UserError(
        f"{place} is no file; give an existing config file, a run folder with its config.yaml, or a shipped one such "
        f"as {', '.join(near)}"
    )
