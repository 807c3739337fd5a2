"""Encoders that are asked for the same images share decoding and views, and answer as if each were asked alone."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.config.run_config import RunConfig
from pipelines.data.read.sources import Source
from pipelines.extract.actor import attempts
from pipelines.extract.actor.attempts import QUERYING, begun, lost_queries, marker_path, settle
from pipelines.extract.actor.worker import EncodeChunks
from pipelines.extract.division.jobs import ShardJob, looked_up, orders_of
from pipelines.extract.division.readers import chunks_of
from pipelines.extract.features import matrix
from pipelines.files import many, storage
from pipelines.plan.load import parse
from tests.conftest import S3_REQUESTS, config_with, small_config
from tests.pipelines.planned import jobs_of

pytestmark = pytest.mark.ray

LAST = small_config() | {"checkpoints": "last"}


def planned(config: RunConfig, folder: str) -> list[ShardJob]:
    return [replace(job, session="now") for job in jobs_of(config, folder)]


def rows_of(jobs: Sequence[ShardJob]) -> list[pa.Table]:
    return [row for order in orders_of(jobs) for row in chunks_of(order, Source(order.reader).read)]


def encoded(jobs: Sequence[ShardJob], encode: EncodeChunks) -> list[dict[str, Any]]:
    """The receipts of all chunks; markers go as the driver removes them."""
    receipts = [receipt for row in rows_of(jobs) for receipt in encode(row).to_pylist()]
    assert not [receipt["error"] for receipt in receipts if receipt["error"]]
    many.remove_files([marker for receipt in receipts for marker in receipt["markers"]])
    return receipts


def contents(folder: Path) -> dict[str, pa.Table]:
    files = (folder / "features").rglob("*.parquet")
    return {str(path.relative_to(folder)): pq.read_table(path) for path in files}


def total(receipts: Sequence[dict[str, Any]], name: str) -> int:
    return sum(receipt[name] for receipt in receipts)


def markers_of(job: ShardJob) -> tuple[str, str]:
    """Where the attempts of a job stand: the store, and the key of its encoder."""
    return job.query.store, job.query.encoder_key


def test_the_features_are_those_of_encoders_asked_alone(folder: Path, tmp_path: Path) -> None:
    """Bit for bit, with one decoding of each image in place of one for each encoder."""
    shutil.copytree(folder, tmp_path / "alone")
    together = encoded(planned(config_with(), str(folder)), EncodeChunks())
    jobs = planned(config_with(), str(tmp_path / "alone"))
    encode = EncodeChunks()
    alone = [receipt for job in jobs for receipt in encoded([job], encode)]
    ours, theirs = contents(folder), contents(tmp_path / "alone")
    assert list(ours) == list(theirs)
    for name, table in ours.items():
        assert table.equals(theirs[name]), name
    for name in ("rows", "rejected", "queries"):
        assert total(together, name) == total(alone, name)
    assert total(alone, "decodes") == total(alone, "rows")
    asked = {(job.place, job.selection.digest): job.selection.count for job in jobs}
    assert total(together, "decodes") == sum(asked.values()) < total(alone, "decodes")
    assert total(together, "builds") == total(alone, "builds") == 4  # checkpoints


def test_float16_halves_the_features_and_rounds_them(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "halved")
    settings = small_config()["queries"] | {"feature_precision": "float16"}
    plain = planned(config_with(), str(folder))
    halved = planned(config_with(queries=settings), str(tmp_path / "halved"))
    assert {job.query.tag for job in plain}.isdisjoint(job.query.tag for job in halved)
    for jobs in (plain, halved):
        encoded(jobs, EncodeChunks())
    for one, two in zip(plain, halved, strict=True):
        for chunk in range(one.chunks):
            for ours, theirs in zip(one.paths(chunk), two.paths(chunk), strict=True):
                table, rounded = pq.read_table(ours), pq.read_table(theirs)
                assert pa.float16() in (rounded.schema.types[-1], getattr(rounded.schema.types[-1], "value_type", None))
                assert rounded.cast(table.schema).select(["key", "status"]).equals(table.select(["key", "status"]))
                for name in table.column_names[2:]:
                    np.testing.assert_allclose(matrix(rounded[name]), matrix(table[name]), rtol=5e-4, atol=1e-7)


def test_target_and_control_are_one_pass(folder: Path) -> None:
    """The images are decoded once for both, and their views are made once."""
    audited = ("target-member", "target-nonmember")
    jobs = [job for job in planned(config_with(), str(folder)) if job.query.roles == audited]
    assert {job.encoder for job in jobs} == {"target", "shadow"}
    encode = EncodeChunks()
    receipts = encoded(jobs, encode)
    assert (total(receipts, "decodes"), total(receipts, "rows")) == (120, 240)
    (group,) = encode.groups.values()
    names = {f"{name} at epoch {epoch}" for name in ("target", "shadow") for epoch in (1, 3)}
    assert set(group.extractor.encoders) == names


def test_encoders_that_do_not_fit_together_are_asked_one_after_another(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "roomy")
    small = EncodeChunks()
    small.encoders.budget = 1
    receipts = encoded(planned(config_with(), str(folder)), small)
    assert len(small.encoders.kept) == 2  # the checkpoints of one encoder
    encoded(planned(config_with(), str(tmp_path / "roomy")), EncodeChunks())
    ours, theirs = contents(folder), contents(tmp_path / "roomy")
    assert ours.keys() == theirs.keys()
    assert all(table.equals(theirs[name]) for name, table in ours.items())
    assert total(receipts, "decodes") == total(receipts, "rows")


def test_a_job_on_whose_chunk_workers_died_is_asked_alone(folder: Path, tmp_path: Path) -> None:
    """The others of its row count no death of it, and it is not asked again if it was committed."""
    shutil.copytree(folder, tmp_path / "calm")
    jobs = planned(config_with(), str(folder))
    suspect = next(job for job in jobs if job.encoder == "target" and job.chunks > 1)
    for number in (1, 2):
        storage.write_atomic(marker_path(suspect, 0, number, QUERYING), b"10 now")
    receipts = encoded(jobs, EncodeChunks())
    encoded(planned(config_with(), str(tmp_path / "calm")), EncodeChunks())
    ours, theirs = contents(folder), contents(tmp_path / "calm")
    assert ours.keys() == theirs.keys()
    for name, table in theirs.items():
        assert [table[column].equals(ours[name][column]) for column in ("key", "status")] == [True, True]
        for column in table.column_names[2:]:
            np.testing.assert_allclose(table[column].to_pylist(), ours[name][column].to_pylist(), atol=1e-5)
    assert total(receipts, "rows") == sum(job.selection.count for job in jobs)
    assert begun(*markers_of(suspect))[marker_path(suspect, 0, 1, QUERYING).rpartition(".")[0]] == (2, 1)
    assert lost_queries(*markers_of(suspect)) == 10 + suspect.queries_of(suspect.size(0))
    assert lost_queries(*markers_of(next(job for job in jobs if job.encoder == "shadow"))) == 0
    (row,) = [row for row in rows_of([suspect]) if row["chunk"].to_pylist() == [0]]
    storage.create(marker_path(suspect, 0, 1, QUERYING), b"10 now")  # its receipt never came
    before = storage.stamp(suspect.path(1, 0))
    (again,) = EncodeChunks()(row).to_pylist()
    assert (again["rows"], again["decodes"], storage.stamp(suspect.path(1, 0))) == (suspect.size(0), 0, before)


def test_markers_of_commits_that_a_driver_did_not_live_to_remove_are_no_losses(folder: Path) -> None:
    jobs = planned(config_with(), str(folder))
    encode, rows = EncodeChunks(), rows_of(jobs)
    for row in rows[:3]:
        encode(row)
    lost = rows[3].to_pylist()[0]
    for job in jobs:
        if job.packed() in lost["jobs"]:
            attempts.mark_attempt(job, lost["chunk"], QUERYING)  # a worker that went no further
    places = set(map(markers_of, jobs))
    before = sum(lost_queries(*place) for place in places)
    settle(looked_up(jobs))
    after = sum(lost_queries(*place) for place in places)
    assert 0 < after < before
    assert sum(len(begun(*place)) for place in places) == len(lost["jobs"])


def test_a_chunk_costs_an_object_store_two_requests(folder: Path, s3: str) -> None:
    place = f"{s3}/together"
    for path in storage.list_files(str(folder)):
        storage.copy(path, f"{place}{path.removeprefix(str(folder))}")
    config = parse(LAST | {"queries": {"views": 2, "chunk": 8}}, "small.yaml")
    jobs = planned(config, place)
    encode, rows = EncodeChunks(), rows_of(jobs)
    first = encode(rows[0]).to_pylist()  # loads the encoders
    S3_REQUESTS.clear()
    receipts = [receipt for row in rows[1:] for receipt in encode(row).to_pylist()]
    asking = [request for request in S3_REQUESTS if "/encoders/" not in request]
    many.remove_files([marker for receipt in first + receipts for marker in receipt["markers"]])
    removal = len(S3_REQUESTS) - len(asking)
    chunks = len(receipts)
    assert chunks > 20
    assert len(asking) == sum(1 + len(job.query.epochs) for job in jobs for _ in range(job.chunks)) - sum(
        2 for _ in first
    )
    assert (len(asking) + removal) / chunks < 2.1
    assert not [job for job in jobs if storage.list_files(attempts.markers_folder(*markers_of(job), QUERYING))]
