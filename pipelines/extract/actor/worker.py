"""Process a chunk of encoded images in a Ray worker: decode it, query the encoders, commit the features.

The encoder actor decodes, or a separate stage does if decoding is the bottleneck: then one 8-bit image per sample
crosses the object store. Views never cross it.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from threading import Condition, Lock
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from mi_core.checks import AnswerError, ConfigError, NumericError, ShapeError
from mi_core.encoders.batch_norm import for_queries
from mi_core.encoders.checkpoint import Encoder
from mi_core.encoders.remembering import Memory, remembering
from mi_core.images import Decoder
from mi_core.runtime import keep_freed_memory, prepare_cuda
from pipelines.encoders.access import Access
from pipelines.encoders.stored import describe
from pipelines.errors import UserError, storage_fault
from pipelines.extract import bank
from pipelines.extract.actor import attempts
from pipelines.extract.actor.asking import (
    CRASHED,
    OK,
    Asked,
    Checkpoint,
    Decoded,
    Group,
    LoadedEncoders,
    PixelsOf,
    Row,
    ask,
    budget_on,
    commit,
    decoded,
    decoded_ahead,
    device_with,
    together,
)
from pipelines.extract.actor.attempts import Attempt, Unpaid
from pipelines.extract.division.jobs import ShardJob, unpacked
from pipelines.files import storage

STEPS = ("decode", "augment", "forward", "features", "commit")
TAGS = ("run", "encoder")
PREFIX = "encoder_audit_"
COUNTERS = {
    "images": "images committed, rejected ones included",
    "rejected": "images that could not be queried",
    "queries": "queries answered by encoders",
    "chunks": "chunks of images committed",
}
SECONDS = "step_seconds"
BUSY = "encoder_busy_share"


class Telemetry:
    """An encoder actor's counters (see `COUNTERS`), seconds by step, and the share of time its encoder is busy.

    Args:
        run: name of the run, a tag of everything.
    """

    def __init__(self, run: str) -> None:
        from ray.util.metrics import Counter, Gauge

        self.run = run
        self.counters = {
            name: Counter(f"{PREFIX}{name}", description=words, tag_keys=TAGS) for name, words in COUNTERS.items()
        }
        self.seconds = Counter(
            f"{PREFIX}{SECONDS}", description="seconds of an encoder actor by step", tag_keys=(*TAGS, "step")
        )
        self.busy = Gauge(
            f"{PREFIX}{BUSY}",
            description="share of the time since the actor's last chunk that was the encoder's forward pass, 0 to 1",
            tag_keys=TAGS,
        )
        self.last = time.monotonic()

    def committed(self, receipts: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
        """Count a committed chunk: encoders that were asked for it together, each with its receipt."""
        now = time.monotonic()
        for encoder, receipt in receipts:
            tags = {"run": self.run, "encoder": encoder}
            amounts = {name: receipt[name] for name in ("rejected", "queries")}
            for name, amount in (amounts | {"images": receipt["rows"], "chunks": 1}).items():
                if amount:  # a counter takes no 0
                    self.counters[name].inc(amount, tags)
            for step in STEPS:
                if receipt[step] > 0:
                    self.seconds.inc(receipt[step], {**tags, "step": step})
            self.busy.set(min(1.0, receipt["forward"] / max(1e-9, now - self.last)), tags)
        self.last = now


class Turns:
    """Who may do what in an actor.

    ``asking`` is held by the one call that uses the encoders, ``committing`` by the one that writes files.
    """

    def __init__(self) -> None:
        self.asking, self.committing = Lock(), Lock()
        self.changed = Condition()
        self.beside = 0
        self.taken = False

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Work beside other calls. A worker that dies in the meantime leaves markers of all of them."""
        with self.changed:
            self.changed.wait_for(lambda: not self.taken)
            self.beside += 1
        try:
            yield
        finally:
            with self.changed:
                self.beside -= 1
                self.changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Work while no other call does, so that a death has one cause."""
        with self.changed:
            self.changed.wait_for(lambda: not self.taken and not self.beside)
            self.taken = True
        try:
            yield
        finally:
            with self.changed:
                self.taken = False
                self.changed.notify_all()


AHEAD = 512  # images that threads decode ahead, at most
COUNTS = ("rows", "rejected", "queries", "builds", "decodes")
RECEIPT = pa.schema(
    [
        ("actor", pa.string()),
        ("error", pa.string()),
        ("unpaid", pa.bool_()),
        *((name, pa.int64()) for name in COUNTS),
        *((name, pa.float64()) for name in STEPS),
        ("markers", pa.list_(pa.string())),
        ("ended", pa.float64()),
    ]
)
"""One row for each job of a chunk.

