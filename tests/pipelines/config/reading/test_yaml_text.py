"""YAML as configs have it: text for keys, values of JSON, nothing that means two things or grows without bounds."""

from __future__ import annotations

import time
from typing import Any

import pytest

from pipelines.config.reading.yaml_text import read_text, read_value
from pipelines.errors import UserError

LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]\n" for level in range(1, 12)
)
LADDER = "a0: &a0 [x]\n" + "".join(f"a{level}: &a{level} [*a{level - 1}]\n" for level in range(1, 3000))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: 1\nb: 2\na: 3", "f.yaml, line 3: the key a stands here and in line 1; keep one"),
        ("x:\n  a: 1\n  a: 1", "f.yaml, line 3: the key a stands here and in line 2"),
        ("{a: 1, a: 2}", "f.yaml: the key a stands here and in line 1"),
        ("? [1]\n: 2", "line 1: a key is a list or a mapping; a key has to be text"),
        (f"a: {'9' * 5000}", "is no whole number; quote text"),
        (f"a: {2**63}", "a whole number beyond 64 bits"),
        ("a: !!int x", "'x' is no whole number"),
        ("a: !!bool x", "'x' is no true or false"),
        ("a: !!set {x}", "the tag tag:yaml.org,2002:set is not for configs"),
        ("a: !!str [1]", "the tag tag:yaml.org,2002:str is not for configs"),
        ("a: !!python/name:os.system", "is not for configs"),
        ('a: "\\0"', "a control character"),
        ("a:\n\ufeffb: 1", "f.yaml, line 2: a byte-order mark; remove it"),
        ("a: &a [*a]", "an alias stands inside of what it stands for"),
        (f"a: {'[' * 900}{']' * 900}", "more than 32 levels in each other"),
        ("- " * 3000, "more than 32 levels in each other"),
        (LADDER, "f.yaml, line 32: more than 32 levels in each other"),
        (LAUGHS, "more than 100,000 values, with aliases spelled out"),
        ("a: [1", "not valid YAML: did not find expected ',' or ']'"),
        ("a: 1\n---\nb: 2", "not valid YAML: but found another document"),
    ],
)
def test_what_is_refused(text: str, expected: str) -> None:
    began = time.monotonic()
    with pytest.raises(UserError) as caught:
        read_text(text, "f.yaml")
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)
    assert time.monotonic() - began < 30  # at once, but on a busy machine


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1: x\non: y\nnull: z", {"1": "x", "on": "y", "null": "z"}),
        ("name: 2024-13-45\nday: 2024-01-02", {"name": "2024-13-45", "day": "2024-01-02"}),
        ("a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}", {"a": {"x": 1, "y": 2}, "b": {"x": 1, "y": 3}}),
        ("a: [1, 2.5, true, null, 1_000]", {"a": [1, 2.5, True, None, 1000]}),
        ("\ufeffa: 1", {"a": 1}),
        ("", None),
    ],
)
def test_what_is_read(text: str, value: Any) -> None:
    assert read_text(text, "f.yaml") == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("my #1 photos", "my #1 photos"),
        ("#1", "#1"),
        ("3 # x", "3 # x"),
        ("a#b", "a#b"),
        ("'a #b'", "a #b"),
        ("['a #b', 2]", ["a #b", 2]),
        ("", None),
        ("1e-3", "1e-3"),
    ],
)
def test_values_of_the_command_line(text: str, value: Any) -> None:
    assert read_value(text, "x=...") == value


@pytest.mark.parametrize("text", ["[a #b, c]", "{a: b} # c", "'x' # y", "x: y #z"])
def test_what_a_comment_would_swallow_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="put text with # in quotes"):
        read_value(text, "x=...")
