"""What querying and training take here: a few batches of images, timed in the very processes that a run would use.

An encoder is timed with fresh weights where it is still to be trained: speed does not depend on weights. Encoders of
the same architecture that are asked the same are timed once.
"""

from __future__ import annotations

import math
import pickle
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import pyarrow as pa
import torch

from mi_core.augmentations.views import clean
from mi_core.costs import Quantity, rate
from mi_core.encoders.folding import for_queries
from mi_core.encoders.foreign import CODE
from mi_core.images import decode
from pipelines.config.data import DataConfig
from pipelines.config.limits import ResourcesConfig
from pipelines.data.captions import made_caption
from pipelines.data.sources import Source
from pipelines.encoders.record import EncoderRecord
from pipelines.encoders.stored import describe
from pipelines.errors import UserError
from pipelines.estimate.outline import lay_weights
from pipelines.estimate.source_samples import SHARDS, Samples, ShardSample
from pipelines.extract.jobs import ShardJob
from pipelines.extract.readers import ReadOrder, read_chunks
from pipelines.extract.worker import EncodeChunks
from pipelines.files import storage
from pipelines.files.digest import digest
from pipelines.run.ray_session import encoder_actors

SECONDS = 20.0  # for one kind of queries over all its shards, or of training
LEAST, MOST = 3, 12  # timed chunks of a shard
PER_IMAGE = ("decode", "augment")
PER_CHECKPOINT = ("forward", "features", "commit")


@dataclass(frozen=True)
class Chunk:
    """One timed chunk: images, and seconds by step (of one checkpoint)."""

    source: str
    images: int
    seconds: Mapping[str, float]

    def took(self, checkpoints: float) -> float:
        """Seconds that it would have taken with some checkpoints."""
        once = sum(self.seconds[name] for name in PER_IMAGE)
        return once + checkpoints * sum(self.seconds[name] for name in PER_CHECKPOINT)


@dataclass(frozen=True)
class QueryCost:
    """What asking one kind of encoder one kind of queries takes.

    Args:
        chunks: timed ones.
        row_bytes: committed bytes per image and checkpoint.
        file_bytes: committed bytes per file, however few images it holds.
        device: cpu or cuda.
        startup: seconds until an actor had answered its first image.
    """

    chunks: tuple[Chunk, ...]
    row_bytes: Quantity
    file_bytes: float
    device: str
    startup: float

    @property
    def images(self) -> int:
        """Images that were asked about, those of growing batches left out."""
        return sum(chunk.images for chunk in self.chunks)

    @property
    def batch(self) -> int:
        """Images of the largest chunk."""
        return max(chunk.images for chunk in self.chunks)

    def step(self, name: str) -> Quantity:
        """Seconds per image of one step; of those that follow the views, for one checkpoint."""
        return rate([chunk.seconds[name] for chunk in self.chunks], [chunk.images for chunk in self.chunks])

    def per_image(self, source: str, checkpoints: float) -> Quantity:
        """Seconds of an actor per image of a source, over some checkpoints, which share the views."""
        chunks = [chunk for chunk in self.chunks if chunk.source == source]
        return rate([chunk.took(checkpoints) for chunk in chunks], [chunk.images for chunk in chunks])