``unpaid``: the error is `Unpaid`. ``markers``: of attempts that the commit takes; the driver removes them.
"""


def decode_chunks(batch: pa.Table) -> pa.Table:
    """The separate decoding stage: replaces ``images`` in a row of `readers.read_chunks` by ``status``, ``pixels``.

    The first of the jobs that share a chunk counts the attempts at decoding it.
    """
    row = batch.to_pylist()[0]
    started = time.perf_counter()
    images: list[Decoded] = []
    if not row["error"]:
        job = unpacked(row["jobs"][0])
        attempt = Attempt.begin(job, row["chunk"], attempts.DECODING)
        for key, data in zip(row["keys"], row["images"], strict=True):
            images.append(CRASHED if attempt.refuses(key) else decoded(data, job.decoder))
    columns = {name: batch[name] for name in batch.column_names if name != "images"}
    columns["status"] = pa.array([[one if isinstance(one, str) else OK for one in images]], pa.list_(pa.string()))
    pixels = b"".join(one.tobytes() for one in images if not isinstance(one, str))
    columns["pixels"] = pa.array([pixels], pa.large_binary())
    columns["decode"] = pa.array([time.perf_counter() - started])
    return pa.table(columns)


class EncodeChunks:
    """The encoder actor: turns chunks of encoded images, or of pixels, into committed feature files.

    Two calls may overlap: one commits, or begins to decode, while the other asks the encoders.

    Args:
        run: name of the run in Ray's metrics; None: the actor reports no metrics.
        threads: number that decode while the encoder runs on its accelerator; 0: decode before it runs.
        access: to encoders behind an API, if there are any.
        gpus: GPUs that the actor holds; 0: it works on the CPU, also beside a GPU, as its passes were planned.
        memory: backbone outputs, for encoders that share a backbone and get the same views.
        compile: whether encoders are compiled on a GPU.
    """

    def __init__(
        self,
        run: str | None = None,
        threads: int = 0,
        access: Access | None = None,
        gpus: float = 0.0,
        memory: Memory | None = None,
        compile: bool = False,
    ) -> None:
        self.name = uuid.uuid4().hex
        self.memory, self.compile = memory, compile
        self.telemetry = None if run is None else Telemetry(run)
        self.access = access
        self.device = device_with(gpus)
        if self.device.type == "cpu":
            torch.set_num_threads(1)
            keep_freed_memory()
        else:
            prepare_cuda()
            torch.cuda.set_per_process_memory_fraction(min(1.0, gpus))  # actors that share a GPU do not crowd it
        self.pool = ThreadPoolExecutor(threads) if threads else None
        self.encoders = LoadedEncoders(self._load, budget_on(self.device, gpus))
        self.turns = Turns()
        self.told = 0  # builds in the receipts so far
        self.groups: dict[tuple[object, ...], Group] = {}

    def __call__(self, batch: pa.Table) -> pa.Table:
        """Turn the row of a chunk into the rows of its receipts."""
        if self.device.type == "cpu":
            torch.set_num_threads(1)  # of this thread too
        row = batch.to_pylist()[0]
        receipts, error, unpaid = [], row["error"], False
        if not error:
            try:
                receipts = list(self._work(row))
            except (AnswerError, ConfigError, NumericError, ShapeError, UserError) as fault:  # stop and name the sample
                error, unpaid = str(fault), isinstance(fault, Unpaid)
            except OSError as fault:
                error = storage_fault(fault)
        if error:
            receipts = [self._receipt(error=error, unpaid=unpaid)]
        return pa.Table.from_pylist(receipts, schema=RECEIPT)

    def seconds_per_image(self, jobs: Sequence[ShardJob]) -> float | None:
        """Seconds to ask for an image for all of some jobs, which share it; see `Extractor.seconds_per_image`."""
        shape = (jobs[0].decoder.channels, jobs[0].decoder.image_size, jobs[0].decoder.image_size)
        seconds = [
            group.extractor.seconds_per_image(shape)
            for positions in self.encoders.rounds([self._wanted(job) for job in jobs])
            for group, _ in self._grouped([jobs[position] for position in positions])
        ]
        known = [each for each in seconds if each is not None]
        return sum(known) if len(known) == len(seconds) else None

    def _work(self, row: Row) -> Iterator[dict[str, Any]]:
        """Ask the encoders of a row together; jobs on whose chunk a worker has died are asked each alone."""
        jobs, chunk = [unpacked(job) for job in row["jobs"]], row["chunk"]
        with self.turns.shared():
            begun = [Attempt.begin(job, chunk, attempts.QUERYING) for job in jobs]
            suspected = [attempt for attempt in begun if attempt.deaths != 0]
            for attempt in suspected:  # a death in the meantime is not theirs
                attempt.withdraw()
            calm = [attempt.job for attempt in begun if attempt.deaths == 0]
            with self.turns.asking:
                rounds = self.encoders.rounds([self._wanted(job) for job in calm])
            for positions in rounds:
                yield from self._ask_together([calm[position] for position in positions], row)
        for job in (attempt.job for attempt in suspected):
            with self.turns.alone():
                if all(map(storage.exists, job.paths(chunk))):
                    yield self._done_before(job, chunk)
                else:
                    yield from self._ask_together([job], row, Attempt.begin(job, chunk, attempts.QUERYING).paid())

    def _ask_together(
        self, jobs: Sequence[ShardJob], row: Row, attempt: Attempt | None = None
    ) -> Iterator[dict[str, Any]]:
        """Ask for the images of a chunk, and commit the features of each job."""
        one_by_one = attempt is not None and attempt.careful
        pixels_of = self._pixels(row, jobs[0].decoder, one_by_one=one_by_one)  # threads begin to decode
        with self.turns.asking:
            status, answers = ask(self._grouped(jobs), row, pixels_of, attempt)
            once = {"builds": self.encoders.builds - self.told, "decodes": len(status) - status.count(CRASHED)}
            self.told = self.encoders.builds
        with self.turns.committing:
            receipts = [self._committed(asked, row, status) for asked in answers]
            if self.telemetry is not None:
                pairs = zip(answers, receipts, strict=True)
                self.telemetry.committed([(asked.job.encoder, receipt) for asked, receipt in pairs])
        receipts[0] |= once
        yield from receipts
        if attempt is not None:
            attempt.end()

    def _committed(self, asked: Asked, row: Row, status: Sequence[str]) -> dict[str, Any]:
        """Commit the features of one job; returns the receipt."""
        job, chunk, began = asked.job, row["chunk"], time.perf_counter()
        commit(job, chunk, row["keys"], status, asked.columns)
        markers = [attempts.committed_marker(job, chunk, attempts.QUERYING)]
        if "pixels" in row:
            markers.append(attempts.committed_marker(unpacked(row["jobs"][0]), chunk, attempts.DECODING))
        return self._receipt(
            rows=len(status),
            rejected=len(status) - status.count(OK),
            queries=asked.queries,
            markers=markers,
            **asked.seconds,
            commit=time.perf_counter() - began,
        )

    def _done_before(self, job: ShardJob, chunk: int) -> dict[str, Any]:
        """The receipt of a job whose features a worker committed before it died on another job of the row."""
        status = storage.read_table(job.path(job.query.epochs[0], chunk), ["status"])["status"].to_pylist()
        good = status.count(OK)
        taken = [attempts.committed_marker(job, chunk, attempts.QUERYING)]
        counts = {"rows": len(status), "rejected": len(status) - good, "queries": job.queries_of(good)}
        return self._receipt(**counts, markers=taken)

    def _receipt(self, **entries: Any) -> dict[str, Any]:
        empty: dict[str, Any] = dict.fromkeys(COUNTS, 0) | dict.fromkeys(STEPS, 0.0) | {"markers": []}
        return empty | {"actor": self.name, "error": "", "unpaid": False, "ended": time.time()} | entries

    def _pixels(self, row: Row, decoder: Decoder, *, one_by_one: bool) -> PixelsOf:
        """A function from a sample's position to its pixels, which threads decode ahead or the call decodes."""
        if "pixels" in row:
            shape = (decoder.channels, decoder.image_size, decoder.image_size)
            pixels = iter(np.frombuffer(row["pixels"], dtype=np.uint8).reshape(-1, *shape))
            ready: list[Decoded] = [next(pixels) if state == OK else state for state in row["status"]]
            return ready.__getitem__
        if self.pool is None or one_by_one:
            return lambda number: decoded(row["images"][number], decoder)
        ahead = decoded_ahead(row["images"], decoder, self.pool, AHEAD)
        return lambda _: next(ahead)

    def _wanted(self, job: ShardJob) -> list[Checkpoint]:
        """The checkpoints of a job, and last the one that images are crafted on, if they are."""
        query = job.query
        crafted = [] if query.crafter is None else [(query.crafter, query.crafter_epoch)]
        asked = [(job.encoder, epoch) for epoch in query.epochs]
        return [Checkpoint(job.folder, *one) for one in asked + crafted]

    def _grouped(self, jobs: Sequence[ShardJob]) -> list[tuple[Group, list[ShardJob]]]:
        """The jobs in groups whose encoders see the same views; their encoders fit the budget together."""
        builds = self.encoders.builds
        loaded = self.encoders([checkpoint for job in jobs for checkpoint in self._wanted(job)])
        if self.encoders.builds > builds:
            self.groups.clear()  # they hold encoders that may have left
        coming = iter(loaded)
        by_views: dict[tuple[object, ...], list[tuple[ShardJob, list[Encoder]]]] = {}
        for job in jobs:
            mine = [next(coming) for _ in self._wanted(job)]
            views = together(job, mine[0].size)
            named_so = [at for at, some in by_views.items() if any(job.encoder == one.encoder for one, _ in some)]
            turn = next(turn for turn in count() if (*views, turn) not in named_so)
            by_views.setdefault((*views, turn), []).append((job, mine))
        return [(self._group(some), [job for job, _ in some]) for some in by_views.values()]

    def _group(self, some: Sequence[tuple[ShardJob, list[Encoder]]]) -> Group:
        jobs, sizes = [job for job, _ in some], [len(job.query.epochs) for job, _ in some]
        crafter = some[0][1][-1] if jobs[0].query.crafter is not None else None
        known: tuple[object, ...] = tuple(one for job in jobs for one in (job.query.tag, *self._wanted(job)))
        if known not in self.groups:
            encoders = [mine[:size] for (_, mine), size in zip(some, sizes, strict=True)]
            self.groups[known] = Group(jobs, encoders, crafter, self.device, bank.loaded(jobs[0]))
        return self.groups[known]

    def _load(self, checkpoint: Checkpoint) -> Encoder:
        client = None if self.access is None else self.access.client
        encoder = describe(checkpoint.folder, checkpoint.encoder).load(checkpoint.epoch, client)
        loaded = for_queries(encoder, self.device, compile=self.compile)
        return remembering(loaded, self.memory)
