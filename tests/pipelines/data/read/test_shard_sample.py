"""Some shards in place of all: only they are read, more shards keep the fewer, and a shard counts as one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator
from pydantic import ValidationError

from mi_core.metrics.delong import design_effect
from mi_core.report.contents import schema
from mi_core.report.words.numbers import plain
from pipelines.config.sections.data import DataConfig
from pipelines.data.draw.draw import draw
from pipelines.data.draw.splits import Splits
from pipelines.data.scan.scan import scan
from pipelines.files import storage
from pipelines.plan.load import parse
from tests.pipelines import staged
from tests.pipelines.tars import image_bytes, shard_bytes, tar_bytes

pytestmark = pytest.mark.ray

SHARDS, EACH = 10, 12


def config_of(place: Path, **settings: Any) -> DataConfig:
    """Ten shards of a pool."""
    if not (place / "shards").exists():
        (place / "shards").mkdir()
        for number in range(SHARDS):
            start = 100 * number
            (place / "shards" / f"{number:03d}.tar").write_bytes(shard_bytes(range(start, start + EACH)))
    roles = {name: {"from": "pool", "fraction": 0.5} for name in ("candidate", "control")}
    sources = {"pool": {"kind": "shards", "path": str(place / "shards")}}
    return DataConfig.model_validate({"sources": sources, "image_size": 8, "roles": roles, **settings})


def drawn(config: DataConfig) -> Splits:
    return draw(config, scan(config), 0)


def test_only_some_shards_are_read_and_more_keep_the_fewer(tmp_path: Path) -> None:
    every = drawn(config_of(tmp_path))
    few, more = (drawn(config_of(tmp_path, shards=wanted)) for wanted in (3, 0.6))
    assert len(set(few.sums.shards)) == 3
    assert len(set(more.sums.shards)) == 6
    assert set(few.sums.shards) < set(more.sums.shards)
    for splits in (few, more):
        for place in splits.sums.shards:
            for role in ("candidate", "control"):
                # roles do not depend on the sample
                assert splits.item_ids(*place, [role]) == every.item_ids(*place, [role])
    assert few.rules.shards == {"pool": (3, SHARDS)}


def test_a_shard_counts_as_one_unless_samples_are_shuffled(tmp_path: Path) -> None:
    splits = drawn(config_of(tmp_path, shards=4))
    ids = splits.ids(["candidate", "control"])
    groups = splits.groups(ids)
    assert groups is not None
    roles = ["candidate", "control"]
    of_shard = {name: place for place in splits.sums.shards for name in splits.item_ids(*place, roles)}
    same = np.array([[of_shard[one] == of_shard[two] for one in ids] for two in ids])
    assert np.array_equal(groups[:, None] == groups[None, :], same)
    assert drawn(config_of(tmp_path, shards=4, shuffled=True)).groups(ids) is None
    assert drawn(config_of(tmp_path)).groups(ids) is None
    assert drawn(config_of(tmp_path, shards=SHARDS)).groups(ids) is None  # all shards were read


@pytest.mark.parametrize("shards", [0, -1, 1, 1.5, 2.5])
def test_what_is_no_number_of_shards(shards: float, tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="shards|greater than 0"):
        config_of(tmp_path, shards=shards)


def test_a_run_on_some_shards_says_so(local_ray: None, tmp_path: Path) -> None:
    for name, start in (("mine", 0), ("rest", 10_000)):
        (tmp_path / name).mkdir()
        for shard in range(SHARDS):
            numbers = range(start + shard * EACH, start + (shard + 1) * EACH)
            members = [(f"{number:05d}.png", image_bytes(number, size=16)) for number in numbers]
            (tmp_path / name / f"{shard:03d}.tar").write_bytes(tar_bytes(members))
    fresh = {"load": "checkpoint:conv4", "fresh": True, "objective": "simclr"}
    raw = {
        "name": "given",
        "data": {
            "sources": {name: {"kind": "shards", "path": str(tmp_path / name)} for name in ("mine", "rest")},
            "image_size": 16,
            "shards": 6,
            "roles": {
                "candidate": {"from": "mine"},
                "control": {"from": "rest"},
                "known-nonmember": {"from": "control", "fraction": 0.3},
            },
        },
        "encoders": {"target": fresh, "fresh": fresh},
        "queries": {"views": 2, "outputs": ["backbone"]},
        "attacks": [{"attack": "mean-cosine", "target": "target", "reference": "nonmembers"}],
        "validity": {"references": ["fresh"]},
    }
    staged.judge(parse(raw, "given.yaml"), tmp_path / "run")
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    Draft202012Validator(schema()).validate(report)
    assert report["data"]["shards"] == {name: {"read": 6, "of": SHARDS} for name in ("mine", "rest")}
    assert report["data"]["roles"]["candidate"]["n"] == 6 * EACH
    table = storage.read_table(str(next((tmp_path / "run").glob("seed-0/attacks/*/scores.parquet/*"))))
    expected = design_effect(*(np.asarray(table[name]) for name in ("score", "member", "group")))
    assert any("6 of 10 of mine" in told and f"{plain(expected, 2)} times" in told for told in report["caveats"])
    assert report["evidence"]["grouped"]
    assert report["evidence"]["n_candidate"] == 6
    assert len(list((tmp_path / "run").glob("scan/*/mine/*.json"))) == 6
    assert "6 of 10 of mine" in (tmp_path / "run" / "report.html").read_text()
