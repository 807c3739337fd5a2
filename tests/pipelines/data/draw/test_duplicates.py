"""Near-copies: one is kept, by whom is no matter of chance, and which went is told."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pipelines.config.sections.data import DataConfig
from pipelines.data.draw.draw import draw
from pipelines.data.draw.splits import Splits
from pipelines.data.scan.scan import scan
from tests.pipelines.data.draw.test_splits import drawn


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


def test_a_given_nonmember_goes_and_the_member_stays(tmp_path: Path) -> None:
    mine = [(f"{seed:03d}.png", photo(seed)) for seed in range(20)] + [("000-again.jpg", photo(0, change=True))]
    rest = [(f"{seed:03d}.png", photo(seed)) for seed in range(100, 120)] + [("mine.jpg", photo(7, change=True))]
    sources = pictures(tmp_path, rest=rest, mine=mine)
    roles = {"control": {"from": "rest"}, "candidate": {"from": "mine"}}
    config = DataConfig(sources=sources, image_size=32, roles=roles, near_duplicates={})
    splits = draw(config, scan(config), 0, str(tmp_path))
    assert splits.counts() == {"control": 20, "candidate": 20}
    copy_of = dict(zip(splits.near_copies["id"].to_pylist(), splits.near_copies["copy_of"].to_pylist(), strict=True))
    assert copy_of.pop("rest/mine.jpg") == "mine/007.png"
    assert set(copy_of.items()) < {("mine/000.png", "mine/000-again.jpg"), ("mine/000-again.jpg", "mine/000.png")}
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
    roles = {"control": {"from": "rest"}, "candidate": {"from": "mine"}, "known-member": {"from": "known", "count": 20}}
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
