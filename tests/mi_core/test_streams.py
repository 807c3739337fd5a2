"""Streams: the published test vectors, independence of batch and count, and purposes that never meet."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from mi_core.checks import ConfigError, ShapeError
from mi_core.hashing import digest64
from mi_core.streams import (
    OF_PIXELS,
    PURPOSES,
    batched_uniforms,
    philox,
    pixel_streams,
    seeded_generators,
    stream_keys,
    uniforms,
)
from tests.raising import refused

SHOWN = torch.randint(256, (5, 3, 4, 4), generator=torch.Generator().manual_seed(0)).to(torch.uint8)


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)
def test_philox_gives_the_vectors_of_its_authors(counter: list[int], key: list[int], expected: list[int]) -> None:
    words = philox([torch.tensor([word]) for word in counter], [torch.tensor([word]) for word in key])
    assert [int(word) for word in words] == expected


@pytest.mark.parametrize("count", [1, 4, 7, 16])
def test_uniforms_are_those_of_the_generator_bit_by_bit(count: int) -> None:
    streams = stream_keys(3, "train", "pool", [f"{row}" for row in range(50)])
    views = torch.arange(50) * 85899345
    ours = uniforms(streams, epoch=2**32 - 1, view=views, count=count)
    assert torch.equal(ours, batched_uniforms(streams, 2**32 - 1, views, count))


def test_uniforms_do_not_depend_on_batch_order_or_count() -> None:
    streams = stream_keys(3, "train", "pool", [f"{row}" for row in range(50)])
    whole = uniforms(streams, epoch=4, view=1, count=11)
    torch.testing.assert_close(uniforms(streams[7:8], epoch=4, view=1, count=3), whole[7:8, :3], rtol=0, atol=0)
    mixed = uniforms(streams, epoch=4, view=torch.arange(50) % 2, count=11)
    assert torch.equal(mixed[1::2], whole[1::2])
    assert not torch.equal(mixed[::2], whole[::2])


def test_uniforms_are_uniform_and_uncorrelated() -> None:
    streams = stream_keys(0, "train", "pool", [f"{row}" for row in range(4000)])
    drawn = uniforms(streams, epoch=0, view=0, count=9).numpy()
    assert drawn.min() >= 0
    assert drawn.max() < 1
    for column in drawn.T:  # Kolmogorov-Smirnov distance; 1.95 / sqrt(4000) is the .001 quantile
        distance = np.abs(np.sort(column) - (np.arange(4000) + 0.5) / 4000).max()
        assert distance < 1.95 / np.sqrt(4000)
    across = np.corrcoef(drawn.T) - np.eye(9)
    assert np.abs(across).max() < 4.5 / np.sqrt(4000)


def test_no_two_identities_share_a_stream() -> None:
    seen: set[int] = set()
    for seed in (0, 1):
        for purpose in PURPOSES:
            for source in ("a", "ab"):
                seen |= set(stream_keys(seed, purpose, source, ["b", "", "1", "bb"]).tolist())
        for purpose in OF_PIXELS:
            for nonce in ("", "7"):
                seen |= set(pixel_streams(nonce, seed, purpose, SHOWN).tolist())
    assert len(seen) == 2 * len(PURPOSES) * 2 * 4 + 2 * len(OF_PIXELS) * 2 * len(SHOWN)
    train = stream_keys(0, "train", "pool", ["x"])
    draws = {
        (epoch, view): tuple(uniforms(train, epoch=epoch, view=view, count=4)[0].tolist())
        for epoch in range(20)
        for view in range(4)
    }
    query = pixel_streams("", 0, "query", SHOWN[:1])
    drawn = [tuple(uniforms(query, epoch=0, view=view, count=4)[0].tolist()) for view in range(10)]
    assert len({*draws.values(), *drawn}) == 90


def test_views_of_queries_are_those_of_the_pixels_alone() -> None:
    streams = pixel_streams("n", 0, "query", SHOWN)
    order = [3, 0, 4]
    assert torch.equal(pixel_streams("n", 0, "query", SHOWN[order]), streams[order])  # no place among others counts
    assert torch.equal(pixel_streams("n", 0, "query", SHOWN[:1].clone()), streams[:1])
    changed = SHOWN.clone()
    changed[:, 0, 0, 0] ^= 1  # the lowest bit of one value
    assert not (pixel_streams("n", 0, "query", changed) == streams).any()
    flat = SHOWN.reshape(5, 3, 2, 8)
    assert not (pixel_streams("n", 0, "query", flat) == streams).any()  # nor do equal bytes of another shape


def test_digest64_separates_parts_and_types() -> None:
    assert len({digest64("1"), digest64(1), digest64("1", ""), digest64("", "1"), digest64(-1)}) == 5
    assert 0 <= digest64("x") < 2**64


def test_bad_input_is_refused() -> None:
    refused(ConfigError, "purpose = 'query', allowed: defense, train", stream_keys, 0, "query", "pool", ["x"])
    refused(ConfigError, "purpose = 'train', allowed: probe, query", pixel_streams, "", 0, "train", SHOWN)
    refused(ShapeError, "images", pixel_streams, "", 0, "query", SHOWN[0])
    refused(ConfigError, "int64", uniforms, torch.zeros(3), epoch=0, view=0, count=1)
    refused(ConfigError, "epoch = -1", uniforms, torch.zeros(3, dtype=torch.int64), epoch=-1, view=0, count=1)
    refused(ConfigError, "count = 0", uniforms, torch.zeros(3, dtype=torch.int64), epoch=0, view=0, count=0)
    refused(ConfigError, "view = -1", uniforms, torch.zeros(3, dtype=torch.int64), epoch=0, view=-1, count=1)


@pytest.mark.parametrize("used", [False, True])
def test_seeded_generators_are_put_back(used: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of two GPUs too, where the process uses them; else no seed waits for them."""
    seeds: dict[int, Any] = {0: "a", 1: "b"}
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: used)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "manual_seed_all", lambda seed: seeds.update(dict.fromkeys(seeds, seed)))
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: seeds[device])
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: seeds.update({device: state}))
    expected = torch.rand(3, generator=torch.Generator().manual_seed(7))
    before = torch.get_rng_state()
    with seeded_generators(7):
        assert seeds == ({0: 7, 1: 7} if used else {0: "a", 1: "b"})
        assert torch.equal(torch.rand(3), expected)
    assert seeds == {0: "a", 1: "b"}
    assert torch.equal(torch.get_rng_state(), before)
