"""The rules of a seed give each sample the role that drawing one sample after the other gives it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.config.sections.data import DataConfig
from pipelines.data import database as tasks
from pipelines.data.database import database
from pipelines.data.draw import draw as drawing
from pipelines.data.draw.draw import draw
from pipelines.data.draw.duplicates import check_distinct
from pipelines.data.draw.rules import HIGHEST, Numbered, Rules, Taker
from pipelines.data.draw.splits import SUMMED, Splits
from pipelines.data.scan.scan import ScannedShard
from pipelines.errors import UserError
from tests.pipelines.data.made import Row, SlowDraw, scan_of, slow_draw

ROLE_NAMES = ("target-member", "target-nonmember", "shadow-member", "shadow-nonmember", "candidate", "control")


def made_rows(rng: np.random.Generator, sources: list[str], near: bool) -> list[Row]:
    """Samples of one to four shards a source: some images, groups and near-copies stand twice."""
    rows = []
    images, groups = int(rng.integers(100, 2000)), int(rng.integers(1, 60))
    words = rng.integers(1, 2**63, images, dtype=np.uint64)
    for source in sources:
        for item in range(int(rng.integers(1, 5))):
            for _ in range(int(rng.integers(0, 40))):
                image = int(rng.integers(images))
                flip = np.uint64(1) << np.uint64(rng.integers(64)) if near and rng.random() < 0.5 else np.uint64(0)
                rows.append(
                    Row(
                        source,
                        f"{item:03d}",
                        f"k{len(rows):05d}-{int(rng.integers(99))}",
                        None if rng.random() < 0.1 else int(rng.integers(3)),
                        hashlib.sha256(f"{image} {int(flip)}".encode()).digest(),
                        f"g{int(rng.integers(groups))}",
                        int(words[image] ^ flip),
                        np.random.default_rng(image).bytes(64),
                    )
                )
    return rows


def made_config(rng: np.random.Generator, sources: list[str], near: bool) -> DataConfig:
    """Roles of counts, fractions and classes, whole sources, and parts of roles."""
    roles: dict[str, Any] = {}
    names = list(rng.permutation(ROLE_NAMES))
    for source in sources:
        if rng.random() < 0.3:
            roles[str(names.pop())] = {"from": source}
            continue
        takers = [str(names.pop()) for _ in range(int(rng.integers(1, 3)))]
        for name, size in zip(takers, made_sizes(rng, len(takers), 14), strict=True):
            roles[name] = {"from": source, **size}
    for parent in list(roles):
        if rng.random() < 0.4:
            parts = [f"part-{parent}-{number}" for number in range(int(rng.integers(1, 3)))]
            for name, size in zip(parts, made_sizes(rng, len(parts), 3), strict=True):
                roles[name] = {"from": parent, **size}
    values: dict[str, Any] = {name: {"kind": "shards", "path": "/nowhere"} for name in [*sources, "unused"]}
    more: dict[str, Any] = {"group_by": "json:person"} if rng.random() < 0.5 else {}
    more |= {"near_duplicates": {"distance": 2}} if near else {}
    shuffled = {str(name): roles[name] for name in rng.permutation(list(roles))}
    return DataConfig.model_validate({"sources": values, "image_size": 8, "roles": shuffled, **more})


def made_sizes(rng: np.random.Generator, count: int, most: int) -> list[dict[str, Any]]:
    counted = rng.random() < 0.6
    shares = rng.dirichlet(np.ones(count)) if rng.random() < 0.5 else rng.dirichlet(np.ones(count + 1))[:count]
    sizes: list[dict[str, Any]] = []
    for share in shares.tolist():
        size: dict[str, Any] = {"count": int(rng.integers(1, most))} if counted else {"fraction": max(1e-3, share)}
        if rng.random() < 0.4:
            size["classes"] = sorted({int(rng.integers(3)) for _ in range(2)})
        sizes.append(size)
    return sizes


def outcome(splits: Splits) -> dict[str, tuple[str, str]]:
    names = splits.table.select(["source", "key", "role", "part"]).to_pylist()
    return {f"{one['source']}/{one['key']}": (one["role"], one["part"]) for one in names}


def drawn_as_slowly(config: DataConfig, rows: list[Row], number: int, place: Path) -> tuple[Splits, SlowDraw] | None:
    """A draw that is that of a loop, also when it is read again; None: both end in the same error."""
    scanned = scan_of(rows, str(place / f"scan-{number}"), config)
    try:
        slow = slow_draw(config, rows, number)
    except UserError as error:
        with pytest.raises(UserError, match=str(error).partition(":")[0]):
            draw(config, scanned, number)
        return None
    splits = draw(config, scanned, number, str(place / f"run-{number}"))
    assert outcome(splits) == outcome(Splits.load(str(place / f"run-{number}"))) == slow.roles
    assert splits.duplicates_removed == len(slow.copies)
    assert splits.counts() == {role: sum(role in pair for pair in slow.roles.values()) for role in config.roles}
    return splits, slow


@pytest.mark.parametrize("near", [False, True])
@pytest.mark.parametrize("block", [0, *(pytest.param(block, marks=pytest.mark.slow) for block in (1, 2, 3, 4))])
def test_roles_are_those_of_the_slow_draw(
    block: int, near: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "AT_ONCE", 50)  # several tasks
    monkeypatch.setattr(drawing, "_WRITTEN", 2)  # several rounds
    drawn = told = grouped = dropped = 0
    for number in range(20 if block else 10):
        rng = np.random.default_rng([block, number, near])
        sources = [f"s{one}" for one in range(int(rng.integers(1, 4)))]
        try:
            config = made_config(rng, sources, near)
        except ValueError:  # parts that do not fit their role
            continue
        rows = made_rows(rng, [*sources, "unused"], near)
        found = drawn_as_slowly(config, rows, number, tmp_path)
        if found is None:
            told += 1
            continue
        splits, slow = found
        if near:
            copies = splits.near_copies
            assert dict(zip(copies["id"].to_pylist(), copies["copy_of"].to_pylist(), strict=True)) == slow.near
        drawn, grouped, dropped = drawn + 1, grouped + bool(config.group_by), dropped + len(slow.copies)
    assert min(drawn, told, grouped, dropped) > 0  # every case was met


def rows_of(count: int, group: str = "", shards: int = 3) -> list[Row]:
    """Distinct images of one source, of one group."""
    pixels = [hashlib.sha256(f"{group} {number}".encode()).digest() for number in range(count)]
    return [
        Row("pool", f"{number % shards:03d}", f"{group}{number:04d}", 0, pixels[number], group)
        for number in sorted(range(count), key=lambda one: one % shards)
    ]


def config_of(roles: dict[str, dict[str, Any]], **more: Any) -> DataConfig:
    """Roles of a source ``pool``."""
    taken = {name: {"from": "pool", **size} for name, size in roles.items()}
    sources = {"pool": {"kind": "shards", "path": "/nowhere"}}
    return DataConfig.model_validate({"sources": sources, "image_size": 8, "roles": taken, **more})


def test_the_last_group_of_a_count_is_torn_in_the_order_of_the_scan(tmp_path: Path) -> None:
    """One group of 30 samples in three shards: 12 are taken, 10 of the first shard, and no role gets the others."""
    config = config_of({"target-member": {"count": 12}, "target-nonmember": {"count": 9}}, group_by="json:person")
    seed = 0
    while True:  # until the large group is drawn before the small one
        rows = [*rows_of(30, "large"), *rows_of(9, "small")]
        rows.sort(key=lambda row: row.item)
        splits = draw(config, scan_of(rows, str(tmp_path / f"{seed}"), config), seed)
        if splits.ids(["target-member"])[0].startswith("pool/large"):
            break
        seed += 1
    assert [splits.size("pool", item, ["target-member"]) for item in ("000", "001", "002")] == [10, 2, 0]
    assert splits.rules.takers["pool"][0].quota == {"000": 10, "001": 2}
    assert {name[5:10] for name in splits.ids(["target-nonmember"])} == {"small"}
    assert outcome(splits) == slow_draw(config, rows, seed).roles


def test_fractions_are_exact_at_the_ends() -> None:
    """A range of integers holds the very hashes whose share in float64 lies in the range of shares."""
    hashes = np.random.default_rng(0).integers(0, HIGHEST, 100_000, dtype=np.uint64, endpoint=True)
    for low, high in ((0.0, 0.1), (0.1, 0.1 + 0.2), (0.30000000000000004, 1.0), (0.5, 1.0000000001)):
        taker = Taker.between("role", None, low, high)
        edges = [value for end in (taker.first, taker.last) for value in range(end - 2000, end + 2000)]
        some = np.concatenate([hashes, np.array([one for one in edges if 0 <= one <= HIGHEST], np.uint64)])
        expected = (some / 2.0**64 >= low) & (some / 2.0**64 < high)
        assert (taker.wants(some, np.zeros(len(some), np.int64)) == expected).all()
        rules = Rules(0, grouped=False, takers={"pool": (taker,)})
        assert Rules.read(json.loads(json.dumps(rules.as_json()))) == rules


def test_two_samples_of_one_image_are_never_accepted() -> None:
    with database(4) as connection:
        connection.register("kept", pa.table({"shard": [0, 0, 1], "high": [1, 1, 2], "low": [5, 6, 5]}))
        check_distinct(connection, {})
        scanned = ScannedShard("pool", "001", "", 1)
        connection.register("kept", pa.table({"shard": [1, 1, 1], "high": [1, 1, 2], "low": [5, 5, 5]}))
        with pytest.raises(RuntimeError, match="1 images twice, the first in pool, shard 001"):
            check_distinct(connection, {1: Numbered(1, scanned)})


def test_the_plan_of_a_seed_is_small_and_knows_every_shard(tmp_path: Path) -> None:
    """The rules do not grow with the samples; sizes and digests of any selection are there without a sample."""
    sizes = []
    for count in (200, 2000):
        config = config_of({"a": {"count": count // 4}, "b": {"count": count // 4, "classes": [0]}})
        place = str(tmp_path / str(count))
        splits = draw(config, scan_of(rows_of(count), f"{place}/scan", config), 0, place)
        sizes.append([(tmp_path / str(count) / "splits" / name).stat().st_size for name in ("roles.json", SUMMED)])
        assert not (tmp_path / str(count) / "splits" / "dropped").exists()
        table = splits.table.to_pylist()
        loaded = Splits.load(place)
        for item in ("000", "001", "002"):
            for wanted in (["a"], ["b"], ["a", "b"]):
                here = [row for row in table if row["item"] == item and row["role"] in wanted]
                assert loaded.size("pool", item, wanted) == len(here)
                digests = [hashlib.sha256(row["sha256"] + f"pool/{row['key']}".encode()).digest() for row in here]
                total = sum(int.from_bytes(one, "little") for one in digests) % 2**256
                assert loaded.digest("pool", item, wanted) == total.to_bytes(32, "little").hex()
    assert all(abs(few - many) < 50 for few, many in zip(*sizes, strict=True))
    assert sizes[0][0] < 2000


def test_a_shard_that_changed_under_drawn_roles_is_told(tmp_path: Path) -> None:
    config = config_of({"a": {"count": 20}})
    scanned = scan_of(rows_of(60), str(tmp_path / "scan"), config)
    draw(config, scanned, 0, str(tmp_path))
    pq.write_table(pq.read_table(scanned.shards[0].path).slice(0, 1), scanned.shards[0].path)
    with pytest.raises(UserError, match="shard 000: it was read again and changed since the roles were drawn"):
        Splits.load(str(tmp_path)).shard("pool", "000")
    Path(scanned.shards[1].path).unlink()
    with pytest.raises(UserError, match="001.parquet is gone, which roles are found from"):
        Splits.load(str(tmp_path)).shard("pool", "001")


def test_a_run_folder_moves_and_another_seed_borrows_its_splits(tmp_path: Path) -> None:
    config = config_of({"a": {"count": 20}})
    run = tmp_path / "run"
    splits = draw(config, scan_of(rows_of(60), str(run / "scan"), config), 0, str(run / "seed-0"))
    splits.lend(str(run / "tune" / "trial" / "seed-0"))
    run.rename(tmp_path / "elsewhere")
    for place in ("seed-0", "tune/trial/seed-0"):
        assert Splits.load(str(tmp_path / "elsewhere" / place)).ids(["a"]) == splits_ids(config, 0)


def splits_ids(config: DataConfig, seed: int) -> list[str]:
    return sorted(slow_draw(config, rows_of(60), seed).roles)
