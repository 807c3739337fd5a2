"""Process a chunk of encoded images in a Ray worker: decode it, query the encoders, commit the features.

The encoder actor decodes, or a separate stage does if decoding is the bottleneck: then one 8-bit image per sample
crosses the object store. Views never cross it.
"""

from __future__ import annotations

import pickle
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from mi_core.augmentations import AUGMENTATIONS
from mi_core.checks import AnswerError, ConfigError, NumericError, ShapeError
from mi_core.encoders.averaging import averaged
from mi_core.encoders.checkpoint import Encoder
from mi_core.encoders.folding import for_queries
from mi_core.encoders.remembering import Memory, remembering
from mi_core.image_files import ImageError
from mi_core.images import Decoder, Pixels, decode
from mi_core.querying.answers import Answers, Seconds
from mi_core.querying.extractor import Extractor
from mi_core.runtime import keep_freed_memory, prepare_cuda
from mi_core.streams import stream_keys
from pipelines.config.parameters import build
from pipelines.encoders.access import Access
from pipelines.encoders.stored import describe
from pipelines.errors import UserError, storage_fault
from pipelines.extract import attempts
from pipelines.extract.commit import sample_table
from pipelines.extract.jobs import ShardJob
from pipelines.extract.loaded import Checkpoint, LoadedEncoders, budget_on, device_with
from pipelines.extract.telemetry import STEPS, Telemetry
from pipelines.files import storage

OK, CRASHED = "ok", "crashed: the worker died on this sample"
Decoded = Pixels | str
"""Pixels (C, S, S) uint8, or the reason why there are none."""


def decode_chunks(batch: pa.Table) -> pa.Table:
    """The separate decoding stage: replaces ``images`` in a row of `readers.read_chunks` by ``status``, ``pixels``."""
    row = batch.to_pylist()[0]
    started = time.perf_counter()
    decoded: list[Decoded] = []
    if not row["error"]:
        job: ShardJob = pickle.loads(row["job"])
        attempt = _Attempt.of(job, row["chunk"], attempts.DECODING)
        for key, data in zip(row["keys"], row["images"], strict=True):
            decoded.append(CRASHED if attempt.refuses(key) else _decode(data, job.decoder))
    columns = {name: batch[name] for name in batch.column_names if name != "images"}
    columns["status"] = pa.array([[one if isinstance(one, str) else OK for one in decoded]], pa.list_(pa.string()))
    pixels = b"".join(one.tobytes() for one in decoded if not isinstance(one, str))
    columns["pixels"] = pa.array([pixels], pa.large_binary())
    columns["decode"] = pa.array([time.perf_counter() - started])
    return pa.table(columns)


class EncodeChunks:
    """The encoder actor: turns chunks of encoded images, or of pixels, into committed feature files.

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
        self.extractors: dict[str, Extractor] = {}

    def __call__(self, batch: pa.Table) -> pa.Table:
        """Turn the row of a chunk into the row of its receipt."""
        row = batch.to_pylist()[0]
        receipt: dict[str, Any] = {"actor": self.name, "error": row["error"]}
        receipt |= dict.fromkeys(("rows", "rejected", "queries", "builds"), 0) | dict.fromkeys(STEPS, 0.0)
        if not row["error"]:
            try:
                job: ShardJob = pickle.loads(row["job"])
                receipt |= self._encode(job, row)
                if self.telemetry is not None:
                    self.telemetry.committed(job.encoder, receipt)
            except (AnswerError, ConfigError, NumericError, ShapeError, UserError) as error:  # stop and name the sample
                receipt["error"] = str(error)
            except OSError as error:
                receipt["error"] = storage_fault(error)
        return pa.table({name: [value] for name, value in (receipt | {"ended": time.time()}).items()})

    def _encode(self, job: ShardJob, row: Mapping[str, Any]) -> dict[str, Any]:
        chunk, keys, builds = row["chunk"], row["keys"], self.encoders.builds
        extractor = self._extractor(job)
        extractor.seconds = Seconds()
        attempt = _Attempt.of(job, chunk, attempts.QUERYING)
        features = _ChunkFeatures(row.get("decode", 0.0))
        shape = (job.decoder.channels, job.decoder.image_size, job.decoder.image_size)
        size = 1 if attempt.careful else extractor.fit_batch(shape, job.chunk)
        pending = self._pending(job, row, one_by_one=attempt.careful)
        for start in range(0, len(keys), size):
            rows = range(start, min(start + size, len(keys)))
            refused = [attempt.refuses(keys[number]) for number in rows]
            began = time.perf_counter()
            decoded = [CRASHED if no else pending(number) for number, no in zip(rows, refused, strict=True)]
            features.decode += time.perf_counter() - began
            answers = self._answers(extractor, job, row, rows, decoded)
            if answers is not None and attempt.careful:
                answers.wait()  # a death now is the death of this sample
            features.add(decoded, answers)
        features.fetch()
        began = time.perf_counter()
        for epoch in job.query.epochs:
            columns = features.columns(named(job, epoch))
            storage.write_table(job.path(epoch, chunk), sample_table(keys, features.status, columns))
        attempt.end(decoded="pixels" in row)
        good = features.status.count(OK)
        queries = job.queries_of(good) if job.rule is None else features.asked() * job.query.repeats
        spent = asdict(extractor.seconds) | {"decode": features.decode, "commit": time.perf_counter() - began}
        built = self.encoders.builds - builds
        return {"rows": len(keys), "rejected": len(keys) - good, "queries": queries, "builds": built} | spent

    def _pending(self, job: ShardJob, row: Mapping[str, Any], *, one_by_one: bool) -> Callable[[int], Decoded]:
        """A function from a sample's position to its pixels, which threads decode ahead or the call decodes."""
        if "pixels" in row:
            shape = (job.decoder.channels, job.decoder.image_size, job.decoder.image_size)
            pixels = iter(np.frombuffer(row["pixels"], dtype=np.uint8).reshape(-1, *shape))
            ready: list[Decoded] = [next(pixels) if state == OK else state for state in row["status"]]
            return ready.__getitem__
        if self.pool is None or one_by_one:
            return lambda number: _decode(row["images"][number], job.decoder)
        futures: list[Future[Decoded]] = [self.pool.submit(_decode, data, job.decoder) for data in row["images"]]
        return lambda number: futures[number].result()

    def _answers(
        self, extractor: Extractor, job: ShardJob, row: Mapping[str, Any], rows: range, decoded: Sequence[Decoded]
    ) -> Answers | None:
        pairs = [(number, one) for number, one in zip(rows, decoded, strict=True) if not isinstance(one, str)]
        if not pairs:
            return None
        keys = [row["keys"][number] for number, _ in pairs]
        return extractor.begin(
            torch.from_numpy(np.stack([pixels for _, pixels in pairs])),
            stream_keys(job.folder.seed, "query", job.source, keys),
            [f"{job.source}/{key}" for key in keys],
            [row["captions"][number] for number, _ in pairs] if row["captions"] else None,
            [row["labels"][number] for number, _ in pairs] if row["labels"] else None,
        )

    def _extractor(self, job: ShardJob) -> Extractor:
        query, crafter = job.query, job.query.asking.crafter
        wanted = [Checkpoint(job.folder, job.encoder, epoch) for epoch in query.epochs]
        if crafter is not None:
            wanted.append(Checkpoint(job.folder, crafter, describe(job.folder, crafter).epochs[-1]))
        before = self.encoders.builds
        encoders = self.encoders(wanted)
        if self.encoders.builds > before:
            self.extractors.clear()  # they hold encoders that may have left
        name = f"{job.folder.path}/{job.encoder}/{query.tag}"
        if name not in self.extractors:
            self.extractors[name] = Extractor(
                {
                    named(job, epoch): averaged(remembering(encoder, self.memory), query.repeats)
                    for epoch, encoder in zip(query.epochs, encoders, strict=False)
                },
                job.plan,
                build(AUGMENTATIONS[query.recipe.name], query.recipe.settings),
                self.device,
                None if crafter is None else encoders[-1],
            )
        return self.extractors[name]

    def _load(self, checkpoint: Checkpoint) -> Encoder:
        client = None if self.access is None else self.access.client
        stored = describe(checkpoint.folder, checkpoint.encoder)
        return for_queries(stored.load(checkpoint.epoch, client), self.device, compile=self.compile)


