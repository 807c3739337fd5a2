"""The share of samples that another seed has too: as the draws have it, and 0 where samples change sides."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from pipelines.config.roles import TARGET_ROLES
from pipelines.config.sections.data import DataConfig
from pipelines.data.draw.draw import draw
from pipelines.data.draw.parts import audited_overlap, overlap_of, recurring
from pipelines.run.folder import RunFolder
from tests.pipelines.data.made import Row, scan_of

SIZES = {"train": 2000, "test": 1000, "given": 300}
SEEDS = (0, 1)


def rows() -> list[Row]:
    """Distinct images of three sources, of four classes in turn."""
    return [
        Row(source, "000", f"{number:04d}", number % 4, sha256(f"{source} {number}".encode()).digest(), "")
        for source, count in SIZES.items()
        for number in range(count)
    ]


def data_of(roles: dict[str, dict[str, Any]], **more: Any) -> DataConfig:
    sources = {name: {"kind": "shards", "path": "/nowhere"} for name in SIZES}
    return DataConfig.model_validate({"sources": sources, "image_size": 8, "roles": roles, **more})


CASES: dict[str, tuple[dict[str, dict[str, Any]], float]] = {
    "a whole source": ({"target-member": {"from": "given"}, "target-nonmember": {"from": "test", "count": 100}}, 1.0),
    "all of a source by fraction": (
        {"target-member": {"from": "train", "count": 500}, "target-nonmember": {"from": "test", "fraction": 1.0}},
        1.0,
    ),
    "most of a source by count": (
        {"target-member": {"from": "train", "count": 500}, "target-nonmember": {"from": "test", "count": 900}},
        0.9,
    ),
    "little of two sources": (
        {"target-member": {"from": "train", "count": 200}, "target-nonmember": {"from": "test", "count": 50}},
        0.1,
    ),
    "a part of a role": (
        {
            "both": {"from": "train", "count": 1600},
            "target-member": {"from": "both", "count": 800},
            "target-nonmember": {"from": "test", "count": 100},
        },
        0.4,
    ),
    "classes of one source": (
        {
            "a-others": {"from": "train", "count": 500},
            "target-member": {"from": "train", "count": 250, "classes": [0]},
            "target-nonmember": {"from": "train", "count": 300, "classes": [1, 2, 3]},
        },
        0.5,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_share_of_audited_samples_that_recur(name: str, tmp_path: Path) -> None:
    """Of sides with pools of their own, the larger one; it is what two seeds have in common indeed."""
    roles, expected = CASES[name]
    data, folder = data_of(roles), RunFolder(str(tmp_path / "run"))
    scanned = scan_of(rows(), str(tmp_path / "scan"), data)
    splits = [draw(data, scanned, seed, folder.seed(seed).path) for seed in SEEDS]
    found = audited_overlap(data, SEEDS, folder.seed(0), TARGET_ROLES)
    assert found == pytest.approx(expected, abs=0.04)
    for role in TARGET_ROLES:
        own = overlap_of(data, SEEDS, folder.seed(0), [role])
        first, second = (set(one.ids([role])) for one in splits)
        assert own == pytest.approx(len(first & second) / len(first), abs=0.08)
        assert own <= found
    assert audited_overlap(data, (0,), folder.seed(0), TARGET_ROLES) == 0


ONE_POOL: dict[str, dict[str, dict[str, Any]]] = {
    "one source": {name: {"from": "train", "count": 900} for name in TARGET_ROLES},
    "parts of one role": {
        "both": {"from": "train", "count": 1000},
        **{name: {"from": "both", "fraction": 0.5} for name in TARGET_ROLES},
    },
    "the same classes": {name: {"from": "train", "count": 9, "classes": [1, 0]} for name in TARGET_ROLES},
}


@pytest.mark.parametrize("name", ONE_POOL)
def test_sides_of_one_pool_change_places(name: str) -> None:
    assert audited_overlap(data_of(ONE_POOL[name]), SEEDS, RunFolder("/nowhere").seed(0), TARGET_ROLES) == 0


def test_roles_of_one_pool_add_up(tmp_path: Path) -> None:
    """A sample of one of them is as good in the other; roles of other pools count by their size."""
    roles = {
        "downstream-test": {"from": "given"},
        "target-member": {"from": "train", "count": 400},
        "target-nonmember": {"from": "train", "count": 800},
    }
    data = data_of(roles)
    splits = draw(data, scan_of(rows(), str(tmp_path / "scan"), data), 0)
    assert recurring(data, splits, ["target-member", "target-nonmember"]) == pytest.approx(0.6, abs=0.04)
    assert recurring(data, splits, list(roles)) == pytest.approx((300 + 1200 * 0.6) / 1500, abs=0.04)
    assert recurring(data, splits, ()) == 0


def test_shards_that_count_as_one_are_those_of_every_seed(tmp_path: Path) -> None:
    roles = {"target-member": {"from": "train", "count": 200}, "target-nonmember": {"from": "test", "count": 50}}
    data = data_of(roles)
    splits = draw(data, scan_of(rows(), str(tmp_path / "scan"), data), 0)
    assert splits.rules is not None
    assert recurring(data, splits, ["target-member"]) == pytest.approx(0.1, abs=0.04)
    read = replace(splits, rules=replace(splits.rules, by_shard=True))
    assert recurring(data, read, ["target-member"]) == 1
