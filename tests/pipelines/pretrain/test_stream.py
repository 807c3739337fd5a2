"""Streamed members: every one once per epoch over all workers, in an order that changes, decoded as they would be."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mi_core.checks import ConfigError
from mi_core.images import decode
from mi_core.objectives import OBJECTIVES
from mi_core.objectives.supervised import SupervisedParameters
from mi_core.streams import stream_keys
from mi_core.training.data import Batch
from pipelines.config.sections.attributes import AttributeConfig
from pipelines.config.sections.data import DataConfig
from pipelines.data.draw.draw import draw
from pipelines.data.draw.splits import Splits
from pipelines.data.scan.scan import scan
from pipelines.errors import UserError
from pipelines.files import storage
from pipelines.pretrain import stream as streaming
from pipelines.pretrain.stream import StreamedImages
from tests.pipelines.tars import image_bytes, shard_bytes
from tests.raising import refused

CLASSES = SupervisedParameters(classes=3)
ODD = AttributeConfig(
    **{"from": "key", "pattern": "([0-9])$", "values": {"even": [0, 2, 4, 6, 8], "odd": [1, 3, 5, 7, 9]}}
)


@pytest.fixture
def data(tmp_path: Path) -> tuple[DataConfig, Splits]:
    """Five shards of unequal sizes, 100 samples; 73 of them are members."""
    for number, (low, high) in enumerate(pairwise([0, 31, 37, 60, 92, 100])):
        (tmp_path / f"{number}.tar").write_bytes(shard_bytes(range(low, high)))
    roles = {"target-member": {"from": "pool", "count": 73}, "target-nonmember": {"from": "pool", "count": 27}}
    config = DataConfig(sources={"pool": {"kind": "shards", "path": str(tmp_path)}}, image_size=8, roles=roles)
    return config, draw(config, scan(config), 0)


def streamed(
    data: tuple[DataConfig, Splits],
    monkeypatch: pytest.MonkeyPatch,
    rank: int = 0,
    workers: int = 1,
    attribute: str | None = None,
) -> Any:
    monkeypatch.setattr(streaming, "world", lambda: (rank, workers))
    objective = (OBJECTIVES["supervised"], CLASSES)
    return StreamedImages(*data, ["target-member"], objective, batch_size=12, seed=5, threads=2, attribute=attribute)


def seen(batches: list[Batch], data: tuple[DataConfig, Splits]) -> Counter[str]:
    """Keys of the samples, recognised by stream and pixels."""
    config, splits = data
    keys = [name.partition("/")[2] for name in splits.ids(["target-member"])]
    by_stream = dict(zip(stream_keys(5, "train", "pool", keys).tolist(), keys, strict=True))
    found: Counter[str] = Counter()
    for batch in batches:
        for image, stream, label in zip(batch.images, batch.streams.tolist(), batch.targets.tolist(), strict=True):
            key = by_stream[stream]
            np.testing.assert_array_equal(image.numpy(), decode(image_bytes(int(key[1:])), config.decoder()))
            assert label == int(key[1:]) % 3
            found[key] += 1
    return found


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("mixed", [1, 10, 10_000])
def test_every_member_once(
    data: tuple[DataConfig, Splits], monkeypatch: pytest.MonkeyPatch, workers: int, mixed: int
) -> None:
    monkeypatch.setattr(streaming, "MIXED_BYTES", mixed * 3 * 64)
    total: Counter[str] = Counter()
    for rank in range(workers):
        stream = streamed(data, monkeypatch, rank, workers)
        assert (stream.count, stream.steps) == (73, 6)
        batches = list(stream.epoch(0))
        assert [len(batch.images) for batch in batches] == [12 // workers] * 6
        total += seen(batches, data)
    assert set(total.values()) == {1}
    assert len(total) == 72  # the incomplete last batch is left out


def test_order_is_new_each_epoch_and_the_same_again(
    data: tuple[DataConfig, Splits], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = streamed(data, monkeypatch)
    first, second = ([batch.streams for batch in stream.epoch(number)] for number in (0, 1))
    again = [batch.streams for batch in streamed(data, monkeypatch).epoch(0)]
    assert torch.equal(torch.stack(first), torch.stack(again))
    assert not torch.equal(torch.stack(first), torch.stack(second))
    assert len({shard.item.name for shard, *_ in stream.stretch(0)}) == 5
    left_out = [set(by_stream) for by_stream in (seen(list(stream.epoch(number)), data) for number in range(6))]
    assert len(set.union(*left_out)) == 73  # not always the same one


@pytest.mark.parametrize("attribute", [None, "odd"])
def test_labels_are_those_of_the_shard_being_read(
    data: tuple[DataConfig, Splits], monkeypatch: pytest.MonkeyPatch, attribute: str | None
) -> None:
    """Nothing of all samples is held, and order and labels are as the whole table has them."""
    config = data[0].model_copy(update={"attributes": {"odd": ODD}})
    splits = draw(config, scan(config), 0)
    known = splits.labels() if attribute is None else splits.attribute(attribute)
    order = [splits.keys("pool", f"{number}", ["target-member"]) for number in range(5)]
    whole = vars(Splits)["table"].func

    def table(splits: Splits) -> Any:
        assert len(list(splits.sums.shards)) == 1
        return whole(splits)

    monkeypatch.setattr(Splits, "table", property(table))
    stream = streamed((config, splits), monkeypatch, attribute=attribute)
    assert [shard.size for shard in stream.shards] == [len(keys) for keys in order]
    wanted = [key for shard, low, high in stream.stretch(0) for key in order[int(shard.item.name)][low:high]]
    read = list(stream._entries(0))
    assert [entry.stream for entry in read] == stream_keys(5, "train", "pool", wanted).tolist()
    assert [entry.label for entry in read] == [known[f"pool/{key}"] for key in wanted]


def test_an_attribute_that_was_not_drawn_is_told_at_once(
    data: tuple[DataConfig, Splits], monkeypatch: pytest.MonkeyPatch
) -> None:
    refused(UserError, "have no attribute odd; redo with --force data", streamed, data, monkeypatch, attribute="odd")


def test_a_stopped_epoch_leaves_no_thread(data: tuple[DataConfig, Splits], monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    before = threading.active_count()
    epoch = streamed(data, monkeypatch).epoch(0)
    next(epoch)
    epoch.close()
    for _ in range(100):
        if threading.active_count() <= before:
            break
        threading.Event().wait(0.05)
    assert threading.active_count() <= before


def test_faults_are_told(data: tuple[DataConfig, Splits], monkeypatch: pytest.MonkeyPatch) -> None:
    stream = streamed(data, monkeypatch)
    path = stream.shards[0].item.path
    whole = storage.read_bytes(path)
    storage.write_atomic(path, shard_bytes(range(5)))
    refused(UserError, r"pool, shard 0: \d+ of \d+ samples are gone; the data changed", list, stream.epoch(0))
    storage.write_atomic(path, whole[:3000])
    refused(UserError, "pool, shard 0: .*changed since the roles were drawn", list, stream.epoch(0))
    refused(ConfigError, "batch_size = 12 is not divisible by 5 workers", streamed, data, monkeypatch, 0, 5)
