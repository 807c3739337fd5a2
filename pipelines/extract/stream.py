"""Stream shards through readers and encoder actors with Ray Data: one pipeline for all shards, actors live throughout.

Chunk files are the feature files, so no step follows that would have to wait for a shard, or for all of them.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator
from contextlib import contextmanager

from pipelines.config.sections.limits import ResourcesConfig
from pipelines.console import meter
from pipelines.encoders.access import Access
from pipelines.errors import UserError
from pipelines.extract.actor.attempts import Unpaid
from pipelines.extract.actor.worker import EncodeChunks, decode_chunks
from pipelines.extract.division.jobs import ShardJob, orders_of
from pipelines.extract.division.readers import read_chunks
from pipelines.extract.throughput import Throughput, steady_rate
from pipelines.files import many
from pipelines.run.ray_session import TASK_MEMORY, borne, decoding_threads, encoder_actors

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
    chunks = sum(job.chunks - len(job.skip) for job in jobs)
    actors = min(encoder_actors(resources), max(1, chunks))
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
