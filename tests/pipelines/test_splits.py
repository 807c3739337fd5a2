"""Roles: exact sizes, a pure function of seed and keys, no shared image; and every mistake told."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest
import torch
from PIL import Image
from pydantic import ValidationError

from mi_core.encoders import build_backbone
from pipelines.attributes import GroupConfig
from pipelines.data_config import DataConfig, Role
from pipelines.duplicates import NearDuplicatesConfig
from pipelines.errors import UserError
from pipelines.splits import Splits, draw, exists
from tests.pipelines.tars import image_bytes, shard_bytes, tar_bytes

COUNTS = {"target-member": 20, "target-nonmember": 20, "downstream-test": 10}


def pool(tmp_path: Path, *shards: bytes, roles: dict[str, Any] | None = None, **settings: Any) -> DataConfig:
    """A source ``pool`` of shards, with the roles of COUNTS."""
    for number, data in enumerate(shards):
        (tmp_path / f"{number:03d}.tar").write_bytes(data)
    roles = roles or {name: {"from": "pool", "count": count} for name, count in COUNTS.items()}
    return DataConfig(
        sources={"pool": {"kind": "shards", "path": str(tmp_path)}},
        image_size=8,
        roles=roles,
        **settings,
    )


def folders(tmp_path: Path, **contents: range) -> dict[str, dict[str, str]]:
    """One image folder per name, holding the images of some seeds."""
    for name, seeds in contents.items():
        (tmp_path / name).mkdir()
        for seed in seeds:
            (tmp_path / name / f"{seed:03d}.png").write_bytes(image_bytes(seed))
    return {name: {"kind": "imagefolder", "path": str(tmp_path / name)} for name in contents}


def drawn(config: DataConfig, seed: int = 0) -> Splits:
    return draw(config, config.scan(), seed)


def test_counts_are_exact_and_roles_disjoint(tmp_path: Path) -> None:
    splits = drawn(pool(tmp_path, shard_bytes(range(40)), shard_bytes(range(40, 60))))
    assert splits.counts() == COUNTS
    ids = [name for role in COUNTS for name in splits.ids([role])]
    assert len(set(ids)) == len(ids) == 50
    assert splits.ids(COUNTS) == sorted(ids)
    labels = splits.labels()
    assert all(labels[name] == int(name[-4:]) % 3 for name in ids)


def test_roles_depend_on_seed_and_keys_only(tmp_path: Path) -> None:
    for name in ("whole", "parts"):
        (tmp_path / name).mkdir()
    roles = {name: {"from": "pool", "count": COUNTS[name]} for name in reversed(COUNTS)}
    whole = pool(tmp_path / "whole", shard_bytes(range(60)), roles=roles)
    parts = pool(tmp_path / "parts", shard_bytes(range(30, 60)), shard_bytes(range(30)))
    one, two, other = drawn(whole), drawn(parts), drawn(whole, seed=1)
    for role in COUNTS:
        assert one.ids([role]) == two.ids([role]) != other.ids([role])
        assert one.role_digest(role) == two.role_digest(role) != other.role_digest(role)


def test_a_draw_is_uniform(tmp_path: Path) -> None:
    """Over many seeds every sample is as often a member as every other (a sort by key would not be)."""
    config = pool(tmp_path, shard_bytes(range(60)))
    found = config.scan()
    hits = np.zeros(60)
    for seed in range(200):
        for name in draw(config, found, seed).ids(["target-member"]):
            hits[int(name[-4:])] += 1
    expected = 200 / 3
    assert ((hits - expected) ** 2 / (expected * 2 / 3)).sum() < 100  # chi-square of 59 degrees: 99.9 % below 99


def test_fractions_are_thresholds(tmp_path: Path) -> None:
    """A sample's role does not change when other samples come or go."""
    roles = {"target-member": {"from": "pool", "fraction": 0.5}, "target-nonmember": {"from": "pool", "fraction": 0.3}}
    for name in ("few", "many"):
        (tmp_path / name).mkdir()
    few = drawn(pool(tmp_path / "few", shard_bytes(range(100)), roles=roles))
    many = drawn(pool(tmp_path / "many", shard_bytes(range(400)), roles=roles))
    for role in roles:
        assert set(few.ids([role])) == {name for name in many.ids([role]) if int(name[-4:]) < 100}
    counts = many.counts()
    assert abs(counts["target-member"] - 200) < 40
    assert abs(counts["target-nonmember"] - 120) < 37


