"""Configs with mistakes in them: whatever people, editors and merges do to a file or a command line."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from typing import Any

import yaml

STRANGE: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 5, 2**62, 1.5, -0.5, float("nan"), float("inf"), "", "x", "5",
    "../../x", "..", "/", "a b", "a" * 400, "\u00e9", "[bold]", "{0..99999999}", "target", "shadow", "digits", "known",
    "torchvision:Nope", "timm:nope",
    [], [[]], [None], [1, 2], ["x"], [{}], [{"a": 1}], {}, {"a": 1}, {"x": {"y": [1]}}, {"attack": 5}, {"label": 1},
    [{"attack": ["lpla", "lpla"], "target": {}}], {"from": "digits"}, {"kind": "shards", "path": "{5..1}"},
)  # fmt: skip
KEYS = (
    "1",
    "on",
    "null",
    "path",
    "like",
    "halves",
    "defends",
    "extends",
    "sweep",
    "tune",
    "label",
    "a.b",
    "..",
    "views",
    "x",
)
LINES = (
    "x: [",
    "1: x",
    "on: 5",
    "&a [*a]",
    "? [1]",
    "name: 2024-13-45",
    "\t",
    "- x",
    "attacks:",
    "seeds: [1]",
    "---",
    "%x",
    "!!set {a}",
)


def places(value: Any, trail: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something stands in plain values, the whole first."""
    yield trail
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in parts:
        yield from places(inner, (*trail, key))


def mutated(values: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    """A copy with one value, key or entry replaced, taken away, added, moved or repeated."""
    whole = copy.deepcopy(values)
    *parents, last = chance.choice(list(places(whole))[1:])
    place: Any = whole
    for parent in parents:
        place = place[parent]
    what = chance.choice(("value", "value", "value", "wrapped", "gone", "key", "entry", "moved"))
    if what == "value":
        place[last] = copy.deepcopy(chance.choice(STRANGE))
    elif what == "wrapped":
        place[last] = [place[last]] if chance.random() < 0.5 else {chance.choice(KEYS): place[last]}
    elif what == "gone":
        del place[last]
    elif what == "moved":
        target = chance.choice(list(places(whole))[1:])
        found: Any = whole
        for part in target:
            found = found[part]
        place[last] = copy.deepcopy(found)
    elif isinstance(place, dict):
        place[chance.choice(KEYS)] = copy.deepcopy(place[last] if what == "entry" else chance.choice(STRANGE))
    else:
        place.insert(int(last), copy.deepcopy(place[last] if what == "entry" else chance.choice(STRANGE)))
    return whole


def broken_text(text: str, chance: random.Random) -> str:
    """A text with a line repeated, taken away, strangely indented or added, or a few characters lost or put in."""
    lines = text.splitlines()
    at = chance.randrange(len(lines))
    what = chance.choice(("repeat", "drop", "indent", "line", "lose", "put"))
    if what == "repeat":
        lines.insert(chance.randrange(len(lines)), lines[at])
    elif what == "drop":
        del lines[at]
    elif what == "indent":
        lines[at] = "  " + lines[at] if chance.random() < 0.5 else lines[at].lstrip()
    elif what == "line":
        lines.insert(at, chance.choice(LINES))
    whole = "\n".join(lines)
    if what in ("lose", "put"):
        spot = chance.randrange(len(whole))
        put = (
            ""
            if what == "lose"
            else chance.choice(("#", ":", ": ", "{", "]", "&", "*", "'", '"', "\0", "|", "\n", ", "))
        )
        whole = whole[:spot] + put + whole[spot + chance.randrange(3) :]
    return whole


def override(values: dict[str, Any], chance: random.Random) -> str:
    """A strange ``section.field=value``."""
    trail = [str(part) for part in chance.choice(list(places(values))[1:])]
    if chance.random() < 0.3:
        trail[chance.randrange(len(trail))] = chance.choice(("*", "9", "-1", "", *KEYS))
    value = chance.choice((*STRANGE, "[", "{a", "x: y: z", "#", "3 # three", "&a", "*a", "'"))
    text = value if isinstance(value, str) else yaml.safe_dump(value, default_flow_style=True, width=9999).strip()
    return f"{'.'.join(trail)}={text.removesuffix('...').strip()}"
