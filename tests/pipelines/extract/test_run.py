"""Extraction: the same features for any number of workers and batch, after a kill, and with what is wrong told."""

from __future__ import annotations

import pickle
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from safetensors.numpy import load_file, save_file

from mi_core.augmentations import AUGMENTATIONS
from mi_core.features.embedding import LpNorm
from mi_core.features.pairwise_similarity import PairwiseSimilarity
from mi_core.images import Decoder, encode_png
from mi_core.querying.extractor import Extractor
from mi_core.querying.plan import QueryPlan
from mi_core.streams import pixel_streams
from pipelines.audit import run as audit
from pipelines.config.run_config import RunConfig
from pipelines.config.sections.parameters import build
from pipelines.config.sections.sources import SourceConfig
from pipelines.data.draw.images import load_images
from pipelines.data.draw.splits import Splits
from pipelines.data.plans import plan_of
from pipelines.data.read.sources import Source
from pipelines.encoders.stored import describe
from pipelines.errors import UserError
from pipelines.extract.actor import attempts
from pipelines.extract.actor.asking import commit
from pipelines.extract.actor.attempts import marker_path
from pipelines.extract.division.jobs import orders_of, unpacked
from pipelines.extract.division.readers import ReadOrder, Selection, Share, read_chunks
from pipelines.extract.features import rejected_samples
from pipelines.files import storage
from pipelines.plan.load import parse
from pipelines.run.folder import RunFolder
from pipelines.run.registration import registered_nonce
from tests.conftest import background, config_with, small_config, wait_until
from tests.pipelines import staged
from tests.pipelines.columns import columns, seed_0
from tests.pipelines.planned import jobs_of
from tests.pipelines.tars import image_bytes, shard_bytes, tar_bytes

pytestmark = pytest.mark.ray

ROLES = ("target-member", "target-nonmember")


def features(config: RunConfig, folder: Path, output: str = "projection", epoch: int = 3) -> dict[str, np.ndarray]:
    place = RunFolder(str(folder)).seed(0)
    found = columns(config, place, "target", epoch, output, [PairwiseSimilarity(), LpNorm()], ROLES)
    return {"ids": found.ids, **found.values}


def rejected_of(config: RunConfig, folder: Path) -> list[dict[str, str]]:
    """Samples of the first seed that could not be queried."""
    return rejected_samples(*plan_of(config, seed_0(folder)))


def extraction(folder: Path, config: RunConfig) -> list[dict[str, Any]]:
    audit.run(config, str(folder), last="extract")
    entries: list[dict[str, Any]] = RunFolder(str(folder)).manifest["extraction"]
    return entries


def parquet_contents(folder: Path) -> dict[str, dict[str, list[Any]]]:
    """Every feature file with its rows by key."""
    contents = {}
    for path in sorted((folder / "features").rglob("*.parquet")):
        rows = sorted(pq.read_table(path).to_pylist(), key=lambda row: row["key"])
        contents[str(path.relative_to(folder))] = {name: [row[name] for row in rows] for name in rows[0]}
    return contents


def assert_same(one: dict[str, dict[str, list[Any]]], two: dict[str, dict[str, list[Any]]]) -> None:
    assert list(one) == list(two)
    for name, rows in one.items():
        for column, values in rows.items():
            if column in ("key", "status"):
                assert values == two[name][column]
            else:
                np.testing.assert_allclose(values, two[name][column], atol=1e-5, err_msg=f"{name} {column}")