def test_parts_lie_inside_their_role_and_are_drawn_anew(tmp_path: Path) -> None:
    roles = {name: {"from": "pool", "count": count} for name, count in COUNTS.items()}
    roles |= {"known-member": {"from": "target-member", "count": 5}, "selection": {"from": "target-member", "count": 4}}
    config = pool(tmp_path, shard_bytes(range(60)), roles=roles)
    splits = drawn(config)
    known, selection, members = (set(splits.ids([r])) for r in ("known-member", "selection", "target-member"))
    assert (len(known), len(selection)) == (5, 4)
    assert known | selection < members
    assert not known & selection
    assert known != set(sorted(members)[:5])


def test_an_image_that_stands_twice_is_kept_once(tmp_path: Path) -> None:
    again = shard_bytes(range(10), prefix="copy")
    splits = drawn(pool(tmp_path, shard_bytes(range(60)), again))
    assert splits.duplicates_removed == 10
    assert len(pc.unique(splits.table["sha256"])) == 50
    with pytest.raises(UserError, match="= 50 images asked of pool, which has 40 distinct usable ones"):
        drawn(pool(tmp_path, shard_bytes(range(40)), shard_bytes(range(40), prefix="copy")))


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
    import io

    from PIL import Image

    buffer = io.BytesIO()
    Image.open(io.BytesIO(data)).save(buffer, "WEBP", lossless=True)
    return buffer.getvalue()


def test_given_roles_that_share_an_image_are_refused(tmp_path: Path) -> None:
    sources = folders(tmp_path, mine=range(5), others=range(4, 9))
    roles = {"target-member": {"from": "mine"}, "target-nonmember": {"from": "others"}}
    with pytest.raises(UserError, match=r"share an image: mine/004.png and others/004.png hold the same pixels"):
        drawn(DataConfig(sources=sources, image_size=8, roles=roles))


def test_one_percent_of_damage_is_borne_and_listed(tmp_path: Path) -> None:
    bad = tar_bytes([("bad.jpg", b"\xff\xd8\xff garbage")])
    splits = drawn(pool(tmp_path, shard_bytes(range(100)), bad))
    assert [(r.source, r.shard, r.key) for r in splits.rejected] == [("pool", "001", "bad")]
    assert "undecodable" in splits.rejected[0].reason
    with pytest.raises(UserError, match=r"1 of 51 samples are unusable.*pool/001/bad: undecodable"):
        drawn(pool(tmp_path, shard_bytes(range(50)), bad))
    assert drawn(pool(tmp_path, shard_bytes(range(50)), bad, max_rejected=0.02)).counts() == COUNTS


def test_a_key_that_stands_in_two_shards_is_used_once(tmp_path: Path) -> None:
    other = tar_bytes([("s0000.png", image_bytes(999))])
    splits = drawn(pool(tmp_path, shard_bytes(range(110)), other))
    assert [(r.key, r.reason) for r in splits.rejected] == [("s0000", "the key stands already in shard 000")]


def test_a_source_that_is_too_small(tmp_path: Path) -> None:
    sources = folders(tmp_path, mine=range(10))
    roles = {"target-member": {"from": "mine", "count": 6}, "target-nonmember": {"from": "mine", "count": 5}}
    config = DataConfig(sources=sources, image_size=8, roles=roles)
    with pytest.raises(UserError, match=r"6 \+ target-nonmember 5 = 11 images asked of mine, which has 10"):
        config.check_sizes()  # known without reading an image
    digits = {"digits": {"kind": "digits"}}
    too_many = {"target-member": {"from": "digits", "count": 1798}}
    with pytest.raises(UserError, match="which has 1797"):
        DataConfig(sources=digits, image_size=8, channels=1, roles=too_many).check_sizes()


