"""Roles: exact sizes, a pure function of seed and keys, no shared image; and every mistake told."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pydantic import ValidationError

from pipelines.config.sections.data import DataConfig
from pipelines.data.columns import ids_of
from pipelines.data.draw.draw import check_sizes, draw
from pipelines.data.draw.parts import Firsts, number_of
from pipelines.data.draw.splits import Splits, are_drawn
from pipelines.data.scan.scan import scan
from pipelines.errors import UserError
from tests.pipelines.tars import image_bytes, shard_bytes
from tests.raising import refused

COUNTS = {"target-member": 20, "target-nonmember": 20, "downstream-test": 10}


def pool(tmp_path: Path, *shards: bytes, roles: dict[str, Any] | None = None, **settings: Any) -> DataConfig:
    """A source ``pool`` of shards, with the roles of COUNTS."""
    tmp_path.mkdir(exist_ok=True)
    for number, data in enumerate(shards):
        (tmp_path / f"{number:03d}.tar").write_bytes(data)
    roles = roles or {name: {"from": "pool", "count": count} for name, count in COUNTS.items()}
    return DataConfig(
        sources={"pool": {"kind": "shards", "path": str(tmp_path)}}, image_size=8, roles=roles, **settings
    )


def folders(tmp_path: Path, **contents: range) -> dict[str, dict[str, str]]:
    """One image folder per name, holding the images of some seeds."""
    for name, seeds in contents.items():
        (tmp_path / name).mkdir()
        for seed in seeds:
            (tmp_path / name / f"{seed:03d}.png").write_bytes(image_bytes(seed))
    return {name: {"kind": "imagefolder", "path": str(tmp_path / name)} for name in contents}


def drawn(config: DataConfig, seed: int = 0) -> Splits:
    return draw(config, scan(config), seed)


def test_copies_across_roles_are_found_whatever_the_file_format(tmp_path: Path) -> None:
    sources = folders(tmp_path, mine=range(12), rest=range(100, 140))
    for seed in range(3):
        (tmp_path / "rest" / f"same{seed}.webp").write_bytes(_lossless_webp(image_bytes(seed)))
    roles = {"target-member": {"from": "mine"}, "target-nonmember": {"from": "rest", "count": 40}}
    config = DataConfig(sources=sources, image_size=8, roles=roles)
    splits = drawn(config)
    assert splits.counts() == {"target-member": 12, "target-nonmember": 40}  # the given role keeps its images
    assert splits.duplicates_removed == 3


def _lossless_webp(data: bytes) -> bytes:

    buffer = io.BytesIO()
    Image.open(io.BytesIO(data)).save(buffer, "WEBP", lossless=True)
    return buffer.getvalue()


def test_given_roles_that_share_an_image_are_refused(tmp_path: Path) -> None:
    """The remedy that the line names works."""
    sources = folders(tmp_path, mine=range(5), others=range(4, 9), more=range(3, 9))
    roles = {"target-member": {"from": "mine"}, "target-nonmember": {"from": "others"}}
    with pytest.raises(UserError, match=r"share an image: mine/004.png and others/004.png have the same pixels"):
        drawn(DataConfig(sources=sources, image_size=8, roles=roles))
    roles["target-nonmember"] = {"from": "more"}
    with pytest.raises(UserError, match=r"share 2 images: mine/00..png and .*remove them .*fraction: 1.0"):
        drawn(DataConfig(sources=sources, image_size=8, roles=roles))
    roles["target-nonmember"] = {"from": "more", "fraction": 1.0}
    splits = drawn(DataConfig(sources=sources, image_size=8, roles=roles))
    assert splits.counts() == {"target-member": 5, "target-nonmember": 4}


def test_a_source_that_is_too_small(tmp_path: Path) -> None:
    sources = folders(tmp_path, mine=range(10))
    roles = {"target-member": {"from": "mine", "count": 6}, "target-nonmember": {"from": "mine", "count": 5}}
    config = DataConfig(sources=sources, image_size=8, roles=roles)
    with pytest.raises(UserError, match=r"6 \+ target-nonmember 5 = 11 images are wanted from mine, which has 10"):
        check_sizes(config)  # known without reading an image
    digits = {"digits": {"kind": "digits"}}
    too_many = {"target-member": {"from": "digits", "count": 1798}}
    with pytest.raises(UserError, match="which has 1797"):
        check_sizes(DataConfig(sources=digits, image_size=8, channels=1, roles=too_many))


@pytest.mark.parametrize(
    ("roles", "text"),
    [
        ({"a": {"from": "lake", "count": 1}}, "roles.a.from = 'lake', allowed: a, pool"),
        ({"a": {"from": "pool", "count": 1, "fraction": 0.1}}, "count and fraction are both given"),
        ({"a": {"from": "pool"}, "b": {"from": "pool", "count": 1}}, "roles a, b share pool"),
        ({"a": {"from": "pool", "count": 1}, "b": {"from": "pool", "fraction": 0.1}}, "mix count and fraction"),
        ({"a": {"from": "pool", "fraction": 0.7}, "b": {"from": "pool", "fraction": 0.4}}, "ask for 1.1 of pool"),
        ({"a": {"from": "pool", "count": 3}, "b": {"from": "a", "count": 4}}, "ask for 4 of the 3 samples of a"),
        ({"a": {"from": "pool", "count": 3}, "b": {"from": "a"}}, "give its count or fraction"),
        (
            {"a": {"from": "pool", "count": 3}, "b": {"from": "a", "count": 2}, "c": {"from": "b", "count": 1}},
            "is itself a part",
        ),
        ({"a": {"from": "pool", "count": 0}}, "greater than or equal to 1"),
        ({"a/b": {"from": "pool", "count": 1}}, "may hold letters, digits"),
        ({"pool": {"from": "pool", "count": 1}}, "names a source and a role"),
    ],
)
def test_impossible_roles(roles: dict[str, Any], text: str, tmp_path: Path) -> None:
    refused(ValidationError, text.replace("+", r"\+"), pool, tmp_path, roles=roles)


def test_splits_are_written_and_read_back(tmp_path: Path) -> None:
    config = pool(tmp_path, shard_bytes(range(30)), shard_bytes(range(30, 60)))
    folder = str(tmp_path / "run")
    assert not are_drawn(folder)
    refused(UserError, "splits is missing", Splits.load, folder)
    splits = draw(config, scan(config, f"{folder}/scan"), 0, folder)
    again = Splits.load(folder)
    assert again.table.equals(splits.table)
    assert again.counts() == COUNTS
    assert again.rejected == splits.rejected
    keys = [key for item in ("000", "001") for key in again.keys("pool", item, ["target-member"])]
    assert sorted(f"pool/{key}" for key in keys) == splits.ids(["target-member"])


def test_a_class_that_is_too_small_is_told(tmp_path: Path) -> None:
    """Classes are seed % 3; who gets which sample is held against the slow draw."""
    roles = {"a-zero": {"from": "pool", "count": 21, "classes": [0]}, "b-any": {"from": "pool", "count": 10}}
    with pytest.raises(UserError, match=r"21 images are wanted from pool in classes \[0\], which has 20"):
        drawn(pool(tmp_path, shard_bytes(range(60)), roles=roles))
    with pytest.raises(ValidationError, match="classes are chosen for a drawn role"):
        pool(tmp_path, roles={"x": {"from": "pool", "classes": [1]}})


def test_halves_of_a_role_are_complementary_and_drawn_anew(tmp_path: Path) -> None:
    splits = drawn(pool(tmp_path, shard_bytes(range(60))))
    roles = ["target-member", "target-nonmember"]
    halves = [set(splits.half(roles, number, 5).ids(roles)) for number in range(4)]
    assert halves[0] | halves[1] == halves[2] | halves[3] == set(splits.ids(roles))
    assert not halves[0] & halves[1]
    assert [len(half) for half in halves] == [20] * 4
    assert halves[0] not in (halves[2], halves[3])
    assert set(splits.half(roles, 0, 6).ids(roles)) != halves[0]  # another seed
    assert splits.half(["downstream-test"], 0, 5).ids(["downstream-test"]) == sorted(
        splits.half(["downstream-test"], 0, 5).ids(["downstream-test"])
    )


def test_the_first_samples_of_roles_are_nested(tmp_path: Path) -> None:
    splits = drawn(pool(tmp_path, shard_bytes(range(60))))
    roles = ["target-member", "target-nonmember"]
    few, more = (set(splits.first(roles, count, 0)) for count in (3, 8))
    assert few < more
    assert len(few) == 6
    assert len(few & set(splits.ids(roles[:1]))) == 3


def test_the_first_samples_are_told_of_each_shard_after_one_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = [shard_bytes(range(start, start + 20)) for start in range(0, 60, 20)]
    config, roles = pool(tmp_path / "data", *shards), ["target-member", "target-nonmember"]
    splits = draw(config, scan(config), 0, str(tmp_path / "seed-0"))
    for count in (1, 3, 20, 99):
        known = set(splits.first(roles, count, 7))
        assert number_of(splits, roles, count) == len(known)
        firsts = Firsts.from_splits(splits, roles, count, 7)
        for place in splits.sums.shards:
            rows = splits.shard(*place)
            assert set(np.array(ids_of(rows))[firsts.among(rows)].tolist()) == known & set(ids_of(rows))
    assert number_of(splits, roles, None) == 40
    monkeypatch.setattr(Splits, "first", None)
    again = Firsts.from_splits(Splits.load(str(tmp_path / "seed-0")), roles, 3, 7)  # as another process sees it
    rank, last = again.lasts["target-member"] or (0, "")
    assert (again.lasts["target-nonmember"] or (0, ""))[1] != last
    tied = Firsts({"target-member": (rank, last[:-1])}, 7)  # of equal ranks the id decides
    assert tied.among(splits.table).sum() == 2


def test_some_shards_hold_what_the_whole_holds_there(tmp_path: Path) -> None:
    splits = drawn(pool(tmp_path, *(shard_bytes(range(start, start + 20)) for start in range(0, 100, 20))))
    places = list(splits.sums.shards)
    some = splits.at(places[1:3])
    there = [name for place in places[1:3] for name in splits.item_ids(*place, COUNTS)]
    assert some.ids(COUNTS) == sorted(there)
    assert some.count(COUNTS) == len(there)
    assert some.labels().keys() == set(there)
    half = splits.half(["target-member"], 0, 0)
    assert half.at(half.sums.shards).ids(COUNTS) == half.ids(COUNTS)


def test_a_sample_of_shards_has_its_share_of_every_role(tmp_path: Path) -> None:
    """Also of roles that stand in other shards than the rest; a larger sample keeps the shards of a smaller one."""
    contents = {"inside": range(120), "outside": range(1000, 1060)}
    for name, seeds in contents.items():
        (tmp_path / name).mkdir()
        for start in range(seeds.start, seeds.stop, 6):
            (tmp_path / name / f"{start:04d}.tar").write_bytes(shard_bytes(range(start, start + 6)))
    config = DataConfig(
        sources={name: {"kind": "shards", "path": str(tmp_path / name)} for name in contents},
        image_size=8,
        roles={"candidate": {"from": "inside"}, "control": {"from": "outside"}},
    )
    splits = drawn(config)
    small, large = (splits.sampled(["candidate", "control"], most, 0) for most in (45, 90))
    assert 30 <= small.count(["candidate"]) <= 36
    assert 15 <= small.count(["control"]) <= 21
    assert set(small.sums.shards) < set(large.sums.shards)
    assert set(splits.sampled(["candidate", "control"], 45, 1).sums.shards) != set(small.sums.shards)
    assert splits.sampled(["candidate", "control"], 180, 0) is splits
