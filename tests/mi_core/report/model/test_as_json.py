"""report.json and its typed parts: the same bytes after reading and writing, and the fields of the schema."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

import pytest

from mi_core.records import Estimate
from mi_core.report.contents import schema, to_json
from mi_core.report.model.as_json import part_as_json, part_from_json
from mi_core.report.model.judgement import Detectable, Evidence
from mi_core.report.model.report import Report, report_from_json
from tests.mi_core.report.conftest import BARE, make_asked, make_full, make_report
from tests.raising import refused


def in_order(entry: Any, written: Any) -> Any:
    """An entry with its keys in the order in which they are written."""
    if isinstance(entry, dict):
        known = {name: in_order(entry[name], part) for name, part in written.items()}
        return known | {name: part for name, part in entry.items() if name not in written}
    if isinstance(entry, list):
        return [in_order(one, part) for one, part in zip(entry, written, strict=True)]
    return entry


@pytest.mark.parametrize("made", [make_report, make_asked, make_full])
def test_what_is_read_is_written_again(made: Any) -> None:
    entry = json.loads(json.dumps(made()))
    written = part_as_json(report_from_json(entry))
    assert to_json(written) == to_json(in_order(entry, written))
    again = json.loads(to_json(written))
    assert to_json(report_from_json(again)) == to_json(again)


def kinds(kind: Any, node: Mapping[str, Any], path: str) -> Iterator[tuple[Any, Mapping[str, Any], str]]:
    """Every dataclass below a type, with the schema of its entry."""
    defs = schema()["$defs"]
    node = node | defs[node["$ref"].removeprefix("#/$defs/")] if "$ref" in node else node
    inner = [one for one in get_args(kind) if one not in (NoneType, ...)]
    if get_origin(kind) is tuple:
        yield from kinds(inner[0], node["items"], f"{path}[]")
    elif get_origin(kind) is not None and len(inner) == 1:
        yield from kinds(inner[0], node, path)
    elif len(inner) == 2 and isinstance(node.get("additionalProperties"), dict):
        yield from kinds(inner[1], node["additionalProperties"], f"{path}.*")
    elif is_dataclass(kind) and not hasattr(kind, "from_json"):
        yield kind, node, path
        hints = get_type_hints(kind)
        for field in fields(kind):
            name = field.metadata.get("key", field.name)
            if "flat" not in field.metadata and name in node["properties"]:
                yield from kinds(hints[field.name], node["properties"][name], f"{path}.{name}")


PARTS = list(kinds(Report, schema(), "report"))


@pytest.mark.parametrize(("kind", "node", "path"), PARTS, ids=[path for *_, path in PARTS])
def test_a_class_has_the_fields_of_the_schema(kind: Any, node: Mapping[str, Any], path: str) -> None:
    own = {field.metadata.get("key", field.name) for field in fields(kind) if "flat" not in field.metadata}
    flat = {"value", "ci95", "n", "supported"} if any("flat" in field.metadata for field in fields(kind)) else set()
    assert own <= set(node["properties"])
    assert set(node["properties"]) <= own | flat
    hints = get_type_hints(kind)
    given = {
        field.metadata.get("key", field.name)
        for field in fields(kind)
        if "flat" not in field.metadata
        and field.default is MISSING
        and field.default_factory is MISSING
        and NoneType not in get_args(hints[field.name])
    }
    assert given == set(node.get("required", ())) - flat


def test_every_part_is_compared_with_the_schema() -> None:
    assert len(PARTS) > 50


def test_absent_parts_stay_absent() -> None:
    assert part_as_json(report_from_json(BARE)) == BARE
    assert part_as_json(Detectable(used=0.1)) == {"used": 0.1}
    pooled = {"value": 0.5, "ci95": [0.4, 0.6], "n": 9, "sd": 0.1}
    assert part_as_json((Estimate(0.5, 0.4, 0.6, 9, sd=0.1),)) == [pooled]


@pytest.mark.parametrize(
    ("place", "value", "fault"),
    [
        ("name", 3, "name is 3, expected str"),
        ("schema_version", True, "schema_version is True, expected int"),
        ("schema_version", 1.0, "schema_version is 1.0, expected int"),
        ("attacks", {}, "attacks is {}, expected list"),
        ("attacks.0.n_member", None, "attacks.0.n_member is None, expected int"),
        ("data", [], r"data is \[\], expected dict"),
        ("data.roles.target-member", {"n": 3}, "data.roles.target-member.sha256 is missing"),
        ("timings.report", "1", "timings.report is '1', expected float"),
        ("evidence.samples.0.top", [3], r"evidence.samples.0.top.0 is 3, expected dict"),
    ],
)
def test_a_wrong_type_is_named(place: str, value: Any, fault: str) -> None:
    entry: Any = copy.deepcopy(make_report((0,), (400,)))
    inner, (*above, last) = entry, place.split(".")
    for name in above:
        inner = inner[int(name) if name.isdigit() else name]
    inner[last] = value
    refused(TypeError, fault, report_from_json, entry)


def test_a_pair_has_two_entries() -> None:
    assert part_from_json(tuple[float, float], [1, 2.5]) == (1, 2.5)
    refused(TypeError, "ci95 has 3 entries, expected 2", part_from_json, tuple[float, float], [1, 2, 3], "ci95")
    refused(TypeError, "the whole is 'x', expected dict", part_from_json, Evidence, "x")