class Calibrator:
    """The actor: an encoder actor that is fed a few chunks and whose receipts are kept."""

    def __init__(self) -> None:
        self.started = time.perf_counter()
        self.actor = EncodeChunks()
        self.startup = 0.0

    def measure(self, job: ShardJob, keys: Sequence[str], seconds: float) -> dict[str, Any]:
        """Time chunks of growing size, then at least three of the largest that the time allows.

        Args:
            job: reader, item, pass (with one checkpoint), captions and labels of the images.
            keys: images of the item, in its order.
            seconds: to spend, about.

        Raises:
            UserError: the encoder fails on an image.
        """
        began = time.perf_counter()
        if job.labels is not None:
            job = replace(job, labels=self._own_answers(job, keys))
        size = 1
        self._chunk_seconds(job, keys[:1])
        self.startup = self.startup or time.perf_counter() - self.started
        most = max(1, min(job.chunk, len(keys) // LEAST))
        took = self._chunk_seconds(job, keys[:1])  # without the loading of the weights
        while size < most and LEAST * 4 * took < seconds - (time.perf_counter() - began):
            size = min(most, 4 * size)
            took = self._chunk_seconds(job, keys[:size])
        receipts: list[dict[str, Any]] = []
        tables: list[pa.Table] = []
        while len(receipts) < LEAST or (len(receipts) < MOST and time.perf_counter() - began < seconds):
            start = len(receipts) % (len(keys) // size) * size
            job_here, receipt = self._chunk(job, keys[start : start + size])
            receipts.append(receipt)
            if len(tables) < len(keys) // size:  # images seen again would take no more room
                tables.append(storage.read_table(job_here.path(job.query.epochs[-1], 0)))
        return {
            "receipts": receipts,
            "sizes": _stored_sizes(tables),
            "device": self.actor.device.type,
            "startup": self.startup,
        }

    def _chunk(self, job: ShardJob, keys: Sequence[str]) -> tuple[ShardJob, dict[str, Any]]:
        job = replace(job, wanted=tuple(sorted(keys)), chunk=len(keys))
        order = ReadOrder(job.source, job.reader, job.item, (job.share(),))
        (row,) = read_chunks(pa.table({"order": [pickle.dumps(order)]}))
        (receipt,) = self.actor(row).to_pylist()
        if receipt["error"]:
            raise UserError(receipt["error"])
        return job, receipt

    def _chunk_seconds(self, job: ShardJob, keys: Sequence[str]) -> float:
        started = time.perf_counter()
        self._chunk(job, keys)
        return time.perf_counter() - started

    def _own_answers(self, job: ShardJob, keys: Sequence[str]) -> dict[str, int]:
        """The classes that the encoder itself gives: a search for its boundary then does all of its work."""
        found: dict[str, int] = {}
        encoder = for_queries(describe(job.folder, job.encoder).load(job.query.epochs[-1]), self.actor.device)
        for sample in Source(job.reader).read(job.item, set(keys)):
            pixels = torch.from_numpy(decode(sample.image, job.decoder))[None].to(self.actor.device)
            with torch.inference_mode():
                found[sample.key] = int(encoder(clean(pixels))["logits"].argmax())
        return found


def _stored_sizes(tables: Sequence[pa.Table]) -> list[tuple[int, int]]:
    """(rows, bytes as stored) of all of some tables, then of all but each one of up to three parts of them."""
    parts = [tables[start::LEAST] for start in range(min(LEAST, len(tables)))]
    whole = pa.concat_tables(tables)
    others = [[table for part in parts if part is not left for table in part] for left in parts]
    without = [pa.concat_tables([whole.slice(0, 0), *left]) for left in others]
    return [(len(table), len(storage.table_bytes(table))) for table in (whole, *without)]


def query_key(job: ShardJob) -> str:
    """What two jobs share that take the same time per image: architecture, queries and views, not weights."""
    asked = (job.encoder, job.query.asking.crafter)
    kinds = [_architecture(describe(job.folder, name).record) for name in asked if name]
    return digest(asdict(job.query.plan()), asdict(job.query.recipe), kinds)


def _architecture(record: EncoderRecord) -> list[Any]:
    config = record.config
    names = ["backbone", "objective", "parameters", "load", "size", "interpolation"]
    names += ["weights"] if str(config.get("load")).partition(":")[0] in CODE else []
    return [record.channels, record.image_size, *(config.get(name) for name in names)]


@contextmanager
def calibrators(resources: ResourcesConfig) -> Iterator[list[Any]]:
    """As many encoder actors as a run has, up to one per shard that is looked at; they end with the block."""
    import ray

    remote = ray.remote(num_cpus=resources.actor_cpus, num_gpus=resources.gpus_per_actor)(Calibrator)
    actors = [remote.remote() for _ in range(min(encoder_actors(resources), SHARDS))]
    try:
        yield actors
    finally:
        for actor in actors:
            ray.kill(actor)


def time_queries(
    jobs: Sequence[ShardJob], data: DataConfig, samples: Samples, actors: Sequence[Any], seconds: float
) -> QueryCost:
    """Time one kind of queries on a few shards of the sources it reads, side by side.

    Args:
        jobs: of one `query_key`, one per source.
        data: of the run.
        samples: of the sources.
        actors: from `calibrators`.
        seconds: to spend, about, after the processes have started.

    Raises:
        UserError: a source has no usable image in the shards looked at, or the encoder fails on one.
    """
    import ray

    lay_weights(jobs[0])
    each = max(1, SHARDS // len(jobs))
    work = [
        (_on_shard(replace(jobs[0], source=job.source, reader=job.reader), data, shard), list(shard.labels))
        for job in jobs
        for shard in samples.of(job.source, job.reader).usable[:each]
    ]
    turns = math.ceil(len(work) / len(actors))
    pending = [
        actors[number % len(actors)].measure.remote(job, keys, seconds / turns)
        for number, (job, keys) in enumerate(work)
    ]
    found = [(job.source, entry) for (job, _), entry in zip(work, ray.get(pending), strict=True)]
    sizes = [entry["sizes"] for _, entry in found]
    marginal = [(whole[1] - less[1], whole[0] - less[0]) for whole, *others in sizes for less in others]
    row_bytes = rate([size for size, _ in marginal], [rows for _, rows in marginal])
    return QueryCost(
        tuple(
            Chunk(source, receipt["rows"], {name: receipt[name] for name in (*PER_IMAGE, *PER_CHECKPOINT)})
            for source, entry in found
            for receipt in entry["receipts"]
        ),
        row_bytes,
        max(0.0, sum(whole[1] - row_bytes.value * whole[0] for whole, *_ in sizes) / len(sizes)),
        found[0][1]["device"],
        max(entry["startup"] for _, entry in found),
    )


def _on_shard(job: ShardJob, data: DataConfig, shard: ShardSample) -> ShardJob:
    """A job for images of one shard, of one checkpoint."""
    captions = {key: made_caption(data, job.source, key, label) for key, label in shard.labels.items()}
    return replace(
        job,
        item=shard.item,
        query=replace(job.query, epochs=job.query.epochs[-1:]),
        captions=None if job.captions is None else captions,
    )
