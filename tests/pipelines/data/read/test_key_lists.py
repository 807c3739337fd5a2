"""Roles from lists of keys: the role holds exactly these samples, and a list that does not fit is told."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from pipelines.config.sections.data import DataConfig
from pipelines.data import database
from pipelines.data.draw.draw import draw
from pipelines.data.draw.splits import Splits
from pipelines.data.look import Look
from pipelines.data.read import key_lists
from pipelines.data.read.key_lists import keys_in, size_of, texts_at
from pipelines.data.run import drawing_faults
from pipelines.data.scan.scan import scan
from pipelines.errors import UserError
from tests.pipelines.data.draw.test_draw import drawn_as_slowly, made_config, made_rows
from tests.pipelines.data.made import Row
from tests.pipelines.tars import shard_bytes
from tests.raising import refused

KEYS = [f"k{number:03d}" for number in range(25)]


def with_lists(config: DataConfig, rows: list[Row], rng: np.random.Generator, folder: Path) -> DataConfig:
    """The config with one or two roles of lists on sources that roles are drawn from."""
    folder.mkdir()
    values = config.model_dump(by_alias=True, exclude_unset=True)
    drawn = [role.source_name for role in config.roles.values() if role.is_drawn and role.source_name in config.sources]
    taken: set[str] = set()
    for name in rng.permutation(["known-member", "known-nonmember"])[: int(rng.integers(1, 3))].tolist():
        if not drawn:
            break
        source = drawn[int(rng.integers(len(drawn)))]
        keys = [row.key for row in rows if row.source == source and (row.key not in taken or rng.random() < 0.1)]
        some = [keys[place] for place in rng.permutation(len(keys))[: int(rng.integers(0, 5))]]
        taken.update(some)
        (folder / f"{name}.txt").write_text("\n".join([*some, "nowhere", *some[:1]]))
        values["roles"][name] = {"from": source, "keys": str(folder / f"{name}.txt")}
        if rng.random() < 0.5:
            values["roles"][f"part-{name}"] = {"from": name, "count": 1}
    return DataConfig.model_validate(values)


@pytest.mark.parametrize("near", [False, True])
@pytest.mark.parametrize("block", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_roles_are_those_of_the_slow_draw(
    block: int, near: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With lists among counts, fractions, classes, whole sources, parts, groups, exact and near-copies."""
    monkeypatch.setattr(database, "AT_ONCE", 50)  # several tasks
    monkeypatch.setattr(key_lists, "BATCH", 2)  # several parts
    drawn = told = grouped = parted = 0
    for number in range(10 if near and not block else 20):
        rng = np.random.default_rng([block, number, near, 7])
        sources = [f"s{one}" for one in range(int(rng.integers(1, 3)))]
        rows = made_rows(rng, [*sources, "unused"], near)
        try:
            config = with_lists(made_config(rng, sources, near), rows, rng, tmp_path / f"lists-{number}")
        except ValueError:  # parts that do not fit their role
            continue
        if not {row.source for row in rows} & {role.source_name for role in config.roles.values()}:
            continue
        if drawn_as_slowly(config, rows, number, tmp_path) is None:
            told += 1
            continue
        lists = {name for name, role in config.roles.items() if role.is_listed}
        drawn, grouped = drawn + bool(lists), grouped + bool(lists and config.group_by)
        parted += any(f"part-{name}" in config.roles for name in lists)
    assert min(drawn, told, grouped, parted) > 0  # every case was met


def images(tmp_path: Path) -> Path:
    """Three shards of twenty images, ``s0000`` to ``s0059``; the second holds the image of ``s0003`` again."""
    folder = tmp_path / "shards"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.tar").write_bytes(shard_bytes(range(20 * number, 20 * number + 20)))
    (folder / "3.tar").write_bytes(shard_bytes([3], prefix="again"))
    return folder


def config_of(folder: Path, lists: dict[str, str], **settings: Any) -> DataConfig:
    roles: dict[str, Any] = {name: {"from": "pool", "keys": path} for name, path in lists.items()}
    roles["target-nonmember"] = {"from": "pool", "count": 10}
    sources = {"pool": {"kind": "shards", "path": str(folder)}}
    return DataConfig.model_validate({"sources": sources, "image_size": 8, "roles": roles, **settings})


