"""Ask encoders for the features of a chunk of images: each image is decoded once for all of them.

Encoders that see the same views share these too.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import torch

from mi_core.encoders.averaging import averaged
from mi_core.encoders.checkpoint import Encoder
from mi_core.image_files import ImageError
from mi_core.images import Decoder, Pixels, decode
from mi_core.querying.extractor import Extractor
from mi_core.querying.forward import Answers, Seconds
from mi_core.querying.plan import QueryPlan
from mi_core.streams import pixel_streams
from pipelines.extract.actor.attempts import Attempt
from pipelines.extract.actor.commit import OK
from pipelines.extract.actor.loaded import Checkpoint
from pipelines.extract.division.jobs import ShardJob

CRASHED = "crashed: the worker died on this sample"
Decoded = Pixels | str
"""Pixels (C, S, S) uint8, or the reason why there are none."""
Row = Mapping[str, Any]
"""The row of a chunk; see `readers.read_chunks`."""
PixelsOf = Callable[[int], Decoded]
"""The pixels of the sample at a position of a chunk, asked for in order."""


@dataclass
class Asked:
    """Features of a chunk for one job.

    Args:
        job: of the chunk.
        columns: by epoch and name, the values of the samples that have them.
        queries: that were sent.
        seconds: by step; those that jobs share are divided among them.
    """

    job: ShardJob
    columns: Mapping[int, Mapping[str, np.ndarray]]
    queries: int
    seconds: Mapping[str, float]


class Group:
    """Jobs whose encoders see the same views, asked together.

    Args:
        jobs: one for each encoder, each of another name.
        encoders: by job, those of its checkpoints.
        crafter: of the only job, if it has one.
        device: where the encoders are.
        bank: images (A, C, S, S) that samples are compared with, of all jobs; None: they need none.
    """

    def __init__(
        self,
        jobs: Sequence[ShardJob],
        encoders: Sequence[Sequence[Encoder]],
        crafter: Encoder | None,
        device: torch.device,
        bank: torch.Tensor | None = None,
    ) -> None:
        self.names = [{epoch: checkpoint_in_words(job, epoch) for epoch in job.query.epochs} for job in jobs]
        first, plans = jobs[0], [job.plan for job in jobs]
        self.extractor = Extractor(
            {
                names[epoch]: averaged(encoder, job.query.repeats)
                for job, names, some in zip(jobs, self.names, encoders, strict=True)
                for epoch, encoder in zip(job.query.epochs, some, strict=True)
            },
            plans[0],
            first.query.recipe.build(),
            device,
            crafter,
            {name: plan for names, plan in zip(self.names, plans, strict=True) for name in names.values()},
            bank,
        )

    def asking(self, jobs: Sequence[ShardJob], row: Row, *, one_by_one: bool) -> Asking:
        """Begin to ask for the images of a chunk."""
        first = jobs[0]
        shape = (first.decoder.channels, first.decoder.image_size, first.decoder.image_size)
        self.extractor.seconds = Seconds()
        return Asking(self, jobs, row, 1 if one_by_one else self.extractor.fit_batch(shape, first.chunk))


@dataclass
class Asking:
    """A group on its way through a chunk, ``size`` images at a time; ``start``: the first that was not asked for."""

    group: Group
    jobs: Sequence[ShardJob]
    row: Row
    size: int
    start: int = 0
    awaited: list[Answers] = field(default_factory=list)

    def offer(self, known: Mapping[int, Decoded], stop: int) -> None:
        """Ask for the images up to position ``stop``, if these fill a batch or end the chunk."""
        whole = len(self.row["keys"])
        if stop - self.start < self.size and stop < whole:
            return
        row, first = self.row, self.jobs[0]
        pairs = [(at, one) for at in range(self.start, stop) if not isinstance(one := known[at], str)]
        self.start = stop
        if pairs:
            images = torch.from_numpy(np.stack([pixels for _, pixels in pairs]))
            answers = self.group.extractor.begin(
                images,
                pixel_streams(first.query.nonce, first.folder.seed, "query", images),
                [f"{first.source}/{row['keys'][at]}" for at, _ in pairs],
                [row["captions"][at] for at, _ in pairs] if row["captions"] else None,
                [row["labels"][at] for at, _ in pairs] if row["labels"] else None,
            )
            self.awaited.append(answers)

    def wait(self) -> None:
        """Wait until what was asked for is answered."""
        for answers in self.awaited[-1:]:
            answers.wait()

    def finished(self, good: int, shared: Mapping[str, float]) -> Iterator[Asked]:
        """Wait for the features of all images.

        Args:
            good: images that could be decoded.
            shared: seconds of each of the jobs for steps that the groups share.
        """
        parts = [answers.fetched() for answers in self.awaited]
        spent = self.group.extractor.seconds
        each = {name: getattr(spent, name) / len(self.jobs) for name in ("augment", "forward", "features")}
        for job, names in zip(self.jobs, self.group.names, strict=True):
            columns = {epoch: _joined(parts, name) for epoch, name in names.items()}
            queries = job.queries_of(good)
            if job.rule is not None:  # the first number of every row of features
                asked = sum(int(counts[:, 0].sum()) for by_need in columns.values() for counts in by_need.values())
                queries = asked * job.query.repeats
            yield Asked(job, columns, queries, {**each, **shared})


def _joined(parts: Sequence[Mapping[str, Mapping[str, np.ndarray]]], name: str) -> dict[str, np.ndarray]:
    """Features of one encoder by column."""
    if not parts:
        return {}
    return {column: np.concatenate([part[name][column] for part in parts]) for column in parts[0][name]}


def ask(
    groups: Sequence[tuple[Group, Sequence[ShardJob]]], row: Row, pixels_of: PixelsOf, attempt: Attempt | None = None
) -> tuple[list[str], list[Asked]]:
    """Ask all groups for the images of a chunk.

    Args:
        groups: with their jobs, all of the same samples.
        row: of the chunk.
        pixels_of: decodes.
        attempt: of the only job, which refuses samples or takes them one by one; None: all are taken.

    Returns:
        The status of each image, and the features for each job.
    """
    careful = attempt is not None and attempt.careful
    askings = [group.asking(jobs, row, one_by_one=careful) for group, jobs in groups]
    known: dict[int, Decoded] = {}  # images that some group still has to be asked for
    status: list[str] = []
    seconds = row.get("decode", 0.0)
    for at, key in enumerate(row["keys"]):
        refused = attempt is not None and attempt.refuses(key)
        began = time.perf_counter()
        known[at] = decoded = CRASHED if refused else pixels_of(at)
        seconds += time.perf_counter() - began
        status.append(decoded if isinstance(decoded, str) else OK)
        for asking in askings:
            asking.offer(known, at + 1)
            if careful:
                asking.wait()  # a death now is the death of this sample
        for done in range(min(known), min(asking.start for asking in askings)):
            del known[done]
    shared = {"decode": seconds / sum(len(jobs) for _, jobs in groups)}
    return status, [one for asking in askings for one in asking.finished(status.count(OK), shared)]


def together(job: ShardJob, size: int | None) -> tuple[object, ...]:
    """Equal for jobs whose encoders can be asked with the same views; ``size``: the side of what the encoder takes."""
    plan: QueryPlan = job.plan
    own = (job.folder.path, job.encoder, job.query.tag) if job.query.is_alone else ()
    views = job.query.nonce, job.query.recipe, plan.views
    return (*views, plan.batch_views, plan.precision, frozenset(plan.sets), size, job.bank, *own)


def decoded_ahead(images: Sequence[bytes], decoder: Decoder, pool: Executor, most: int) -> Iterator[Decoded]:
    """Pixels of images in order; threads decode at most ``most`` images ahead, and begin at once."""
    coming = iter(images)

    def begin(number: int) -> Iterator[Future[Decoded]]:
        return (pool.submit(decoded, data, decoder) for data in islice(coming, number))

    def in_order(waiting: deque[Future[Decoded]]) -> Iterator[Decoded]:
        while waiting:
            pixels = waiting.popleft().result()
            waiting.extend(begin(1))
            yield pixels

    return in_order(deque(begin(most)))


def decoded(data: bytes, decoder: Decoder) -> Decoded:
    """The pixels of a file, or why there are none."""
    try:
        return decode(data, decoder)
    except ImageError as error:
        return f"undecodable: {error}"


def checkpoints_of(job: ShardJob) -> list[Checkpoint]:
    """The checkpoints that a job queries."""
    return [Checkpoint(job.folder, job.encoder, epoch) for epoch in job.query.epochs]


def checkpoint_in_words(job: ShardJob, epoch: int) -> str:
    """The name of a checkpoint in errors."""
    return f"{job.encoder} at epoch {epoch}"