@pytest.mark.parametrize(
    ("roles", "text"),
    [
        ({"a": {"from": "lake", "count": 1}}, "roles.a.from = 'lake', allowed: pool, a"),
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
    with pytest.raises(ValidationError, match=text.replace("+", r"\+")):
        pool(tmp_path, roles=roles)


def test_splits_are_written_and_read_back(tmp_path: Path) -> None:
    config = pool(tmp_path, shard_bytes(range(30)), shard_bytes(range(30, 60)))
    splits = drawn(config)
    folder = str(tmp_path / "run")
    assert not exists(folder)
    with pytest.raises(UserError, match="splits is missing"):
        Splits.load(folder)
    splits.save(folder)
    again = Splits.load(folder)
    assert again.table.equals(splits.table)
    assert again.counts() == COUNTS
    assert again.rejected == splits.rejected
    keys = [key for item in ("000", "001") for key in again.keys("pool", item, ["target-member"])]
    assert sorted(f"pool/{key}" for key in keys) == splits.ids(["target-member"])


def test_roles_that_overlap_are_never_accepted(tmp_path: Path) -> None:
    import pyarrow as pa

    splits = drawn(pool(tmp_path, shard_bytes(range(60))))
    doubled = pa.concat_tables([splits.table, splits.table.slice(0, 1)])
    with pytest.raises(RuntimeError, match="1 keys twice, first pool/"):
        Splits(doubled, splits.roles, (), 0).check()
    renamed = splits.table.slice(0, 1).set_column(2, "key", pa.array(["new"]))
    with pytest.raises(RuntimeError, match="1 images twice"):
        Splits(pa.concat_tables([splits.table, renamed]), splits.roles, (), 0).check()


def test_roles_of_some_classes(tmp_path: Path) -> None:
    """Classes are seed % 3; a role without classes takes the first ranks that are left."""
    roles = {
        "a-zero": {"from": "pool", "count": 12, "classes": [0]},
        "b-any": {"from": "pool", "count": 10},
        "c-others": {"from": "pool", "count": 15, "classes": [1, 2]},
        "d-part": {"from": "c-others", "count": 4, "classes": [2]},
    }
    config = pool(tmp_path, shard_bytes(range(60)), roles=roles)
    splits = drawn(config)
    labels = splits.labels()
    assert {labels[name] for name in splits.ids(["a-zero"])} == {0}
    assert {labels[name] for name in splits.ids(["c-others"])} == {1, 2}
    assert {labels[name] for name in splits.ids(["d-part"])} == {2}
    assert {name: len(splits.ids([name])) for name in roles} == {"a-zero": 12, "b-any": 10, "c-others": 15, "d-part": 4}
    assert len({labels[name] for name in splits.ids(["b-any"])}) > 1
    roles["a-zero"]["count"] = 21
    with pytest.raises(UserError, match=r"21 images asked of pool in classes \[0\], 20 are there"):
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


def grouped(tmp_path: Path, counts: dict[str, int], **settings: Any) -> DataConfig:
    """A pool of 30 groups of 1 to 5 images; the group stands in each sample's JSON."""
    members: list[tuple[str, bytes]] = []
    for seed in range(90):
        group = {"person": {"id": f"p{int(np.sqrt(10 * seed)):02d}"}}
        members += [(f"s{seed:04d}.png", image_bytes(seed)), (f"s{seed:04d}.json", json.dumps(group).encode())]
    (tmp_path / "000.tar").write_bytes(tar_bytes(members))
    roles = {name: {"from": "pool", "count": count} for name, count in counts.items()}
    return DataConfig(
        sources={"pool": {"kind": "shards", "path": str(tmp_path)}},
        image_size=8,
        roles=roles,
        group_by="json:person.id",
        **settings,
    )


def test_no_group_stands_in_two_roles_and_counts_are_exact(tmp_path: Path) -> None:
    config = grouped(tmp_path, COUNTS)
    found = config.scan()
    for seed in range(20):
        splits = draw(config, found, seed)
        assert splits.counts() == COUNTS
        groups = {role: set(splits.groups(splits.ids([role])).tolist()) for role in COUNTS}  # type: ignore[union-attr]
        assert sum(map(len, groups.values())) == len(set.union(*groups.values()))
        assert len(groups["target-member"]) < 20  # groups came whole
    assert draw(config, found, 0).ids(["target-member"]) != draw(config, found, 1).ids(["target-member"])


def test_parts_and_halves_keep_groups_whole(tmp_path: Path) -> None:
    roles = {"target-member": 60}
    config = grouped(tmp_path, roles)
    with_part = config.model_copy(
        update={"roles": config.roles | {"known-member": Role(**{"from": "target-member", "fraction": 0.5})}}
    )
    splits = drawn(with_part)
    whole, known = splits.ids(["target-member"]), set(splits.ids(["known-member"]))
    groups = splits.groups(whole)
    assert groups is not None
    torn = [g for g in set(groups.tolist()) if len({whole[i] in known for i in np.flatnonzero(groups == g)}) == 2]
    assert not torn
    assert 0 < len(known) < 60
    half = set(splits.half(["target-member"], 0, 0).ids(["target-member"]))
    cut = [g for g in set(groups.tolist()) if len({whole[i] in half for i in np.flatnonzero(groups == g)}) == 2]
    assert len(half) == 30
    assert len(cut) <= 1
    first, second = (splits.fold(["target-member"], name, 0) for name in ("search", "final"))
    assert first | second == set(whole)
    assert not first & second
    assert sum(len({whole[i] in first for i in np.flatnonzero(groups == g)}) == 2 for g in set(groups.tolist())) <= 1


def test_given_roles_that_share_a_group_are_an_error(tmp_path: Path) -> None:
    for name, seeds in (("mine", range(6)), ("rest", range(10, 16))):
        (tmp_path / name / "anna").mkdir(parents=True)
        for seed in seeds:
            (tmp_path / name / "anna" / f"{seed}.png").write_bytes(image_bytes(seed))
    sources = {name: {"kind": "imagefolder", "path": str(tmp_path / name)} for name in ("mine", "rest")}
    roles = {"candidate": {"from": "mine"}, "control": {"from": "rest"}}
    group_by = {"from": "key", "pattern": "^([^/]+)/"}
    config = DataConfig(sources=sources, image_size=8, roles=roles, group_by=group_by)
    with pytest.raises(UserError, match="roles candidate and control share the group 'anna' of data.group_by"):
        drawn(config)


def test_a_sample_without_its_group_is_listed(tmp_path: Path) -> None:
    config = grouped(tmp_path, {"target-member": 5}, max_rejected=1.0)
    other = config.model_copy(update={"group_by": GroupConfig(**{"from": "json:album"})})
    with pytest.raises(UserError, match="data.roles: target-member 5 = 5 images asked of pool, which has 0"):
        drawn(other)
    assert "group_by: its JSON has no field album" in other.scan().rejected[0].reason
    with pytest.raises(ValidationError, match="from = 'class', allowed: key, json:<field>"):
        GroupConfig(**{"from": "class"})


def photo(seed: int, *, change: bool = False, size: int = 32) -> bytes:
    """A smooth random picture; ``change`` saves it as a coarse JPEG, a little brighter."""
    noise = np.random.default_rng(seed).normal(0, 60, (6, 6, 3)) + 128
    picture = Image.fromarray(np.clip(noise, 0, 255).astype(np.uint8)).resize((size, size), Image.Resampling.BICUBIC)
    buffer = io.BytesIO()
    if change:
        picture.point(lambda value: min(255, int(value * 1.05))).save(buffer, "JPEG", quality=60)
    else:
        picture.save(buffer, "PNG")
    return buffer.getvalue()


def pictures(tmp_path: Path, **contents: list[tuple[str, bytes]]) -> dict[str, dict[str, str]]:
    for name, files in contents.items():
        (tmp_path / name).mkdir()
        for key, data in files:
            (tmp_path / name / key).write_bytes(data)
    return {name: {"kind": "imagefolder", "path": str(tmp_path / name)} for name in contents}


def test_near_copies_across_drawn_roles_are_kept_once(tmp_path: Path) -> None:
    originals = [(f"{seed:03d}.png", photo(seed)) for seed in range(40)]
    copies = [(f"{seed:03d}-again.jpg", photo(seed, change=True)) for seed in range(12)]
    sources = pictures(tmp_path, pool=originals + copies)
    roles = {"target-member": {"from": "pool", "count": 20}, "target-nonmember": {"from": "pool", "count": 20}}
    plain = DataConfig(sources=sources, image_size=32, roles=roles)
    config = plain.model_copy(update={"near_duplicates": NearDuplicatesConfig()})
    found = config.scan()
    torn = 0
    for seed in range(5):
        splits = draw(config, found, seed)
        assert splits.duplicates_removed == 0
        assert splits.near_removed == 12
        assert len({name[5:8] for name in splits.ids(roles)}) == 40  # every picture once, whichever copy
        assert splits.near_copies is not None
        pairs = zip(splits.near_copies["id"].to_pylist(), splits.near_copies["copy_of"].to_pylist(), strict=True)
        assert all(one != other and one[5:8] == other[5:8] for one, other in pairs)
        roles_of = [{name[5:8] for name in draw(plain, found, seed).ids([role])} for role in roles]
        torn += len(roles_of[0] & roles_of[1])
    assert torn > 5  # without looking, the same picture stands on both sides


def test_a_given_nonmember_goes_and_the_member_stays(tmp_path: Path) -> None:
    mine = [(f"{seed:03d}.png", photo(seed)) for seed in range(20)] + [("000-again.jpg", photo(0, change=True))]
    rest = [(f"{seed:03d}.png", photo(seed)) for seed in range(100, 120)] + [("mine.jpg", photo(7, change=True))]
    sources = pictures(tmp_path, rest=rest, mine=mine)
    roles = {"control": {"from": "rest"}, "candidate": {"from": "mine"}}
    splits = drawn(DataConfig(sources=sources, image_size=32, roles=roles, near_duplicates={}))
    assert splits.counts() == {"control": 20, "candidate": 20}
    assert splits.near_copies is not None
    copy_of = dict(zip(splits.near_copies["id"].to_pylist(), splits.near_copies["copy_of"].to_pylist(), strict=True))
    assert copy_of.pop("rest/mine.jpg") == "mine/007.png"
    assert set(copy_of.items()) < {("mine/000.png", "mine/000-again.jpg"), ("mine/000-again.jpg", "mine/000.png")}
    splits.save(str(tmp_path))
    again = Splits.load(str(tmp_path))
    assert again.near_removed == 2
    assert again.near_copies == splits.near_copies


@pytest.mark.parametrize("change", [False, True])
def test_a_control_that_is_a_known_member_is_no_control(tmp_path: Path, change: bool) -> None:
    """Known members are drawn, controls given: the very image, or nearly, was trained on all the same."""
    known = [(f"{seed:03d}.png", photo(seed)) for seed in range(20)]
    rest = [(f"{seed:03d}.png", photo(seed)) for seed in range(100, 110)] + [("known.jpg", photo(3, change=change))]
    mine = [(f"{seed:03d}.png", photo(seed)) for seed in range(200, 210)]
    sources = pictures(tmp_path, rest=rest, known=known, mine=mine)
    roles = {
        "control": {"from": "rest"},
        "candidate": {"from": "mine"},
        "known-member": {"from": "known", "count": 20},
    }
    splits = drawn(DataConfig(sources=sources, image_size=32, roles=roles, near_duplicates={}))
    assert splits.counts() == {"control": 10, "candidate": 10, "known-member": 20}
    assert "rest/known.jpg" not in splits.ids(["control"])
    assert splits.duplicates_removed + (splits.near_removed or 0) == 1


def test_without_near_copies_nothing_is_removed(tmp_path: Path) -> None:
    sources = pictures(tmp_path, pool=[(f"{seed:03d}.png", photo(seed)) for seed in range(30)])
    roles = {"target-member": {"from": "pool", "count": 30}}
    plain = DataConfig(sources=sources, image_size=32, roles=roles)
    splits = drawn(DataConfig(sources=sources, image_size=32, roles=roles, near_duplicates={}))
    assert splits.near_removed == 0
    assert splits.table == drawn(plain).table  # nor do hashes and descriptors stay


def test_a_neutral_encoder_may_have_the_last_word(tmp_path: Path) -> None:
    """Nothing has a cosine of 1 with its coarse copy, everything one above -1: both ends of the bound are seen."""
    files = [(f"{seed:03d}.png", photo(seed)) for seed in range(8)]
    sources = pictures(tmp_path, pool=[*files, ("000-again.jpg", photo(0, change=True))])
    roles = {"target-member": {"from": "pool", "count": 8}}
    weights = build_backbone("conv4", 3, 32).state_dict()
    torch.save({f"encoder.{name}": tensor for name, tensor in weights.items()}, tmp_path / "neutral.pth")
    for least, removed in ((-1.0, 1), (1.0, 0)):
        encoder = {"load": "checkpoint:conv4", "weights": str(tmp_path / "neutral.pth"), "least": least}
        near = {"encoder": encoder}
        splits = drawn(DataConfig(sources=sources, image_size=32, roles=roles, near_duplicates=near))
        assert splits.near_removed == removed
    lost = {"encoder": encoder | {"weights": "nowhere.pth"}}
    with pytest.raises(UserError, match="near_duplicates.encoder.weights = nowhere.pth is no file"):
        drawn(DataConfig(sources=sources, image_size=32, roles=roles, near_duplicates=lost))
