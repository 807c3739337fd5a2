"""A chunk takes some seconds of an actor, is bounded, and stays as it was decided."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipelines.audit import run as audit
from pipelines.config.run_config import RunConfig
from pipelines.config.sections.data import DataConfig
from pipelines.extract import chunk_size as chunk_sizes
from pipelines.extract.chunk_size import BYTES, LEAST, MOST, PER_ACTOR, SECONDS, Cost, Sizing, chunk_size, cost_of
from pipelines.extract.division.passes import CHUNK, Pass, recorded_passes
from pipelines.plan.load import parse
from pipelines.run.folder import RunFolder, SeedFolder
from pipelines.run.points import Run
from tests.conftest import small_config
from tests.pipelines.planned import recorded_now

pytestmark = pytest.mark.ray

MANY = 10**8


def config_with(**queries: Any) -> RunConfig:
    return parse(small_config(queries={"views": 4} | queries), "small.yaml")


def never() -> Cost:
    raise AssertionError("a small run asks nothing beforehand")


@pytest.mark.parametrize("actors", [1, 2, 7])
def test_small_runs_feed_every_actor_and_ask_nothing(actors: int) -> None:
    for images in (1, 10, 300, 256 * actors, CHUNK * PER_ACTOR * actors):
        size = chunk_size(images, actors, BYTES, never)
        assert 1 <= size <= CHUNK
        assert -(-images // size) >= min(actors, images)
        assert size <= LEAST or images / size >= PER_ACTOR * actors  # no actor waits for the last chunk of another
        assert size >= min(LEAST, images // actors)


def test_requests_to_an_api_are_filled_from_large_chunks() -> None:
    assert [chunk_size(images, 2, BYTES, never, least=CHUNK) for images in (300, 2000)] == [150, CHUNK]


@pytest.mark.parametrize("seconds", [1e-5, 3e-4, 1e-3, 0.01, 1.0])
def test_large_runs_have_chunks_of_some_seconds_within_bounds(seconds: float) -> None:
    size = chunk_size(MANY, 8, BYTES, lambda: Cost(seconds, 3000))
    assert CHUNK <= size <= MOST
    if CHUNK < size < MOST:
        assert size * seconds == pytest.approx(SECONDS, rel=0.01)
    for images in (10**5, 10**6):
        assert images / chunk_size(images, 8, BYTES, lambda: Cost(seconds, 3000)) >= PER_ACTOR * 8


def test_large_files_make_small_chunks() -> None:
    assert chunk_size(MANY, 8, BYTES, lambda: Cost(1e-4, 2**20)) == BYTES // 2**20
    assert chunk_size(MANY, 8, BYTES, lambda: Cost(1e-4, 2**30)) == LEAST
    assert chunk_size(MANY, 8, BYTES, lambda: None) == CHUNK


class Decided(Sizing):
    """Decides for the same chunk everywhere, and counts how many passes it decides for."""

    def __init__(self, size: int) -> None:
        super().__init__(config_with().resources)
        self.size, self.passes = size, 0

    def __call__(self, passes: Sequence[Pass], data: DataConfig, folder: SeedFolder) -> list[Pass]:
        self.passes += len(passes)
        return [replace(query, chunk=self.size) for query in passes]


def files(runs: Sequence[Run], sizing: Sizing | None = None) -> list[tuple[str, int]]:
    jobs = [job for planned in recorded_now(runs, sizing) for job in planned.jobs()]
    return sorted((job.path(job.query.epochs[0], 0), job.chunk) for job in jobs)


def test_what_was_decided_stays(folder: Path) -> None:
    """A resumed run asks nothing again where it would decide otherwise today, or a number is given meanwhile."""
    run = Run(config_with(chunk="auto"), RunFolder(str(folder)))
    first = files([run], Decided(70))
    assert {chunk for _, chunk in first} == {70}
    later = Decided(50)
    assert files([run], later) == first
    assert later.passes == 0
    assert files([run._replace(config=config_with(chunk=20))]) == first
    assert files([run]) == first


def test_a_number_that_was_asked_for_stays_where_none_is(folder: Path) -> None:
    run = Run(config_with(chunk=20), RunFolder(str(folder)))
    first = files([run], Decided(70))
    assert {chunk for _, chunk in first} == {20}
    assert files([run._replace(config=config_with(chunk="auto"))], Decided(70)) == first


def test_the_cost_of_an_image_is_found_without_asking_for_one(folder: Path) -> None:
    run = Run(config_with(), RunFolder(str(folder)))
    planned = next(planned for planned in recorded_now([run]) if planned.query.encoder == "target")
    one = cost_of([planned.query], run.config.data, planned.planned.folder, run.config.resources)
    assert 0 < one.seconds < 60
    assert 60 < one.bytes < 1000  # PNG files of 8 x 8
    assert not list((folder / "features").rglob("epoch-*"))
    assert not list((folder / "features").rglob("attempts"))


def test_a_run_of_many_chunks_times_some_images_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One time for all that share a pass; a second start decides nothing."""
    monkeypatch.setattr(chunk_sizes, "CHUNK", 4)
    monkeypatch.setattr(chunk_sizes, "PER_ACTOR", 2)
    run = Run(config_with(), RunFolder(str(folder)))
    audit.run(run.config, str(folder), last="extract")
    chunks = {
        (tuple(sorted(record.content["images"])), record.content["chunk"])
        for record in recorded_passes(run.folder.seed(0).store)
    }
    assert all(4 < size <= 60 for _, size in chunks)  # 120 images for one actor: these encoders take microseconds
    assert len(chunks) == 2  # of the target's roles, and of the shadow's

    def never_again(*_: object) -> Cost:
        raise AssertionError("timed twice")

    monkeypatch.setattr(chunk_sizes.Sizing, "_cost", never_again)
    audit.run(run.config, str(folder), last="extract")
    assert len(run.folder.manifest["extraction"]) == 1
