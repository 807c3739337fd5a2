"""Stream shards through readers and encoder actors with Ray Data: one pipeline for all shards, actors live throughout.

Chunk files are the feature files, so no step follows that would have to wait for a shard, or for all of them.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from pipelines.config.sections.limits import ResourcesConfig
from pipelines.console import count_of, meter, say
from pipelines.encoders.access import Access
from pipelines.errors import UserError
from pipelines.extract import preflight
from pipelines.extract.actor.attempts import Unpaid
from pipelines.extract.actor.worker import STEPS, EncodeChunks, decode_chunks
from pipelines.extract.division.jobs import ShardJob, orders_of
from pipelines.extract.division.readers import Kept, chunks_of, read_chunks
from pipelines.files import many
from pipelines.run.points import Run
from pipelines.run.ray_session import TASK_MEMORY, borne, decoding_threads, encoder_actors


@dataclass
class Throughput:
    """Counts and seconds of an extraction, summed over actors.

    ``images`` counts an image for every encoder that it was shown to; ``decodes`` counts how often one was decoded.
    ``builds`` counts how often an actor loaded an encoder: the number of actors times that of encoders, at best.
    ``steady`` is the rate in images per second while all actors work: the sum of their rates, each from its first
    chunk on, until the first actor has nothing left. ``started`` is the seconds until all have committed a chunk.
    Both are 0 where an actor had fewer than three chunks.
    """

    images: int = 0
    views: int = 0
    rejected: int = 0
    builds: int = 0
    decodes: int = 0
    wall: float = 0.0
    decode: float = 0.0
    augment: float = 0.0
    forward: float = 0.0
    features: float = 0.0
    commit: float = 0.0
    started: float = 0.0
    steady: float = 0.0

    def add(self, receipt: Mapping[str, Any]) -> None:
        """Count one committed chunk of one job."""
        self.images += receipt["rows"]
        self.views += receipt["queries"]
        for name in ("rejected", "builds", "decodes", *STEPS):
            setattr(self, name, getattr(self, name) + receipt[name])


def steady_rate(came: Sequence[Sequence[tuple[float, int]]]) -> tuple[float, float]:
    """The time at which every actor had committed a chunk, and the images per second after it.

    Args:
        came: per actor (second, images) of the chunks it committed.

    Example:
        >>> steady_rate([[(2.0, 10), (3.0, 10), (4.0, 10)], [(5.0, 10), (5.5, 10), (6.0, 10), (9.0, 10)]])
        (5.0, 0.0)
        >>> steady_rate([[(2.0, 10), (3.0, 10), (4.0, 10)], [(2.5, 10), (3.0, 10), (3.5, 10), (9.0, 10)]])
        (2.5, 30.0)
    """
    started, end = max(chunks[0][0] for chunks in came), min(chunks[-1][0] for chunks in came)
    rate = 0.0
    for chunks in map(sorted, came):
        inside = [(second, count) for second, count in chunks if second <= end]
        if len(inside) < 3:
            return round(started, 3), 0.0
        rate += sum(count for _, count in inside[1:]) / (inside[-1][0] - inside[0][0])
    return round(started, 3), round(rate, 2)


READERS_PER_ACTOR = 2
BLOCKS = 64  # of orders for each reader, at most: a block costs the driver milliseconds and is read by one task
CALLS = 2  # chunks at work in an actor: one commits, or is decoded, while the other is asked for
MARKERS = 1000  # removed at once: what an object store takes in one request


def stream(
    jobs: list[ShardJob], resources: ResourcesConfig, access: Access | None, *, name: str, compile: bool
) -> Throughput:
    """Query what some jobs have left, and commit it chunk by chunk.

    Args:
        jobs: those that have something left.
        resources: of the run.
        access: to encoders behind an API.
        name: of the run, for its metrics.
        compile: whether encoders are compiled.

    Raises:
        UserError: an encoder or a shard failed, or there is no room; what was committed is kept.
        Unpaid: workers were lost, and the budget bears no further attempt.
    """
    import ray
    from ray.data import ActorPoolStrategy, DataContext, TaskPoolStrategy

    context = DataContext.get_current()
    context.target_max_block_size = 1  # every chunk is a block of its own and flows at once
    context.execution_options.preserve_order = False
    context.print_on_execution_start = False
    context.enable_progress_bars = False
    context.execution_no_progress_timeout_s = -1  # a slow chunk is not a dead one
    actors = min(encoder_actors(resources), max(1, sum(job.chunks - len(job.skip) for job in jobs)))
    calls = CALLS if access is None else 1  # answers that cost money are not asked for ahead
    decoders = resources.decoders(actors, ray.cluster_resources())
    rows = [{"order": pickle.dumps(order)} for order in orders_of(jobs)]
    readers = min(len(rows), READERS_PER_ACTOR * actors)  # more would only wait
    data = ray.data.from_items(rows, override_num_blocks=min(len(rows), BLOCKS * readers)).map_batches(
        read_chunks,
        batch_size=1,
        batch_format="pyarrow",
        compute=TaskPoolStrategy(size=readers),
        num_cpus=resources.reader_cpus,
        memory=borne(TASK_MEMORY // 2),
    )
    del rows
    if decoders:
        data = data.map_batches(
            decode_chunks,
            batch_size=1,
            batch_format="pyarrow",
            compute=TaskPoolStrategy(size=decoders),
            num_cpus=resources.decoder_cpus,
            memory=borne(TASK_MEMORY // 2),
        )
    receipts = data.map_batches(
        EncodeChunks,
        fn_constructor_args=(name, decoding_threads(resources), access, resources.gpus_per_actor),
        fn_constructor_kwargs={"compile": compile},
        batch_size=1,
        batch_format="pyarrow",
        compute=ActorPoolStrategy(
            size=actors,
            max_concurrent_calls_per_actor=calls,
            max_tasks_in_flight_per_actor=calls + 1,
            enable_true_multi_threading=True,
        ),
        num_cpus=resources.actor_cpus,
        memory=borne(TASK_MEMORY),
        num_gpus=resources.gpus_per_actor,
    )
    total = Throughput()
    started = time.time()
    images = sum(job.images for job in jobs)
    came: dict[str, list[tuple[float, int]]] = {}
    with meter("querying encoders", images, "images") as done, removed_in_bulk() as taken:
        for batch in receipts.iter_batches(batch_size=None, batch_format="pyarrow"):
            for receipt in batch.to_pylist():
                if receipt["error"]:
                    if access is not None:
                        access.stop()  # before the actors end, with the answers that they wait for
                    raise (Unpaid if receipt["unpaid"] else UserError)(receipt["error"])
                total.add(receipt)
                taken.extend(receipt["markers"])
                came.setdefault(receipt["actor"], []).append((receipt["ended"] - started, receipt["rows"]))
            done(total.images)
            if len(taken) >= MARKERS:
                many.remove_files(taken)
                taken.clear()
    total.wall = time.time() - started
    if len(came) == actors:
        total.started, total.steady = steady_rate(list(came.values()))
    return total


@contextmanager
def removed_in_bulk() -> Iterator[list[str]]:
    """A list of files; those in it when the block ends are removed."""
    files: list[str] = []
    try:
        yield files
    finally:
        many.remove_files(files)


@dataclass
class InRay:
    """The cluster; ``runs``: a run, whose resources and manifest are used, and the points of its sweeps."""

    runs: list[Run]
    access: Access | None

    def answer(self, jobs: list[ShardJob]) -> None:
        """Stream the shards through readers and encoder actors; before, check nodes and encoders."""
        config, folder = self.runs[0]
        preflight.run(self.runs)
        throughput = stream(jobs, config.resources, self.access, name=config.name, compile=config.queries.compile)
        precision = sorted({job.query.protocol.precision for job in jobs})
        folder.append_manifest("extraction", asdict(throughput) | {"precision": precision})
        rate = throughput.images / throughput.wall
        encoders = len({job.query.encoder_key for job in jobs})
        asked = count_of(throughput.images, "image", "images") + f" for {encoders} encoders together" * (encoders > 1)
        say("extract", f"{asked}, {throughput.views} queries, {rate:.0f} images/s")


@dataclass
class InProcess:
    """This process: a trial of a search is itself a Ray task.

    Args:
        encode: the encoder actor, which may remember answers of backbones.
        kept: samples that were read before.
    """

    encode: EncodeChunks
    kept: Kept

    def answer(self, jobs: list[ShardJob]) -> None:
        """Query shard after shard."""
        with removed_in_bulk() as taken:
            for order in orders_of(jobs):
                for row in chunks_of(order, self.kept.reader(order.reader)):
                    for receipt in self.encode(row).to_pylist():
                        if receipt["error"]:
                            raise UserError(receipt["error"])
                        taken.extend(receipt["markers"])
