"""Persons, albums and bursts: no group stands in two roles, and none is torn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from mi_core.checks import ConfigError
from mi_core.hashing import half_of
from pipelines.config.sections.attributes import GroupConfig
from pipelines.config.sections.data import DataConfig, RoleConfig
from pipelines.data.scan.scan import scan
from pipelines.errors import UserError
from tests.pipelines.data.draw.test_splits import drawn
from tests.pipelines.tars import image_bytes, tar_bytes
from tests.raising import refused


def grouped(tmp_path: Path, counts: dict[str, int], **settings: Any) -> DataConfig:
    """A pool of 30 groups of 1 to 5 images; the group stands in each sample's JSON."""
    members: list[tuple[str, bytes]] = []
    for seed in range(90):
        group = {"person": {"id": f"p{int(np.sqrt(10 * seed)):02d}"}}
        members += [(f"s{seed:04d}.png", image_bytes(seed)), (f"s{seed:04d}.json", json.dumps(group).encode())]
    (tmp_path / "000.tar").write_bytes(tar_bytes(members))
    return DataConfig(
        sources={"pool": {"kind": "shards", "path": str(tmp_path)}},
        image_size=8,
        roles={name: {"from": "pool", "count": count} for name, count in counts.items()},
        group_by="json:person.id",
        **settings,
    )


def test_parts_and_halves_keep_groups_whole(tmp_path: Path) -> None:
    config = grouped(tmp_path, {"target-member": 60})
    with_part = config.model_copy(
        update={"roles": config.roles | {"known-member": RoleConfig(**{"from": "target-member", "fraction": 0.5})}}
    )
    splits = drawn(with_part)
    whole, known = splits.ids(["target-member"]), set(splits.ids(["known-member"]))
    groups = splits.groups(whole)
    torn = [g for g in set(groups.tolist()) if len({whole[i] in known for i in np.flatnonzero(groups == g)}) == 2]
    assert not torn
    assert 0 < len(known) < 60
    for seed in range(20):  # the middle of many orders lies inside a group
        halves = [set(splits.half(["target-member"], number, seed).ids(["target-member"])) for number in (0, 1)]
        folds = [splits.fold(["target-member"], name, seed) for name in ("search", "final")]
        for first, second in (halves, folds):
            assert first | second == set(whole)
            assert not first & second
            assert not [
                g for g in set(groups.tolist()) if len({whole[i] in first for i in np.flatnonzero(groups == g)}) == 2
            ]
            assert 27 <= len(first) <= 33  # the largest group has 5


def test_one_group_alone_cannot_be_halved() -> None:
    assert half_of(np.full(1, 7, np.uint64), 0, "x").all()
    assert half_of(np.array([5] * 9 + [6], np.uint64), 0, "x").sum() == 9  # neither side is empty
    with pytest.raises(ConfigError, match=r"all 3 images of a, b belong to one group of data\.group_by"):
        half_of(np.full(3, 7, np.uint64), 0, "a, b")


def test_given_roles_that_share_a_group_are_an_error(tmp_path: Path) -> None:
    for name, seeds in (("mine", range(6)), ("rest", range(10, 16))):
        (tmp_path / name / "anna").mkdir(parents=True)
        for seed in seeds:
            (tmp_path / name / "anna" / f"{seed}.png").write_bytes(image_bytes(seed))
    sources = {name: {"kind": "imagefolder", "path": str(tmp_path / name)} for name in ("mine", "rest")}
    roles = {"candidate": {"from": "mine"}, "control": {"from": "rest"}}
    config = DataConfig(sources=sources, image_size=8, roles=roles, group_by={"from": "key", "pattern": "^([^/]+)/"})
    refused(UserError, "roles candidate and control share the group 'anna' of data.group_by", drawn, config)


def test_a_sample_without_its_group_is_listed(tmp_path: Path) -> None:
    config = grouped(tmp_path, {"target-member": 5}, max_rejected=1.0)
    other = config.model_copy(update={"group_by": GroupConfig(**{"from": "json:album"})})
    refused(UserError, "data.roles: target-member 5 = 5 images are wanted from pool, which has 0", drawn, other)
    assert "group_by: its JSON has no field album" in scan(other).rejected[0].reason
    refused(ValidationError, "from = 'class', allowed: key, json:<field>", GroupConfig, **{"from": "class"})