def test_features_are_opened_from_what_the_passes_recorded(
    finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No source is listed and nothing is planned; a pass without a receipt has not finished."""
    shutil.copytree(finished_run, tmp_path / "run")

    def refuse(self: Source) -> list[Any]:
        raise AssertionError("a source was listed")

    monkeypatch.setattr(Source, "items", refuse)
    store = tmp_path / "run" / "features"
    before = {path: path.read_bytes() for path in store.glob("*.json")}
    assert len(features(config_with(), tmp_path / "run")["ids"]) == 120
    assert rejected_of(config_with(), tmp_path / "run") == []
    assert {path: path.read_bytes() for path in store.glob("*.json")} == before
    for receipt in store.glob("*.files.json"):
        receipt.unlink()
    with pytest.raises(UserError, match=r"features of target at epoch 3 are missing .*; run the extract stage first"):
        features(config_with(), tmp_path / "run")


def test_features_equal_those_of_one_call_without_ray(finished_run: Path) -> None:
    """The whole road over shards, chunks and actors against the plain function on all images at once."""
    config = config_with()
    place = RunFolder(str(finished_run)).seed(0)
    loaded = load_images(config.data, Splits.load(place.path), ROLES)
    ids, images = loaded.ids, loaded.images
    trained = describe(place, "target")
    import torch

    plain = Extractor(
        {"3": trained.load(3)},
        QueryPlan((LpNorm(), PairwiseSimilarity()), ("backbone", "projection"), views=4, batch_views=10_000),
        build(AUGMENTATIONS["simclr"], trained.record.config["augmentation"]),
        torch.device("cpu"),
    )
    shown = torch.from_numpy(images)
    expected = plain(shown, pixel_streams("", 0, "query", shown), ids)["3"]
    for output in ("projection", "backbone"):
        found = features(config, finished_run, output)
        assert found["ids"].tolist() == ids
        for need in ("pairwise:cosine", "norm:2"):
            np.testing.assert_allclose(found[need], expected[f"{output}.{need}"], atol=1e-5)
        assert found["pairwise:cosine"].shape == (120, 6)


def test_batches_chunks_and_workers_do_not_matter(finished_run: Path, folder: Path) -> None:
    resources = {"encoder_actors": 3, "actor_cpus": 0.5}
    config = config_with(queries={"views": 4, "batch_views": 7, "chunk": 11}, resources=resources)
    extraction(folder, config)
    for output in ("projection", "backbone"):
        one, two = features(config_with(), finished_run, output), features(config, folder, output)
        assert one["ids"].tolist() == two["ids"].tolist()
        for need in ("pairwise:cosine", "norm:2"):
            np.testing.assert_allclose(one[need], two[need], atol=1e-5)


def chunk_files(folder: Path) -> list[Path]:
    return list((folder / "features").rglob("*.parquet"))


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc to find processes")
@pytest.mark.slow
def test_a_killed_extraction_continues_and_ends_the_same(finished_run: Path, folder: Path) -> None:
    resources = {**small_config()["resources"], "decode": "fused"}
    config = config_with(queries={"views": 4, "chunk": 4}, resources=resources)
    (folder / "config.yaml").write_text(yaml.safe_dump(config.model_dump(mode="json", by_alias=True)))
    reference = folder.parent / "reference"
    shutil.copytree(folder, reference)
    (whole,) = extraction(reference, config)
    with background("pipelines.extract", str(folder)) as process:
        wait_until(lambda: len(chunk_files(folder)) >= 6, process)
    settled = -1
    while settled != len(chunk_files(folder)):  # workers of a dead driver may finish the chunk they are at
        settled = len(chunk_files(folder))
        time.sleep(3)
    committed = sum(pq.read_table(path).num_rows for path in chunk_files(folder) if "epoch-0001" in str(path))
    partly = len(chunk_files(folder)) - 2 * sum("epoch-0003" in str(path) for path in chunk_files(folder))
    assert 0 < committed < whole["images"]
    resumed = extraction(folder, config)[-1]
    # every committed chunk is skipped; one that had only its first checkpoint written is done again
    assert resumed["images"] == whole["images"] - committed + 4 * partly
    assert_same(parquet_contents(folder), parquet_contents(reference))


def spoil(folder: Path, epoch: int = 3) -> None:
    """Make the target return NaN."""
    path = folder / "seed-0" / "encoders" / "target" / f"epoch-{epoch:04d}.safetensors"
    weights = load_file(path)
    name = next(name for name in weights if name.endswith("weight"))
    weights[name] = np.full_like(weights[name], np.nan)
    save_file(weights, path)


def test_an_encoder_that_returns_nan_stops_the_run_naming_a_sample(folder: Path) -> None:
    spoil(folder)
    with pytest.raises(UserError, match=r"encoder target at epoch 3, \w+: embedding is NaN .* first digits/\d{4}"):
        extraction(folder, config_with())


def test_a_chunk_that_keeps_killing_its_worker_is_given_up_and_listed(folder: Path) -> None:
    """Markers of one session stand there, as after five deaths."""
    config = config_with()
    job = jobs_of(config, folder)[0]
    for number in range(1, 7):
        storage.write_atomic(marker_path(job, 1, str(number), attempts.QUERYING), b"10 then")
    with pytest.raises(UserError, match=r"32 of \d+ samples could not be queried, more than data.max_rejected = 1.00%"):
        staged.query(config, folder)
    with pytest.raises(UserError, match="32 of .*: crashed"):  # nor is a second start a way around
        staged.query(config, folder)
    lenient = config_with(data={**small_config()["data"], "max_rejected": 0.5})
    staged.query(lenient, folder)
    listed = rejected_of(lenient, folder)
    assert len(listed) == 32
    assert {(bad["source"], bad["shard"]) for bad in listed} == {("digits", job.item.name)}
    assert {bad["key"] for bad in listed} < set(job.selection.classes(job.source, job.item.name))
    assert len(features(lenient, folder)["ids"]) == 120 - len({bad["key"] for bad in listed} & keys_of(folder))


@pytest.mark.slow
@pytest.mark.parametrize("decode", ["fused", "apart"])
def test_the_one_sample_that_kills_workers_is_found_and_listed(local_ray: None, tmp_path: Path, decode: str) -> None:
    """A real SIGKILL by an encoder that dies on one image; the other images of its chunk are queried."""
    data = tmp_path / "data.tar"
    data.write_bytes(shard_bytes(range(40)))
    roles = ("target-member", "target-nonmember", "known-member", "known-nonmember")
    config = parse(
        {
            "name": "poison",
            "data": {
                "sources": {"pool": {"kind": "shards", "path": str(data)}},
                "image_size": 8,
                "max_rejected": 0.1,
                "roles": {role: {"from": "pool", "count": 10} for role in roles},
            },
            "encoders": {"target": {"load": "python:tests.pipelines.killer:encode", "trust_code": True}},
            "queries": {"chunk": 16, "outputs": ["backbone"]},
            "attacks": [{"attack": "lpla", "target": "target", "reference": "known"}],
            "resources": {"encoder_actors": 1, "actor_cpus": 0.5, "decode": decode, "decoder_cpus": 0.25},
        },
        "poison.yaml",
    )
    folder = tmp_path / "run"
    audit.run(config, str(folder), last="pretrain")
    members = {f"s{number:04d}.png": image_bytes(number) for number in range(40)}
    members["s0021.png"] = encode_png(np.full((8, 8, 3), 255, dtype=np.uint8))
    data.write_bytes(tar_bytes(members.items()))
    assert extraction(folder, config)[-1]["rejected"] == 1
    # the run drew the nonce: the encoder is not its own
    config = config.with_queries(nonce=registered_nonce(RunFolder(str(folder))))
    place = RunFolder(str(folder)).seed(0)
    (listed,) = rejected_of(config, folder)
    assert (listed["key"], listed["reason"]) == ("s0021", "crashed: the worker died on this sample")
    assert len(columns(config, place, "target", 0, "backbone", [LpNorm()], roles).ids) == 39


def keys_of(folder: Path) -> set[str]:
    return {name.partition("/")[2] for name in Splits.load(str(folder / "seed-0")).ids(ROLES)}


def emitted(path: Path, *wanted: tuple[int, ...], skip: frozenset[int] = frozenset()) -> list[dict[str, Any]]:
    """What a reader emits for one shard of samples s0000, s0001, ...; one share per tuple, called a, b, ..."""
    source = SourceConfig(kind="shards", path=str(path))
    shares = tuple(
        Share(
            (name.encode(),), (skip,), Selection.given_as({f"s{number:04d}": None for number in numbers}), 3, Decoder(8)
        )
        for name, numbers in zip("abc", wanted, strict=False)
    )
    table = pa.table({"order": [pickle.dumps(ReadOrder("pool", source, Source(source).items()[0], shares))]})
    return [row for part in read_chunks(table) for row in part.to_pylist()]


def test_the_row_of_a_chunk_does_not_grow_with_its_shard(folder: Path) -> None:
    """Each row used to carry all keys of its shard: 121 kB for 10,000 of them."""
    jobs = jobs_of(config_with(), folder)
    few, many = (
        replace(jobs[0], selection=Selection.given_as({f"s{n:07d}": n for n in range(count)}))
        for count in (100, 10_000)
    )
    rows = [len(job.packed()) for job in (few, many)]
    assert rows[1] <= rows[0] + 16
    assert rows[1] < 2000
    for job in (few, many):
        row = unpacked(job.packed())
        assert [row.path(1, 0), row.chunks, row.size(0)] == [job.path(1, 0), job.chunks, job.size(0)]
        assert (row.selection.given, row.data) == (None, None)


def test_work_orders_hold_no_samples(folder: Path) -> None:
    """The driver holds orders for all shards at once; readers find the samples from the roles."""
    jobs = jobs_of(config_with(), folder)
    splits = Splits.load(str(folder / "seed-0"))
    for order in orders_of(jobs):
        assert all(share.selection.given is None for share in order.shares)
        for share in order.shares:
            for roles in {unpacked(job).query.roles for job in share.jobs}:
                keys = splits.keys(order.source, order.item.name, roles)
                assert list(share.selection.classes(order.source, order.item.name)) == keys
                assert share.selection.count == len(keys)


def test_a_reader_emits_chunks_of_wanted_samples_and_skips_done_ones(tmp_path: Path) -> None:
    (tmp_path / "pool.tar").write_bytes(shard_bytes(range(20)))
    wanted = (1, 2, 4, 5, 6, 9, 15)
    rows = emitted(tmp_path / "pool.tar", wanted)
    assert [row["chunk"] for row in rows] == [0, 1, 2]
    assert [key for row in rows for key in row["keys"]] == [f"s{number:04d}" for number in wanted]
    assert rows[2]["images"] == [image_bytes(15)]
    assert emitted(tmp_path / "pool.tar", wanted, skip=frozenset({1})) == [rows[0], rows[2]]


def test_a_reader_serves_several_jobs_in_one_pass_as_it_serves_each(tmp_path: Path) -> None:
    (tmp_path / "pool.tar").write_bytes(shard_bytes(range(20)))
    one, two = (0, 3, 4, 5, 19), (3, 4, 7, 8)
    together = emitted(tmp_path / "pool.tar", one, two)
    for name, wanted in ((b"a", one), (b"b", two)):
        mine = [{**row, "jobs": [b"a"]} for row in together if row["jobs"] == [name]]
        assert mine == emitted(tmp_path / "pool.tar", wanted)


def test_a_reader_tells_when_a_shard_shrank_or_broke(tmp_path: Path) -> None:
    wanted = (1, 2, 4, 25)
    (tmp_path / "pool.tar").write_bytes(shard_bytes(range(20)))
    rows = emitted(tmp_path / "pool.tar", wanted)
    assert rows[0]["error"] == ""
    assert rows[-1]["error"] == "pool, shard pool: 3 of 4 samples found; it changed since the roles were drawn"
    (tmp_path / "pool.tar").write_bytes(shard_bytes(range(30))[:8000])
    rows = emitted(tmp_path / "pool.tar", wanted)
    assert rows[-1]["error"].startswith("pool, shard pool: damaged at byte")


def test_jobs_of_the_same_samples_share_a_chunk_unless_one_has_done_it(tmp_path: Path) -> None:
    (tmp_path / "pool.tar").write_bytes(shard_bytes(range(20)))
    source = SourceConfig(kind="shards", path=str(tmp_path / "pool.tar"))
    selection = Selection.given_as({f"s{number:04d}": None for number in range(8)})
    share = Share((b"a", b"b"), (frozenset({0, 1}), frozenset({1})), selection, 3, Decoder(8))
    order = ReadOrder("pool", source, Source(source).items()[0], (share,))
    rows = [row for part in read_chunks(pa.table({"order": [pickle.dumps(order)]})) for row in part.to_pylist()]
    assert [(row["chunk"], row["jobs"]) for row in rows] == [(0, [b"b"]), (2, [b"a", b"b"])]


def test_a_commit_lists_what_was_rejected_and_keeps_what_is_wanted(folder: Path) -> None:
    job = jobs_of(config_with(), folder)[0]
    kept = sorted(job.query.columns)[0]
    values = {epoch: {kept: np.array([1.0, 2.0]), "x.norm:2": np.array([3.0, 4.0])} for epoch in job.query.epochs}
    commit(job, 1, ["a", "c", "b"], ["ok", "undecodable: cut", "ok"], values)
    for path in job.paths(1):
        assert storage.read_table(path).to_pydict() == {
            "key": ["a", "c", "b"],
            "status": ["ok", "undecodable: cut", "ok"],
            kept: [1.0, None, 2.0],
        }
    assert storage.read_json(job.rejected_path(1)) == [
        {"source": "digits", "shard": job.item.name, "key": "c", "reason": "undecodable: cut"}
    ]
    commit(job, 0, ["d"], ["ok"], columns={epoch: {kept: np.array([1.0])} for epoch in job.query.epochs})
    assert not storage.exists(job.rejected_path(0))