def test_keys_that_are_not_found_or_stand_twice_are_counted_and_told(tmp_path: Path) -> None:
    keys = ["s0001", "gone-1", "s0002", "s0001", "gone-2", "gone-2", "s0001", "gone-3", "gone-4"]
    (tmp_path / "mine.txt").write_text("\n".join(keys))
    splits = draw(config := config_of(images(tmp_path), {"target-member": str(tmp_path / "mine.txt")}), scan(config), 0)
    assert splits.count(["target-member"]) == 2
    (line,) = drawing_faults(splits)
    assert line == (
        f"the list of target-member, {tmp_path}/mine.txt: 4 of 6 keys belong to no usable sample, such as 'gone-1', "
        "'gone-2', 'gone-3'; 2 keys stand there more than once"
    )
    assert type(splits.rules).read(splits.rules.as_json()) == splits.rules


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    folder = images(tmp_path)
    for name, keys in {"one": ["s0001", "s0002"], "two": ["s0002"], "three": ["again0003"], "four": ["s0003"]}.items():
        (tmp_path / f"{name}.txt").write_text("\n".join(keys))
    (tmp_path / "none.txt").write_text("nowhere")

    def drawn(**names: str) -> Splits:
        lists = {role.replace("_", "-"): str(tmp_path / f"{name}.txt") for role, name in names.items()}
        return draw(config := config_of(folder, lists), scan(config), 0)

    with pytest.raises(UserError, match="lists of target-member and known-member both name pool/s0002"):
        drawn(target_member="one", known_member="two")
    with pytest.raises(UserError, match=r"roles (target|known)-member and (target|known)-member share an image: pool/"):
        drawn(target_member="three", known_member="four")
    with pytest.raises(UserError, match=r"data.roles.target-member: no usable sample of pool has a key of .*none.txt"):
        drawn(target_member="none")
    refused(UserError, r"absent.txt cannot be read as a list of keys", drawn, target_member="absent")


@pytest.mark.parametrize(
    ("role", "line"),
    [
        ({"keys": "a.txt", "count": 3}, "count and keys are both given; keep one"),
        ({"keys": "a.txt", "classes": [1]}, "classes are chosen for a drawn role"),
        ({"count": 3, "key_column": "uid"}, "key_column is given without keys"),
    ],
)
def test_settings_that_do_not_fit(role: dict[str, Any], line: str, tmp_path: Path) -> None:
    refused(ValidationError, line, config_of, tmp_path, {}, roles={"candidate": {"from": "pool", **role}})


def test_a_list_is_for_a_role_of_a_source_beside_drawn_ones(tmp_path: Path) -> None:
    listed = {"from": "pool", "keys": "a.txt"}
    for roles, line in (
        ({"a": {"from": "pool", "count": 3}, "b": {"from": "a", "keys": "a.txt"}}, "and keys for roles of a source"),
        ({"a": listed, "b": {"from": "pool"}}, "each needs a count or a fraction, or a list of keys"),
    ):
        refused(ValidationError, line, config_of, tmp_path, {}, roles=roles)
    config_of(tmp_path, {}, roles={"a": listed, "b": {"from": "pool", "fraction": 1.0}, "c": {"from": "a", "count": 2}})


def written(tmp_path: Path, kind: str) -> tuple[str, str | None]:
    """`KEYS` as a list of a kind, and the column that holds them."""
    path = tmp_path / kind
    if kind.endswith(("txt", "txt.gz")):
        data = ("\ufeff" + "\r\n".join([*KEYS[:3], "", *KEYS[3:]]) + "\n").encode()
        path.write_bytes(gzip.compress(data) if kind.endswith("gz") else data)
        return str(path), None
    if kind.endswith("csv"):
        with path.open("w", newline="") as handle:
            rows = csv.writer(handle)
            rows.writerow(["caption", "name" if kind == "named.csv" else "key"])
            rows.writerows([f"a, {key}\n", key] for key in KEYS)
        return str(path), "name" if kind == "named.csv" else None
    name = "name" if kind == "named.parquet" else "uid"
    pq.write_table(pa.table({"text": ["x"] * len(KEYS), name: KEYS}), path, row_group_size=4)
    return str(path), "name" if name == "name" else None


