"""Samples that are kept are those of the shard, in its order, and a shard is read once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipelines.config.sections.sources import SourceConfig
from pipelines.data.read.samples import Sample
from pipelines.data.read.sources import Source
from pipelines.extract.division.readers import Kept
from tests.pipelines.tars import image_bytes, tar_bytes


@pytest.fixture
def source(tmp_path: Path) -> SourceConfig:
    names = ["d", "a", "c", "b"]
    (tmp_path / "000000.tar").write_bytes(tar_bytes([(f"{name}.png", image_bytes(0)) for name in names]))
    return SourceConfig(kind="shards", path=str(tmp_path / "000000.tar"))


@pytest.mark.parametrize("limit", [2**20, 0])
def test_what_is_kept_is_what_the_shard_holds(
    source: SourceConfig, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    reads: list[set[str]] = []
    plain = Source.read

    def counting(self: Any, item: Any, keys: set[str] | None = None) -> Iterator[Sample]:
        reads.append(set(keys or ()))
        return plain(self, item, keys)

    monkeypatch.setattr(Source, "read", counting)
    (item,) = Source(source).items()
    read = Kept(limit).reader(source)
    for wanted in ({"a", "d"}, {"d", "a"}, {"b", "a"}, {"a", "b", "c", "d"}, {"c"}, {"d", "b"}):
        found = [sample.key for sample in read(item, wanted)]
        assert found == [key for key in "dacb" if key in wanted]  # as they stand in the shard
    if limit:  # once for each wish that held something new, with what was known
        assert reads == [{"a", "d"}, {"a", "b", "d"}, {"a", "b", "c", "d"}]
    else:
        assert len(reads) == 6
