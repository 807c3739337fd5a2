"""An import gives the same shards however many processes read and write, and whatever killed an earlier one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pipelines.data.database import one_by_one
from pipelines.data.scan import shards
from pipelines.errors import UserError
from pipelines.files import storage
from pipelines.run.parts import TaskMap
from pipelines.run.ray_session import mapped
from tests.pipelines.tars import image_bytes, shard_bytes, tar_bytes

pytestmark = pytest.mark.ray
SHARDS, EACH = 6, 30


@pytest.fixture
def tars(tmp_path: Path) -> Path:
    """Tars of several sizes: one with bad images, one cut, keys that stand in two, and a key with a dot."""
    place = tmp_path / "tars"
    place.mkdir()
    for number in range(SHARDS):
        (place / f"s-{number}.tar").write_bytes(shard_bytes(range(EACH * number, EACH * (number + 1) + number)))
    bad = [("bad.png", b"junk"), ("worse.png", b"\xff\xd8"), ("a.b.png", image_bytes(900))]
    (place / "s-6.tar").write_bytes(
        tar_bytes([*bad, *((f"t{seed}.png", image_bytes(seed)) for seed in range(950, 970))])
    )
    (place / "s-7.tar").write_bytes(shard_bytes(range(EACH))[:20000])
    return place


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.startswith(".")}


def on_ray(
    function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], title: str, memory: int = 0, *, cpus: int
) -> list[Any]:
    return mapped(function, arguments, "shards", title, cpus=cpus)


def test_any_number_of_workers_writes_the_same_bytes(
    local_ray: None, tars: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "MOST_SAMPLES", 8)
    source = shards.source_of(str(tars))
    maps: dict[str, TaskMap] = {"here": one_by_one, "one": partial(on_ray, cpus=2), "two": partial(on_ray, cpus=1)}
    for name, task_map in maps.items():
        shards.import_shards(source, str(tmp_path / name), max_rejected=0.2, task_map=task_map)
    here = content(tmp_path / "here")
    assert content(tmp_path / "one") == here == content(tmp_path / "two")
    manifest = storage.read_json(str(tmp_path / "here" / "manifest.json"))
    assert [shard["samples"] for shard in manifest["shards"][:-1]] == [8] * (len(here) - 2)
    written = shards.inspect(shards.source_of(str(tmp_path / "here")))
    assert (written.samples, written.problems) == (manifest["samples"], ())
    read = shards.inspect(shards.source_of(str(tars), options={"shard_in_key": True}))
    assert read.samples == written.samples
    assert sum(bad["lost"] for bad in manifest["rejected"]) == read.tally.lost


def test_what_does_not_decode_is_counted_over_all(tars: Path, tmp_path: Path) -> None:
    """A tenth of one tar is a hundredth of all: the share is of the source, and nothing is written above it."""
    (tars / "s-7.tar").unlink()
    source, every = shards.source_of(str(tars)), EACH * SHARDS + sum(range(SHARDS)) + 23
    with pytest.raises(UserError, match=f"2 of {every} samples are unusable, more than --max-rejected 0.009"):
        shards.import_shards(source, str(tmp_path / "out"), max_rejected=0.009)
    assert storage.list_files(str(tmp_path / "out")) == []
    assert shards.import_shards(source, str(tmp_path / "out"), max_rejected=0.01)["samples"] == every - 2


@pytest.mark.parametrize(
    "content", [b"", tar_bytes([(f"s{EACH:04d}.png", image_bytes(1, size=9))])], ids=["gone", "other"]
)
def test_a_source_that_changes_meanwhile_gives_no_shards_of_another(content: bytes, tars: Path, tmp_path: Path) -> None:
    def changing(
        function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], *, title: str, memory: int = 0
    ) -> Any:
        found = one_by_one(function, arguments, title=title)
        (tars / "s-1.tar").write_bytes(content)
        return found

    with pytest.raises(UserError, match=r"tars: s-1/s0030 was changed during the import; run it again"):
        shards.import_shards(shards.source_of(str(tars)), str(tmp_path / "out"), max_rejected=0.2, task_map=changing)
    assert not (tmp_path / "out" / "manifest.json").exists()