@pytest.mark.parametrize("kind", ["a.txt", "a.txt.gz", "a.csv", "named.csv", "a.parquet", "named.parquet"])
def test_lists_of_all_kinds(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_lists, "BATCH", 4)
    path, column = written(tmp_path, kind)
    parts = list(keys_in(path, column))
    assert [key for part in parts for key in part] == KEYS
    assert max(map(len, parts)) == 4
    assert size_of(path, column) == len(KEYS)
    assert texts_at(path, column, [24, 0, 9]) == [KEYS[0], KEYS[9], KEYS[24]]


def test_uids_of_datacomp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_lists, "BATCH", 3)
    uids = [f"{number:032x}" for number in (0, 1, 2**64 - 1, 2**64, 2**127 + 5, 2**128 - 1, 0xABC << 60)]
    pairs = [(int(uid[:16], 16), int(uid[16:], 16)) for uid in uids]  # as DataComp writes its subsets
    np.save(tmp_path / "subset.npy", np.array(pairs, np.dtype("u8,u8")))
    assert [key for part in keys_in(str(tmp_path / "subset.npy")) for key in part] == uids
    (tmp_path / "short.npy").write_bytes((tmp_path / "subset.npy").read_bytes()[:-3])
    np.save(tmp_path / "plain.npy", np.arange(3))
    for name, line in {"short": "it is cut short", "plain": "DataComp's lists are one row of pairs 'u8,u8'"}.items():
        refused(UserError, line, list, keys_in(str(tmp_path / f"{name}.npy")))


def test_lists_that_cannot_be_read_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("[]")
    (tmp_path / "a.csv").write_text("name,size\nx,1\n")
    (tmp_path / "short.csv").write_text("size,key\n1,a\n2\n")
    (tmp_path / "a.txt").write_bytes(b"\xff\xfe\xff")
    (tmp_path / "bad.parquet").write_text("no table")
    pq.write_table(pa.table({"name": ["a"]}), tmp_path / "a.parquet")
    (tmp_path / "twice.csv").write_text("key,size,key\na,1,b\n")
    for name, coding in (("utf16.txt", "utf-16"), ("utf16le.txt", "utf-16-le"), ("utf16be.csv", "utf-16-be")):
        (tmp_path / name).write_text("key\na\nb\n", coding)
    np.save(tmp_path / "whole.npy", np.zeros(3, "u8,u8"))
    (tmp_path / "negative.npy").write_bytes((tmp_path / "whole.npy").read_bytes().replace(b"(3,), ", b"(-3,),"))
    for name, column, line in (
        ("a.json", None, "no list of keys; give one of .txt, .csv, .parquet, .npy"),
        ("a.csv", None, "has no column __key__ or key or uid, but 'name, size': set key_column"),
        ("a.csv", "place", "has no column place"),
        ("short.csv", None, "line 3 has no column key"),
        ("a.txt", None, "cannot be read as a list of keys"),
        ("utf16.txt", None, "it is not UTF-8 (invalid start byte); save it so"),
        ("utf16le.txt", None, "a key has a zero byte: the text is UTF-16 or no text; save it as UTF-8"),
        ("utf16be.csv", "key", "utf16be.csv"),
        ("twice.csv", None, "has the column key twice; rename one of them"),
        ("negative.npy", None, "its shape is (-3,)"),
        ("bad.parquet", None, "cannot be read as a list of keys"),
        ("a.parquet", None, "has no column __key__ or key or uid, but 'name': set key_column"),
        ("a.parquet", "place", "no column 'place', allowed: 'name'"),
    ):
        with pytest.raises(UserError) as told:
            list(keys_in(str(tmp_path / name), column))
        assert line in str(told.value)
        assert "\n" not in str(told.value)


def test_a_look_at_some_shards_draws_as_many_as_the_list_has(tmp_path: Path) -> None:
    folder = tmp_path / "shards"
    folder.mkdir()
    for number in range(12):
        (folder / f"{number:02d}.tar").write_bytes(shard_bytes(range(10 * number, 10 * number + 10)))
    (tmp_path / "mine.txt").write_text("\n".join(f"s{number:04d}" for number in range(30)))  # of three shards
    look = Look.at(config_of(folder, {"target-member": str(tmp_path / "mine.txt")}))
    assert not look.whole
    drawn = look.draw_roles(0)
    assert look.counts(drawn) == {"target-member": 30, "target-nonmember": 10}
