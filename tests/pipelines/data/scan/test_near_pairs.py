"""Pairs found by tasks that hold a part of the hashes each are all pairs that there are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from mi_core.validity.near_duplicates import near_pairs as all_pairs
from pipelines.data.database import database, one_by_one
from pipelines.data.scan import near_pairs
from pipelines.data.scan.near_pairs import NearPairs

SAMPLES = 900


def hashes_of(generator: np.random.Generator) -> np.ndarray:
    """Random hashes, of which many lie close to another, some are equal and some are 0."""
    hashes = generator.integers(0, 2**64, SAMPLES, dtype=np.uint64)
    for row in range(0, SAMPLES, 2):
        bits = generator.permutation(64)[: generator.integers(0, 6)]
        hashes[row] = hashes[generator.integers(SAMPLES)] ^ np.bitwise_or.reduce(np.uint64(1) << bits.astype(np.uint64))
    hashes[generator.permutation(SAMPLES)[:9]] = 0
    return hashes


@pytest.mark.parametrize("distance", [0, 1, 4, 8])
@pytest.mark.parametrize("held", [70, 10**6])
def test_parts_find_all_pairs(distance: int, held: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(near_pairs, "HELD", held)
    monkeypatch.setattr(near_pairs, "FILE", 130)
    generator = np.random.default_rng([distance, held])
    hashes, order = hashes_of(generator), generator.permutation(SAMPLES)
    shard, row = (column.astype(np.uint32) for column in (np.arange(SAMPLES) % 7, np.arange(SAMPLES) // 7))
    kept = pa.table({"phash": hashes, "shard": shard, "row": row, "place": order})
    with database(SAMPLES) as connection:
        connection.register("kept", kept)
        found = NearPairs.listed(connection, "place", str(tmp_path / "near"), distance)
    assert sum(found.sizes) == SAMPLES
    found.find(one_by_one, "near-copies")
    ranked = np.argsort(order)
    expected = all_pairs(hashes[ranked], distance=distance)
    assert len(expected) > 20
    assert np.array_equal(found.pairs(), expected)
    rows = np.unique(expected)
    places = found.places(rows)
    assert np.array_equal(places[0], shard[ranked][rows])
    assert np.array_equal(places[1], row[ranked][rows])


def test_no_pairs(tmp_path: Path) -> None:
    with database(1) as connection:
        kept = {name: pa.array([3], pa.uint32()) for name in ("shard", "row", "place")}
        connection.register("kept", pa.table({"phash": pa.array([5], pa.uint64()), **kept}))
        found = NearPairs.listed(connection, "place", str(tmp_path), None)
    found.find(one_by_one, "near-copies")
    assert found.distance == 8
    assert found.pairs().shape == (0, 2)
    assert [len(column) for column in found.places(np.empty(0, dtype=np.int64))] == [0, 0]
