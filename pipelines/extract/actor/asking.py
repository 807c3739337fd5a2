"""Ask encoders for the features of a chunk of images: each image is decoded once for all of them.

Encoders that see the same views share these too.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from torch import nn

from mi_core.checks import NumericError
from mi_core.encoders.averaging import averaged
from mi_core.encoders.checkpoint import Encoder
from mi_core.image_files import ImageError
from mi_core.images import Decoder, Pixels, decode
from mi_core.querying.extractor import Extractor
from mi_core.querying.forward import Answers, Seconds
from mi_core.streams import pixel_streams
from pipelines.errors import UserError
from pipelines.extract.actor.attempts import Attempt
from pipelines.extract.division.jobs import ShardJob
from pipelines.files import storage
from pipelines.run.folder import SeedFolder

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
        self.names = [{epoch: f"{job.encoder} at epoch {epoch}" for epoch in job.query.epochs} for job in jobs]
        first, plans = jobs[0], [job.query.plan() for job in jobs]
        self.extractor = Extractor(
            {
                names[epoch]: averaged(encoder, job.query.protocol.repeats)
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
                pixel_streams(first.query.protocol.nonce, first.folder.seed, "query", images),
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
            columns = {
                epoch: {
                    column: np.concatenate([part[name][column] for part in parts])
                    for column in (parts[0][name] if parts else ())
                }
                for epoch, name in names.items()
            }
            yield Asked(job, columns, job.queries_of(good), {**each, **shared})


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
    plan = job.query.plan()
    own = (job.folder.path, job.encoder, job.query.tag) if job.query.is_alone else ()
    views = job.query.protocol.nonce, job.query.recipe, plan.views
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


OK = "ok"


def commit(
    job: ShardJob,
    chunk: int,
    keys: Sequence[str],
    status: Sequence[str],
    columns: Mapping[int, Mapping[str, np.ndarray]],
) -> None:
    """Write the features of a chunk, which are its feature files for good.

    Args:
        job, chunk: what was asked.
        keys, status: of its N samples.
        columns: by epoch and name, the values of the samples whose status is ``ok``.
    """
    rejected = [
        {"source": job.source, "shard": job.item.name, "key": key, "reason": state}
        for key, state in zip(keys, status, strict=True)
        if state != OK
    ]
    if rejected:
        storage.write_json(job.rejected_path(chunk), rejected)
    for epoch, values in columns.items():
        kept = {name: column for name, column in values.items() if name in job.query.columns}
        storage.write_table(job.path(epoch, chunk), sample_table(keys, status, kept, job.query.protocol.stored))


def sample_table(
    keys: Sequence[str], status: Sequence[str], columns: Mapping[str, np.ndarray], precision: str
) -> pa.Table:
    """One row per sample, in order; rejected samples have a status and null measurements.

    Raises:
        NumericError: a number is beyond the precision.
    """
    rows = np.flatnonzero([state == OK for state in status])
    arrays: dict[str, pa.Array] = {"key": pa.array(keys, pa.string()), "status": pa.array(status, pa.string())}
    take = np.full(len(keys), -1)
    take[rows] = np.arange(len(rows))
    indices = pa.array(take, mask=take < 0)
    for name, values in columns.items():
        with np.errstate(over="ignore"):
            numbers = np.ascontiguousarray(values, dtype=precision).reshape(-1)
        if not np.array_equal(np.isinf(numbers), np.isinf(values).reshape(-1)):
            raise NumericError(
                f"{name} has a value of {np.abs(values).max():.3g}, which float16 cannot hold; set "
                "queries.feature_precision: float32"
            )
        flat = pa.array(numbers)
        whole = flat if values.ndim == 1 else pa.FixedSizeListArray.from_arrays(flat, math.prod(values.shape[1:]))
        arrays[name] = whole.take(indices)
    return pa.table(arrays)


ON_CPU = 2 * 2**30  # bytes of weights that an actor without a GPU keeps
OF_GPU = 0.25  # share of its part of a GPU's memory that an actor keeps weights in


class Checkpoint(NamedTuple):
    """A checkpoint of an encoder of a run."""

    folder: SeedFolder
    encoder: str
    epoch: int


class LoadedEncoders:
    """Encoders by checkpoint; when their weights exceed a budget, those used longest ago leave.

    Args:
        load: builds an encoder on the actor's device.
        budget: bytes of weights. The encoders in use stay, even beyond it.
    """

    def __init__(self, load: Callable[[Checkpoint], Encoder], budget: int) -> None:
        self.load, self.budget = load, budget
        self.builds = 0
        self.kept: OrderedDict[Checkpoint, Encoder] = OrderedDict()
        self.sizes: dict[Checkpoint, int] = {}  # bytes of all that were ever loaded

    def __call__(self, wanted: Sequence[Checkpoint]) -> list[Encoder]:
        """The encoders of some checkpoints, loaded where they are not kept."""
        for checkpoint in wanted:
            if checkpoint not in self.kept:
                self.kept[checkpoint] = self.load(checkpoint)
                self.sizes[checkpoint] = weights_of(self.kept[checkpoint])
                self.builds += 1
            self.kept.move_to_end(checkpoint)
        while len(self.kept) > len(set(wanted)) and self._bytes(self.kept) > self.budget:
            self.kept.popitem(last=False)
        return [self.kept[checkpoint] for checkpoint in wanted]

    def rounds(self, wanted: Sequence[Sequence[Checkpoint]]) -> list[list[int]]:
        """Split what is wanted into rounds, each of which fits the budget: positions in order, each once."""
        for checkpoint in dict.fromkeys(one for some in wanted for one in some):
            if checkpoint not in self.sizes:
                self([checkpoint])
        rounds: list[list[int]] = []
        held: set[Checkpoint] = set()
        for position, some in enumerate(wanted):
            if rounds and self._bytes(held | {*some}) <= self.budget:
                rounds[-1].append(position)
                held |= {*some}
            else:
                rounds.append([position])
                held = {*some}
        return rounds

    def _bytes(self, checkpoints: Iterable[Checkpoint]) -> int:
        return sum(self.sizes[checkpoint] for checkpoint in checkpoints)


def device_with(gpus: float) -> torch.device:
    """The device of an actor that holds some GPUs, on which its passes were planned.

    Raises:
        UserError: it holds GPUs, but PyTorch sees none.
    """
    if gpus and not torch.cuda.is_available():
        raise UserError(
            f"resources.gpus_per_actor = {gpus:g}, but PyTorch sees no GPU there; install PyTorch with CUDA, or set it "
            "to 0"
        )
    return torch.device("cuda" if gpus else "cpu")


def weights_of(module: nn.Module) -> int:
    """Bytes of the parameters and buffers of a module."""
    return sum(tensor.numel() * tensor.element_size() for tensor in (*module.parameters(), *module.buffers()))


def budget_on(device: torch.device, gpus: float) -> int:
    """Bytes of weights that an actor that holds some GPUs, such as .5, keeps on its device."""
    if device.type != "cuda":
        return ON_CPU
    return int(OF_GPU * min(1.0, gpus) * torch.cuda.get_device_properties(device).total_memory)
