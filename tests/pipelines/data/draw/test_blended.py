"""Blended canaries: members in memory, members streamed and queries see the same mixed pixels, and no others do."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from mi_core.hashing import digest64
from mi_core.images import Decoder, blended, decode
from mi_core.objectives import OBJECTIVES
from mi_core.objectives.supervised import SupervisedParameters
from mi_core.streams import stream_keys
from pipelines.config.sections.data import DataConfig
from pipelines.data.draw.draw import draw
from pipelines.data.draw.images import blend_of, load_images
from pipelines.data.draw.splits import ROLES, Splits
from pipelines.data.read.samples import Sample
from pipelines.data.read.sources import Source
from pipelines.data.scan.scan import scan
from pipelines.extract.division.readers import ReadOrder, Selection, Share, chunks_of
from pipelines.files import storage
from pipelines.pretrain.stream import StreamedImages
from tests.pipelines.tars import image_bytes, shard_bytes

TRAINED = ["target-member", "canary-in"]
SEED = 6


@pytest.fixture
def data(tmp_path: Path) -> tuple[DataConfig, Splits]:
    """Three shards of images of 8 x 8, decoded at 6 x 6; 40 of 100 are canaries with 30 % noise."""
    for number in range(3):
        (tmp_path / f"{number}.tar").write_bytes(shard_bytes(range(34 * number, min(100, 34 * number + 34))))
    roles = {
        "target-member": {"from": "pool", "count": 30},
        "target-nonmember": {"from": "pool", "count": 20},
        "canary": {"from": "pool", "count": 40, "kind": "blended", "blend": 0.3},
    }
    config = DataConfig(sources={"pool": {"kind": "shards", "path": str(tmp_path)}}, image_size=6, roles=roles)
    draw(config, scan(config, str(tmp_path / "scan")), SEED, str(tmp_path / "seed-6"))
    return config, Splits.load(str(tmp_path / "seed-6"))


def expected(data: tuple[DataConfig, Splits], roles: list[str]) -> dict[str, np.ndarray]:
    """The pixels of some roles by id."""
    config, splits = data
    pixels, canaries = {}, set(splits.ids(["canary"]))
    for name in splits.ids(roles):
        key = name.partition("/")[2]
        file = image_bytes(int(key[1:]))
        if name in canaries:
            file = blended(file, config.decoder(), digest64(SEED, "canary-noise", "pool", key), 0.3)
        pixels[name] = decode(file, config.decoder())
    return pixels


def assert_same(found: Mapping[str, np.ndarray], wanted: Mapping[str, np.ndarray]) -> None:
    assert set(found) == set(wanted)
    for name, pixels in wanted.items():
        np.testing.assert_array_equal(found[name], pixels)


def test_members_in_memory_and_their_half(data: tuple[DataConfig, Splits]) -> None:
    config, splits = data
    for some in (splits, splits.half(TRAINED, 1, 0)):
        loaded = load_images(config, some, TRAINED)
        assert_same(dict(zip(loaded.ids, loaded.images, strict=True)), expected((config, some), TRAINED))
    ids = [name for name in splits.ids(TRAINED) if name in set(splits.ids(["canary"]))]
    assert ids  # there are canaries among them


def test_members_that_are_streamed(data: tuple[DataConfig, Splits]) -> None:
    config, splits = data
    count = splits.count(TRAINED)
    objective = (OBJECTIVES["supervised"], SupervisedParameters(classes=3))
    streamed = StreamedImages(config, splits, TRAINED, objective, batch_size=count, seed=5)
    ids = splits.ids(TRAINED)
    of_stream = dict(zip(stream_keys(5, "train", "pool", [name[5:] for name in ids]).tolist(), ids, strict=True))
    (batch,) = streamed.epoch(0)
    found = {of_stream[key]: pixels.numpy() for key, pixels in zip(batch.streams.tolist(), batch.images, strict=True)}
    assert_same(found, expected(data, TRAINED))


@pytest.mark.parametrize("given", [False, True])
def test_what_is_queried(data: tuple[DataConfig, Splits], given: bool) -> None:
    """Also where an attack asks for some samples only."""
    config, splits = data
    roles = ("target-nonmember", "canary-in", "canary-out")
    drawn = storage.stamp(f"{splits.folder}/splits/{ROLES}")
    found, source = {}, config.sources["pool"]
    for item in Source(source).items():
        selection = Selection(splits.folder, drawn, roles, splits.size("pool", item.name, roles), "")
        if given:
            selection = Selection.given_as(selection.classes("pool", item.name), splits.folder, drawn)
        order = ReadOrder("pool", source, item, (Share((b"",), (frozenset(),), selection, 100, config.decoder()),))
        (row,) = (chunk.to_pylist()[0] for chunk in chunks_of(order, Source(source).read))
        for key, file in zip(row["keys"], row["images"], strict=True):
            found[f"pool/{key}"] = decode(file, config.decoder())
    assert_same(found, expected(data, list(roles)))


def test_a_file_that_cannot_be_decoded_is_left_to_the_decoder(data: tuple[DataConfig, Splits]) -> None:
    _, splits = data
    shard = next(iter(splits.sums.shards))[1]
    (key, *_) = splits.keys("pool", shard, ["canary"])
    damaged = Sample(key, b"no image")
    assert blend_of(splits, "pool", shard, Decoder(6))(damaged) == damaged
