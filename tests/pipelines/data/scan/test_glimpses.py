"""What a scan keeps of some samples: the lowest hashes of every shard, and what a second reading would find."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mi_core.hashing import digest64
from mi_core.images import decode
from pipelines.attack import blind
from pipelines.config.sections.data import DataConfig
from pipelines.data.draw.draw import draw
from pipelines.data.draw.splits import Splits
from pipelines.data.read.sources import Source
from pipelines.data.scan import glimpses
from pipelines.data.scan.glimpses import Glimpses, Keeping, glimpse, glimpses_path
from pipelines.data.scan.scan import scan
from tests.pipelines.tars import image_bytes, shard_bytes

SHARDS, EACH = 8, 30


def splits_of(place: Path) -> tuple[DataConfig, Splits]:
    """Candidates and controls in eight shards."""
    (place / "shards").mkdir()
    for number in range(SHARDS):
        each = EACH + 10 * (number % 2)
        (place / "shards" / f"{number:03d}.tar").write_bytes(shard_bytes(range(100 * number, 100 * number + each)))
    config = DataConfig(
        sources={"pool": {"kind": "shards", "path": str(place / "shards")}},
        image_size=8,
        roles={name: {"from": "pool", "fraction": 0.5} for name in ("candidate", "control")},
    )
    return config, draw(config, scan(config, str(place / "scan")), 0, str(place / "seed-0"))


def test_the_lowest_hashes_are_kept_and_the_first_left_out_is_known(tmp_path: Path) -> None:
    keys = [f"k{number:03d}" for number in range(50)]
    ranks = {key: digest64("glimpse", "mine", key) for key in keys}
    pixels = np.zeros((3, 8, 8), dtype=np.uint8)
    for most in (1, 7, 50, 60):
        keeping = Keeping("mine", most)
        for key in keys:
            keeping.see(key, image_bytes(0), pixels)
        keeping.write(str(tmp_path / "kept.parquet"))
        kept = Glimpses.read(str(tmp_path / "kept.parquet"))
        lowest = sorted(keys, key=ranks.__getitem__)
        assert kept.table["key"].to_pylist() == lowest[:most]
        assert kept.keys(keys) == {key: ranks[key] for key in lowest[:most]}
        assert kept.first_left == (ranks[lowest[most]] if most < 50 else 2**64)


def test_what_is_kept_is_what_reading_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(glimpses, "OF_SHARD", 5)
    monkeypatch.setattr(glimpses, "OF_SOURCE", 0)
    config, splits = splits_of(tmp_path)
    for source, item in splits.sums.shards:
        kept = Glimpses.read(glimpses_path(f"{splits.scan_folder}/{splits.sums.path(source, item)}"))
        assert len(kept.table) == 5
        (piece,) = [one for one in Source(config.sources[source]).items() if one.name == item]
        read = {one.key: one for one in Source(config.sources[source]).read(piece, set(kept.table["key"].to_pylist()))}
        for key, found in kept.look_up(read):
            again = glimpse(read[key].image, decode(read[key].image, config.decoder()))
            for one, two in zip(found, again, strict=True):
                assert np.array_equal(one, two)
                assert one.dtype == two.dtype


def test_a_sample_of_what_is_kept_is_uniform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards of 30 and of 40 samples keep as many each, and yet every sample is drawn as often as any other."""
    monkeypatch.setattr(glimpses, "OF_SHARD", 12)
    monkeypatch.setattr(glimpses, "OF_SOURCE", 0)
    monkeypatch.setattr(blind, "SMALL", 10)
    monkeypatch.setattr(blind, "CLASSIFIED", 25)
    _, splits = splits_of(tmp_path)
    found = blind.draw_samples(splits, "candidate", 0)
    assert len(found) == 25
    assert all(name in splits.item_ids(*place, ["candidate"]) for name, place in found.items())
    ranks = {name: digest64("glimpse", *name.split("/")) for name in splits.ids(["candidate"])}
    among = [name for place in set(found.values()) for name in splits.item_ids(*place, ["candidate"])]
    assert sorted(found, key=ranks.__getitem__) == sorted(among, key=ranks.__getitem__)[:25]
    monkeypatch.setattr(blind, "CLASSIFIED", 90)  # more than the scan kept: any are drawn, and read again
    assert len(blind.draw_samples(splits, "candidate", 0)) == 90
