"""A look at a few shards: what it reads, and what it tells of the whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipelines.config.sections.data import DataConfig
from pipelines.data.draw.draw import draw
from pipelines.data.look import Look
from pipelines.data.scan.scan import scan
from pipelines.errors import UserError
from tests.pipelines.tars import shard_bytes

ROLES = {
    "target-member": {"from": "pool", "count": 60},
    "target-nonmember": {"from": "pool", "count": 30, "classes": [0, 1]},
    "known-member": {"from": "target-member", "count": 20},
}


def config_of(folder: Path, shards: int, roles: dict[str, Any], each: int = 20) -> DataConfig:
    """A source ``pool`` of shards of 20 images."""
    for number in range(shards):
        (folder / f"{number:03d}.tar").write_bytes(shard_bytes(range(each * number, each * number + each)))
    sources = {"pool": {"kind": "shards", "path": str(folder)}}
    return DataConfig.model_validate({"sources": sources, "image_size": 8, "roles": roles})


def test_few_shards_tell_about_all(tmp_path: Path) -> None:
    config = config_of(tmp_path, 8, ROLES)
    (tmp_path / "001.tar").write_bytes(b"never read")
    look = Look.at(config)
    assert str(look) == "looked at 4 of 8 shards of pool; a run reads all"
    assert (look.scanned.tally.used, look.scanned.rejected) == (80, ())
    counts = look.counts(look.draw_roles(0))
    assert counts == {"target-member": 60, "target-nonmember": 30, "known-member": 20}


def test_shards_that_a_run_leaves_out_do_not_count(tmp_path: Path) -> None:
    config = config_of(tmp_path, 8, ROLES).model_copy(update={"shards": 5})
    assert str(Look.at(config)) == "looked at 3 of 5 shards of pool; a run reads all"


def test_sizes_of_fractions_are_estimated(tmp_path: Path) -> None:
    shares = {"target-member": 0.4, "target-nonmember": 0.2}
    config = config_of(tmp_path, 8, {name: {"from": "pool", "fraction": share} for name, share in shares.items()}, 100)
    look = Look.at(config)
    counts, exact = look.counts(look.draw_roles(0)), draw(config, scan(config), 0).counts()
    for name, share in shares.items():
        assert abs(counts[name] - exact[name]) < 4 * (800 * share) ** 0.5
        assert counts[name] % 2 == 0  # half of the shards were read


def test_a_small_source_is_read_whole(tmp_path: Path) -> None:
    config = config_of(tmp_path, 4, ROLES | {"target-member": {"from": "pool", "count": 25}})
    look, whole = Look.at(config), draw(config, scan(config), 3)
    assert (look.whole, str(look)) == (True, "")
    assert look.draw_roles(3).table.equals(whole.table)
    assert look.counts(look.draw_roles(3)) == whole.counts()


def test_a_source_that_is_too_small_is_told(tmp_path: Path) -> None:
    config = config_of(tmp_path, 8, {"target-member": {"from": "pool", "count": 200}})
    with pytest.raises(UserError, match=r"200 images are wanted from pool, which has about 160 \(4 of 8 shards were"):
        Look.at(config).draw_roles(0)


def test_a_shard_of_the_manifest_that_is_not_looked_at_is_not_missing(tmp_path: Path) -> None:
    config = config_of(tmp_path, 8, ROLES)
    entries = ", ".join(f'{{"name": "{number:03d}.tar", "samples": 20}}' for number in range(8))
    (tmp_path / "manifest.json").write_text(f'{{"shards": [{entries}]}}')
    assert Look.at(config).scanned.tally.lost == 0
