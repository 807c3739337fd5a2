"""Images of roles in memory: their order, labels and captions, own ones before those made from class names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from mi_core.captions import ClassWords, templated_caption
from mi_core.checks import ConfigError
from mi_core.images import decode
from pipelines.config.sections.data import DataConfig
from pipelines.data.draw.draw import draw
from pipelines.data.draw.images import load_images
from pipelines.data.scan.scan import scan
from pipelines.errors import UserError
from pipelines.files import storage
from tests.pipelines.tars import image_bytes, shard_bytes, tar_bytes
from tests.raising import refused

WORDS = {label: {"name": f"class{label}", "attributes": ["large", "small", "far away"]} for label in range(2)}


def config_of(tmp_path: Path, shard: bytes, **settings: Any) -> DataConfig:
    (tmp_path / "000.tar").write_bytes(shard)
    roles = {"target-member": {"from": "pool", "count": 20}, "downstream-test": {"from": "pool", "count": 10}}
    sources = {"pool": {"kind": "shards", "path": str(tmp_path)}}
    return DataConfig(sources=sources, image_size=8, roles=roles, **settings)


def test_images_come_in_the_order_of_the_ids(tmp_path: Path) -> None:
    config = config_of(tmp_path, shard_bytes(range(60)))
    splits = draw(config, scan(config), 0)
    loaded = load_images(config, splits, ["target-member", "downstream-test"])
    assert loaded.ids == splits.ids(["target-member", "downstream-test"])
    assert loaded.images.shape == (30, 3, 8, 8)
    for name, image, label in zip(loaded.ids, loaded.images, loaded.labels, strict=True):
        np.testing.assert_array_equal(image, decode(image_bytes(int(name[-4:])), config.decoder()))
        assert label == int(name[-4:]) % 3
    few = load_images(config, splits, ["target-member"], limit=7)
    assert few.ids == splits.ids(["target-member"])[:7]
    assert len(few.images) == len(few.labels) == 7


def test_a_few_images_take_the_first_shards_alone(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number:03d}.tar").write_bytes(shard_bytes(range(20 * number, 20 * number + 20)))
    sources = {"pool": {"kind": "shards", "path": str(tmp_path)}}
    config = DataConfig(sources=sources, image_size=8, roles={"target-member": {"from": "pool", "count": 45}})
    splits = draw(config, scan(config), 0)
    few = load_images(config, splits, ["target-member"], limit=25)
    assert "table" not in vars(splits)  # all samples
    assert few.ids == splits.ids(["target-member"])[:25]


def test_captions(tmp_path: Path) -> None:
    members: list[tuple[str, bytes]] = []
    for seed in range(30):
        members += [(f"s{seed:04d}.png", image_bytes(seed)), (f"s{seed:04d}.cls", b"%d" % (seed % 3))]
        if seed % 5 == 0:
            members.append((f"s{seed:04d}.txt", f" caption {seed}\n".encode()))
        elif seed % 5 == 1:
            members.append((f"s{seed:04d}.json", json.dumps({"caption": f"json {seed}"}).encode()))
        elif seed % 5 == 2:
            members.append((f"s{seed:04d}.json", b"no json"))
    config = config_of(tmp_path, tar_bytes(members), captions=WORDS)
    loaded = load_images(config, draw(config, scan(config), 0), ["target-member", "downstream-test"])
    made = 0
    for name, caption in zip(loaded.ids, loaded.captions, strict=True):
        seed = int(name[-4:])
        if seed % 5 < 2:
            assert caption == (f"caption {seed}" if seed % 5 == 0 else f"json {seed}")
        elif seed % 3 < 2:
            words = ClassWords(f"class{seed % 3}", ("large", "small", "far away"))
            assert caption == templated_caption(words, "pool", name[-5:])
            assert f"class{seed % 3}" in caption
            made += 1
        else:
            assert caption == ""  # a class without words
    assert loaded.templated == made > 8
    assert len(set(loaded.captions)) > 15


def test_a_class_needs_attributes() -> None:
    refused(ConfigError, "the class 'dog' has 1 attributes; give at least 2", ClassWords, "dog", ("brown",))
    two = ClassWords("dog", ("brown", "asleep"))
    captions = {templated_caption(two, "pool", str(number)) for number in range(200)}
    assert len(captions) >= 12
    assert all("dog" in caption and not ("brown" in caption and caption.count("brown") > 1) for caption in captions)


def test_data_that_changed_since_is_told(tmp_path: Path) -> None:
    config = config_of(tmp_path, shard_bytes(range(60)))
    splits = draw(config, scan(config), 0)
    storage.write_atomic(str(tmp_path / "000.tar"), shard_bytes(range(40)))
    refused(UserError, "pool/s00.. is gone; the data changed", load_images, config, splits, ["target-member"])
