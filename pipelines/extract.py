"""Query encoders for membership features with Ray Data: reader tasks feed encoder actors, chunk by chunk.

A reader streams one shard and emits one row per chunk of encoded images; an encoder actor decodes, makes the
views, runs the encoder and commits one Parquet file per chunk and checkpoint; only a receipt goes on. The
committed files are the truth: names are a function of the work, so a repeated chunk overwrites itself and a
resumed run reads only what is missing. Chunks of a finished shard are compacted into one file.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import torch

from mi_core.augmentations import AUGMENTATIONS
from mi_core.checks import ConfigError, NumericError, ShapeError
from mi_core.encoders.checkpoint import Encoder
from mi_core.encoders.folding import for_queries
from mi_core.extraction import Extractor, Seconds
from mi_core.images import Decoder, ImageError, decode
from mi_core.memory import keep_freed_memory
from mi_core.streams import stream_keys
from pipelines import ledger, preflight, storage
from pipelines.artifacts import RunFolder, SeedFolder
from pipelines.console import meter, say
from pipelines.encoders import describe
from pipelines.errors import UserError
from pipelines.layers import inherit_layers, layers_path
from pipelines.methods import build
from pipelines.readers import ReadOrder, compact, read_chunks
from pipelines.shard_jobs import (
    ATTEMPTS,
    ShardJob,
    rejected_samples,
    remaining,
    sample_table,
    shard_jobs,
    share_features,
)
from pipelines.splits import Splits
from pipelines.telemetry import STEPS, Telemetry

if TYPE_CHECKING:
    from pipelines.config import Run, RunConfig


READERS_PER_ACTOR = 2
SHARES = 8  # jobs served by one pass over a shard, at most: each holds a chunk of images in memory
COMPACTED = 32  # shards per compaction task


@dataclass
class Throughput:
    """Counts and seconds of an extraction, summed over actors."""

    images: int = 0
    views: int = 0
    rejected: int = 0
    wall: float = 0.0
    decode: float = 0.0
    augment: float = 0.0
    forward: float = 0.0
    features: float = 0.0
    commit: float = 0.0

    def add(self, receipt: Mapping[str, Any]) -> None:
        """Count one committed chunk."""
        self.images += receipt["rows"]
        self.rejected += receipt["rejected"]
        self.views += receipt["queries"]
        for name in STEPS:
            setattr(self, name, getattr(self, name) + receipt[name])


def run(runs: Sequence[Run]) -> None:
    """Compute every feature that the attacks of some runs need and that is not committed yet.

    What two runs have in common is queried once: the first gets it, the others a copy.

    Raises:
        UserError: an encoder returned NaN or another width (the sample is named), a shard could not be read
            any more, more samples than allowed were rejected, or the queries exceed the budget.
    """
    plans = {path: storage.read_bytes(path) if storage.exists(path) else None for path in _plans(runs)}
    jobs, first = plan(runs)
    todo = [left for job in first.values() if (left := remaining(job)) is not None]
    try:
        attempts = ledger.attempts(runs, list(first.values()), todo)
    except UserError:
        for path, content in plans.items():  # a plan that is not paid for is not kept
            storage.remove(path) if content is None else storage.write_atomic(path, content)
        raise
    todo = _counted(todo, attempts)
    if len(todo) < len(first):
        say("extract", f"{len(first) - len(todo)} of {len(first)} shards done before")
    config, folder = runs[0]
    if todo:
        preflight.run(runs)
        throughput = _stream(todo, config)
        folder.append_manifest("extraction", asdict(throughput))
        _compact(todo, config)
        rate = throughput.images / throughput.wall
        say("extract", f"{throughput.images} images, {throughput.views} queries, {rate:.0f} images/s")
    for job in jobs:
        share_features(first[job.identity], job)
    for config, folder in runs:
        _account(config, folder)


def plan(runs: Sequence[Run]) -> tuple[list[ShardJob], dict[str, ShardJob]]:
    """Plan what some runs ask: the jobs of all of them, and by identity those that remain when each is done once."""
    jobs: list[ShardJob] = []
    for number, (config, folder) in enumerate(runs):
        for seed in config.seeds:
            others = [before.seed(seed) for of_run, before in runs[:number] if seed in of_run.seeds]
            inherit_layers(folder.seed(seed), others, list(config.encoders))
            jobs += [
                job for demand in config.demands() for job in shard_jobs(demand, config, folder.seed(seed), plan=True)
            ]
    first: dict[str, ShardJob] = {}
    for job in jobs:
        first[job.identity] = job.joined(first.get(job.identity))
    return jobs, first


def _plans(runs: Sequence[Run]) -> list[str]:
    return [
        layers_path(folder.seed(seed), encoder)
        for config, folder in runs
        for seed in config.seeds
        for encoder in config.encoders
    ]


def _counted(jobs: Sequence[ShardJob], attempts: int) -> list[ShardJob]:
    """The jobs with what was begun of them before, and how often a chunk may be begun from now on."""
    before = {place: ledger.begun(*place) for place in {(job.folder, job.layer.encoder) for job in jobs}}
    return [replace(job, attempts=attempts, begun=job.counted(before[job.folder, job.layer.encoder])) for job in jobs]


def _stream(jobs: list[ShardJob], config: RunConfig) -> Throughput:
    import ray
    from ray.data import ActorPoolStrategy, DataContext, TaskPoolStrategy

    context = DataContext.get_current()
    context.target_max_block_size = 1  # every chunk is a block of its own and flows at once
    context.execution_options.preserve_order = False
    context.print_on_execution_start = False
    context.enable_progress_bars = False
    context.execution_no_progress_timeout_s = -1  # a slow chunk is not a dead one
    resources = config.resources
    chunks = sum(job.chunks - len(job.skip) for job in jobs)
    actors = min(resources.encoder_actors, max(1, chunks))
    rows = [{"order": pickle.dumps(order)} for order in _orders(jobs)]
    items = ray.data.from_items(rows, override_num_blocks=len(rows))
    receipts = items.map_batches(
        read_chunks,
        batch_size=1,
        batch_format="pyarrow",
        compute=TaskPoolStrategy(size=min(len(rows), READERS_PER_ACTOR * actors)),  # more would only wait
        num_cpus=resources.reader_cpus,
    ).map_batches(
        EncodeChunks,
        fn_constructor_args=(config.name,),
        batch_size=1,
        batch_format="pyarrow",
        compute=ActorPoolStrategy(size=actors),
        num_cpus=resources.actor_cpus,
        num_gpus=resources.gpus_per_actor,
    )
    total = Throughput()
    started = time.perf_counter()
    images = sum(len(job.wanted) - len(job.skip) * job.chunk for job in jobs)
    with meter("extract", "querying encoders", images, "images") as done:
        for batch in receipts.iter_batches(batch_size=None, batch_format="pyarrow"):
            for receipt in batch.to_pylist():
                if receipt["error"]:
                    raise UserError(receipt["error"])
                total.add(receipt)
            done(total.images)
    total.wall = time.perf_counter() - started
    return total


def _orders(jobs: list[ShardJob]) -> Iterator[ReadOrder]:
    """Each shard once for several jobs: reading a shard costs the same however few of its samples are wanted."""
    by_shard: dict[tuple[str, str, str], list[ShardJob]] = {}
    for job in jobs:
        by_shard.setdefault((job.source, job.reader.model_dump_json(), job.item.name), []).append(job)
    for same in by_shard.values():
        for start in range(0, len(same), SHARES):
            first = same[start]
            shares = tuple(job.share() for job in same[start : start + SHARES])
            yield ReadOrder(first.source, first.reader, first.item, shares)


class EncodeChunks:
    """The actor: holds encoders, turns chunks of encoded images into committed feature files.

    Args:
        run: name of the run, under which Ray's metrics show what the actor does; None: they show nothing.
    """

    def __init__(self, run: str | None = None) -> None:
        self.telemetry = None if run is None else Telemetry(run)
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        if self.device.type == "cpu":
            torch.set_num_threads(1)
            keep_freed_memory()
        self.extractors: dict[str, Extractor] = {}

    def __call__(self, batch: pa.Table) -> pa.Table:
        """Encode and commit the chunk of one row of `read_chunks`; returns its receipt, also of one row."""
        row = batch.to_pylist()[0]
        receipt: dict[str, Any] = {"rows": 0, "rejected": 0, "queries": 0}
        receipt |= dict.fromkeys(STEPS, 0.0)
        receipt["error"] = row["error"]
        if not row["error"]:
            try:
                job: ShardJob = pickle.loads(row["job"])
                receipt |= self._encode(job, row)
                if self.telemetry is not None:
                    self.telemetry.committed(job.layer.encoder, receipt)
            except (
                ConfigError,
                NumericError,
                ShapeError,
            ) as error:  # stop and name the sample
                receipt["error"] = str(error)
        return pa.table({name: [value] for name, value in receipt.items()})

    def _encode(self, job: ShardJob, row: Mapping[str, Any]) -> dict[str, Any]:
        chunk, keys, images = row["chunk"], row["keys"], row["images"]
        started = time.perf_counter()
        decoded: list[np.ndarray] = []
        if _begin_attempt(job, chunk):
            status, decoded = _decode(images, job.decoder)
        else:
            status = ["crashed: the worker died on this chunk"] * len(keys)
        seconds = {"decode": time.perf_counter() - started}
        good = [key for key, state in zip(keys, status, strict=True) if state == "ok"]
        extractor = self._extractor(job)
        extractor.seconds = Seconds()
        columns: dict[str, dict[str, np.ndarray]] = {_named(job, epoch): {} for epoch in job.layer.epochs}
        if good:
            columns = extractor(
                torch.from_numpy(np.stack(decoded)),
                stream_keys(job.folder.seed, "query", job.source, good),
                [f"{job.source}/{key}" for key in good],
                [text for text, state in zip(row["captions"], status, strict=True) if state == "ok"]
                if row["captions"]
                else None,
                None if job.labels is None else [job.labels[key] for key in good],
            )
        seconds |= asdict(extractor.seconds)
        started = time.perf_counter()
        for epoch in job.layer.epochs:
            storage.write_table(job.path(epoch, chunk), sample_table(keys, status, columns[_named(job, epoch)]))
        seconds["commit"] = time.perf_counter() - started
        storage.remove(job.attempt(chunk, 1))  # one attempt is what it takes; those that stay were lost
        return {"rows": len(keys), "rejected": len(keys) - len(good), "queries": job.queries_of(len(good))} | seconds

    def _extractor(self, job: ShardJob) -> Extractor:
        name = f"{job.folder.path}/{job.layer.encoder}/{job.layer.tag}"
        if name not in self.extractors:
            self.extractors.clear()  # one layer's checkpoints at a time in memory
            layer = job.layer
            trained = describe(job.folder, layer.encoder)
            self.extractors[name] = Extractor(
                {_named(job, epoch): for_queries(trained.load(epoch), self.device) for epoch in layer.epochs},
                layer.plan(),
                build(AUGMENTATIONS[layer.recipe.name], layer.recipe.settings),
                self.device,
                None if layer.crafter is None else self._last(job.folder, layer.crafter),
            )
        return self.extractors[name]

    def _last(self, folder: SeedFolder, name: str) -> Encoder:
        """An encoder with its last weights."""
        found = describe(folder, name)
        return for_queries(found.load(found.epochs[-1]), self.device)


def _named(job: ShardJob, epoch: int) -> str:
    """A checkpoint as errors call it."""
    return f"{job.layer.encoder} at epoch {epoch}"


def _begin_attempt(job: ShardJob, chunk: int) -> bool:
    """Note an attempt at a chunk; False when it has already killed its worker as often as it may be tried."""
    for number in range(1, min(ATTEMPTS, job.begun.get(chunk, 0) + job.attempts) + 1):
        marker = job.attempt(chunk, number)
        if not storage.exists(marker):
            storage.write_atomic(marker, str(job.queries_of(job.size(chunk))).encode())
            return True
    return False


def _decode(images: list[bytes], decoder: Decoder) -> tuple[list[str], list[np.ndarray]]:
    """Status of every image and the pixels (C, S, S) of those that decode."""
    status, decoded = [], []
    for data in images:
        try:
            decoded.append(decode(data, decoder))
            status.append("ok")
        except ImageError as error:
            status.append(f"undecodable: {error}")
    return status, decoded


def _compact(jobs: list[ShardJob], config: RunConfig) -> None:
    import ray

    remote = ray.remote(num_cpus=config.resources.reader_cpus)(compact)
    work = [job.compaction() for job in jobs]
    ray.get([remote.remote(work[start : start + COMPACTED]) for start in range(0, len(work), COMPACTED)])


def _account(config: RunConfig, folder: RunFolder) -> None:
    """Raise when too many samples were rejected, now or before."""
    roles = {role for demand in config.demands() for role in demand.needs}
    asked = len({name for seed in config.seeds for name in Splits.load(folder.seed(seed).path).ids(roles)})
    found = [bad for seed in config.seeds for bad in rejected_samples(config, folder.seed(seed))]
    rejected = len({(bad["source"], bad["key"]) for bad in found})
    if rejected > config.data.max_rejected * asked:
        first = found[0]
        raise UserError(
            f"{rejected} of {asked} samples could not be queried, more than data.max_rejected = "
            f"{config.data.max_rejected:.2%}; first {first['source']}/{first['key']}: {first['reason']}"
        )


if __name__ == "__main__":
    from pipelines.cli import main

    main("extract")