@dataclass
class _Attempt:
    """One attempt at a chunk, and the samples it refuses."""

    job: ShardJob
    chunk: int
    kind: str
    deaths: int | None
    killers: list[str]

    @classmethod
    def of(cls, job: ShardJob, chunk: int, kind: str) -> _Attempt:
        deaths = attempts.begin(job, chunk, kind)
        careful = deaths is None or deaths >= attempts.CARELESS
        return cls(job, chunk, kind, deaths, attempts.suspects(job, chunk) if careful else [])

    @property
    def careful(self) -> bool:
        """Whether samples are queried one by one."""
        return self.deaths is not None and self.deaths >= attempts.CARELESS

    def refuses(self, key: str) -> bool:
        """Whether a sample is refused; in careful mode a sample is noted before it is touched."""
        if self.deaths is None or key in self.killers:
            return True
        if self.careful:
            attempts.note(self.job, self.chunk, [*self.killers, key])
        return False

    def end(self, *, decoded: bool) -> None:
        """Mark the chunk as committed; ``decoded``: a stage of its own decoded it."""
        if self.careful:
            attempts.note(self.job, self.chunk, self.killers)
        attempts.end(self.job, self.chunk, decoded=decoded)


@dataclass
class _ChunkFeatures:
    """Status and features of the samples of a chunk so far, in order."""

    decode: float
    status: list[str] = field(default_factory=list)
    awaited: list[Answers] = field(default_factory=list)
    parts: list[dict[str, dict[str, np.ndarray]]] = field(default_factory=list)

    def add(self, decoded: Sequence[Decoded], answers: Answers | None) -> None:
        self.status += [one if isinstance(one, str) else OK for one in decoded]
        if answers is not None:
            self.awaited.append(answers)

    def fetch(self) -> None:
        """Wait for the features of all samples, once for the chunk."""
        self.parts = [answers.fetched() for answers in self.awaited]

    def asked(self) -> int:
        """Queries that a stopping rule let through: the first number of every row."""
        return sum(
            int(counts[:, 0].sum()) for part in self.parts for by_need in part.values() for counts in by_need.values()
        )

    def columns(self, name: str) -> dict[str, np.ndarray]:
        """Features of the samples that have them, by column."""
        if not self.parts:
            return {}
        return {column: np.concatenate([part[name][column] for part in self.parts]) for column in self.parts[0][name]}


def named(job: ShardJob, epoch: int) -> str:
    """The name of a checkpoint in errors."""
    return f"{job.encoder} at epoch {epoch}"


def _decode(data: bytes, decoder: Decoder) -> Decoded:
    try:
        return decode(data, decoder)
    except ImageError as error:
        return f"undecodable: {error}"
