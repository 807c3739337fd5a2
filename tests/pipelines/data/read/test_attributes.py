"""Attributes from file names, tables, classes and JSON, as the data sets of the papers have them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from pipelines.config.sections.attributes import AttributeConfig
from pipelines.config.sections.data import DataConfig
from pipelines.data.draw.draw import draw
from pipelines.data.read.attributes import Attributes, own_caption, read_table
from pipelines.data.read.samples import Sample
from pipelines.data.scan.scan import scan
from pipelines.errors import UserError
from pipelines.files import storage
from tests.pipelines.tars import image_bytes, tar_bytes
from tests.raising import refused

UTKFACE = {
    "gender": {"from": "key", "pattern": "^[0-9]+_([01])_", "values": ["0", "1"]},
    "race": {"from": "key", "pattern": "^[0-9]+_[01]_([0-4])_", "values": {"a": [0], "b": [1], "other": [2, 3, 4]}},
    "age": {"from": "key", "pattern": "^([0-9]+)_", "bounds": [18, 60]},
}


def config_of(path: Path, attributes: dict[str, Any], *, kind: str = "imagefolder", **settings: Any) -> DataConfig:
    return DataConfig(
        sources={"pool": {"kind": kind, "path": str(path)}},
        image_size=8,
        roles={"candidate": {"from": "pool"}},
        attributes=attributes,
        **settings,
    )


def write(folder: Path, *names: str) -> None:
    for seed, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(image_bytes(seed))


def found(config: DataConfig, attribute: str) -> dict[str, int | None]:
    values = draw(config, scan(config), 0).attribute(attribute)
    return {name.partition("/")[2]: value for name, value in values.items()}


def test_utkface_names(tmp_path: Path) -> None:
    """age_gender_race_date.jpg; a few files lack the race."""
    write(tmp_path, "25_0_2_20170116174525125.jpg", "60_1_0_201.jpg", "17_1_1_201.jpg", "61_1_20170109142408075.jpg")
    config = config_of(tmp_path, UTKFACE, max_rejected=0.25, label="gender")
    names = ["17_1_1_201.jpg", "25_0_2_20170116174525125.jpg", "60_1_0_201.jpg"]
    assert found(config, "race") == dict(zip(names, (1, 2, 0), strict=True))
    assert found(config, "age") == dict(zip(names, (0, 1, 2), strict=True))
    assert list(draw(config, scan(config), 0).labels().values()) == [1, 0, 1]
    rejected = scan(config).rejected
    assert [(bad.key, bad.reason.partition(" does")[0]) for bad in rejected] == [
        ("61_1_20170109142408075.jpg", "attribute race: '61_1_20170109142408075.jpg'")
    ]
    refused(UserError, "1 of 4 samples are unusable", scan, config_of(tmp_path, UTKFACE))
    assert config.attributes["age"].names == ("below 18", "18 to 60", "60 and more")
    assert config.attributes["race"].names == ("a", "b", "other")


def test_json_and_classes_of_shards(tmp_path: Path) -> None:
    members = []
    for seed, (smile, city) in enumerate([(True, "Bonn"), (False, "Ulm")]):
        fields = {"face": {"smile": smile}, "city": city}
        members += [(f"s{seed}.png", image_bytes(seed)), (f"s{seed}.json", json.dumps(fields).encode())]
        members.append((f"s{seed}.cls", b"%d" % (7 + seed)))
    (tmp_path / "0.tar").write_bytes(tar_bytes(members))
    attributes = {
        "smile": {"from": "json:face.smile", "values": ["false", "true"]},
        "city": {"from": "json:city", "values": ["Ulm", "Bonn"]},
        "kind": {"from": "class", "values": {"animal": [7], "vehicle": [8, 9]}},
    }
    config = config_of(tmp_path, attributes, kind="shards")
    assert [list(found(config, name).values()) for name in attributes] == [[1, 0], [1, 0], [0, 1]]


def test_a_source_without_the_attribute_keeps_its_samples(tmp_path: Path) -> None:
    write(tmp_path / "faces", "25_0_2_1.jpg")
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "x.png").write_bytes(image_bytes(9))
    config = DataConfig(
        sources={name: {"kind": "imagefolder", "path": str(tmp_path / name)} for name in ("faces", "plain")},
        image_size=8,
        roles={"candidate": {"from": "faces"}, "control": {"from": "plain"}},
        attributes={"gender": UTKFACE["gender"] | {"sources": ["faces"]}},
    )
    splits = draw(config, scan(config), 0)
    assert splits.attribute("gender") == {"faces/25_0_2_1.jpg": 0, "plain/x.png": None}
    refused(UserError, "have no attribute race; redo with --force data", splits.attribute, "race")


@pytest.mark.parametrize(
    ("sample", "reason"),
    [
        (Sample("x", b"", None), "attribute kind: it has no class"),
        (Sample("x", b"", 3), "attribute kind: '3' is not among 7, 8"),
    ],
)
def test_what_a_sample_lacks_is_said(sample: Sample, reason: str) -> None:
    kind = AttributeConfig(**{"from": "class", "values": ["7", "8"]})
    refused(ValueError, reason, Attributes({"kind": kind}).values_of, sample)


@pytest.mark.parametrize(
    ("attribute", "message"),
    [
        ({"from": "name", "values": ["a", "b"]}, "from = 'name', allowed: class, key, json:<field>"),
        ({"from": "key"}, "give values, or bounds"),
        ({"from": "key", "values": ["a", "b"], "bounds": [1]}, "give values, or bounds"),
        ({"from": "key", "values": ["a"]}, "at least two, each text once"),
        ({"from": "key", "values": {"a": ["x"], "b": ["x"]}}, "at least two, each text once"),
        ({"from": "key", "bounds": [3, 1]}, "allowed: ascending numbers"),
        ({"from": "key", "pattern": "a", "values": ["a", "b"]}, "has 0 groups, expected one"),
        ({"from": "key", "pattern": "(", "values": ["a", "b"]}, r"pattern = '\('"),
        ({"from": "key", "values": ["a", "b"], "sources": ["pol"]}, "sources = 'pol', allowed: pool"),
    ],
)
def test_mistakes_in_the_config(tmp_path: Path, attribute: dict[str, Any], message: str) -> None:
    refused(ValidationError, message, config_of, tmp_path, {"one": attribute})


def test_mistakes_in_a_table(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("a 1\nb\n")
    refused(UserError, r"row 2 \('b'\) has no column 1", read_table, str(tmp_path / "t.txt"), 1)
    refused(UserError, "has no column 'Male'", read_table, str(tmp_path / "t.txt"), "Male")
    refused(UserError, "cannot be read as a table", read_table, str(tmp_path / "none.txt"), 1)
    refused(ValidationError, "label = 'age', allowed: none without attributes", config_of, tmp_path, {}, label="age")


def test_a_fault_of_a_table_is_none_of_the_samples(tmp_path: Path) -> None:
    """It is told before any sample is decoded, and no receipt keeps it."""
    write(tmp_path / "faces", "a.jpg", "b.jpg")
    (tmp_path / "faces" / "broken.jpg").write_bytes(b"")
    table = {"from": "key", "table": str(tmp_path / "t.txt"), "values": ["0", "1"]}
    config = config_of(tmp_path / "faces", {"one": table}, max_rejected=1)
    refused(UserError, r"t\.txt cannot be read as a table", scan, config, str(tmp_path / "scan"))
    (tmp_path / "t.txt").write_text("a.jpg 0\nb.jpg\n")
    refused(UserError, r"row 2 \('b.jpg'\) has no column 1", scan, config, str(tmp_path / "scan"))
    (tmp_path / "t.txt").write_text("a.jpg 0\nb.jpg 1\n")
    assert scan(config, str(tmp_path / "scan")).tally.used == 2


def test_a_source_is_read_anew_when_the_table_of_its_attribute_changes(tmp_path: Path) -> None:
    """What was drawn from it before stands; a source without the attribute is not read again."""
    for name in ("faces", "plain"):
        write(tmp_path / name, "a.jpg", "b.jpg")
    (tmp_path / "t.txt").write_text("a.jpg 0\nb.jpg 1\n")
    table = {"from": "key", "table": str(tmp_path / "t.txt"), "values": ["0", "1"], "sources": ["faces"]}
    config = DataConfig(
        sources={name: {"kind": "imagefolder", "path": str(tmp_path / name)} for name in ("faces", "plain")},
        image_size=8,
        roles={"candidate": {"from": "faces"}, "control": {"from": "plain"}},
        attributes={"one": table},
    )
    first = scan(config, str(tmp_path / "scan"))
    (tmp_path / "t.txt").write_text("a.jpg 1\nb.jpg 1 more\n")
    second = scan(config, str(tmp_path / "scan"))
    read = [[storage.read_table(shard.path).to_pylist() for shard in found.shards] for found in (first, second)]
    assert [[row.get("attribute.one") for row in rows] for rows in read[0]] == [[0, 1], [None, None]]
    assert [[row.get("attribute.one") for row in rows] for rows in read[1]] == [[1, 1], [None, None]]
    assert first.shards[0].path != second.shards[0].path
    assert first.shards[1] == second.shards[1]


def test_json_that_is_nested_too_deeply_is_listed_as_other_broken_json_is(tmp_path: Path) -> None:
    beside = {"a": b'{"smiling": true}', "b": b"[" * 100_000, "c": b'{"smiling"', "d": b'{"smiling": false}'}
    members = [
        member
        for seed, (key, text) in enumerate(beside.items())
        for member in ((f"{key}.png", image_bytes(seed)), (f"{key}.json", text))
    ]
    (tmp_path / "one.tar").write_bytes(tar_bytes(members))
    smiling = {"smiling": {"from": "json:smiling", "values": ["false", "true"]}}
    config = config_of(tmp_path / "one.tar", smiling, kind="shards", max_rejected=0.5)
    scanned = scan(config)
    assert found(config, "smiling") == {"a": 1, "d": 0}
    assert [(bad.key, bad.shard) for bad in scanned.rejected] == [("b", "one"), ("c", "one")]
    assert "attribute smiling: its JSON is nested too deeply" in scanned.rejected[0].reason
    assert own_caption({"json": b"[" * 100_000}) == own_caption({"json": b"{"}) == own_caption({}) == ""
    assert own_caption({"json": b'{"caption": "a cat "}'}) == "a cat"
