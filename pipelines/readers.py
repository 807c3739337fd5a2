"""What Ray's light tasks do during extraction: stream a shard chunk by chunk, and join the files of its chunks.

This module and what it imports leave PyTorch alone: a reader starts in a fraction of the time of an encoder's process.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from pipelines import storage
from pipelines.sources import Item, SourceConfig


@dataclass(frozen=True)
class ReadOrder:
    """One shard to stream: the wanted keys in chunks by their position in the stream, without the chunks to skip."""

    source: str
    reader: SourceConfig
    item: Item
    wanted: tuple[str, ...]
    chunk: int
    skip: frozenset[int] = frozenset()


def read_chunks(batch: pa.Table) -> Iterator[pa.Table]:
    """Stream one shard, one row per chunk of encoded images.

    Args:
        batch: one row with ``order`` (a pickled `ReadOrder`) and ``job`` (bytes that go along).

    Yields:
        Rows of job, chunk, keys, images, error; an error ends the shard.
    """
    order: ReadOrder = pickle.loads(batch["order"][0].as_py())
    job = batch["job"][0].as_py()
    keys: list[str] = []
    images: list[bytes] = []
    chunk, seen = 0, 0
    place = f"{order.source}, shard {order.item.name}"
    try:
        for sample in order.reader.read(order.item, set(order.wanted)):
            keys.append(sample.key)
            images.append(sample.image)
            seen += 1
            if len(keys) == order.chunk or seen == len(order.wanted):
                if chunk not in order.skip:
                    yield _row(job, chunk, keys, images, "")
                keys, images, chunk = [], [], chunk + 1
    except (OSError, ValueError) as error:
        yield _row(job, chunk, [], [], f"{place}: {error}")
        return
    if seen != len(order.wanted):
        problem = f"{place}: {seen} of {len(order.wanted)} samples found; it changed since the roles were drawn"
        yield _row(job, chunk, [], [], problem)


def _row(job: bytes, chunk: int, keys: list[str], images: list[bytes], error: str) -> pa.Table:
    return pa.table(
        {
            "job": pa.array([job], pa.large_binary()),
            "chunk": pa.array([chunk], pa.int64()),
            "keys": pa.array([keys], pa.list_(pa.string())),
            "images": pa.array([images], pa.list_(pa.large_binary())),
            "error": pa.array([error], pa.string()),
        }
    )


@dataclass(frozen=True)
class Compaction:
    """The files of one finished shard.

    Args:
        source, shard: where its samples came from.
        files: (file to write, its chunk files) per checkpoint.
        rejected: file to write if samples were rejected, with their source, shard, key and reason.
        wanted: the keys that have to be there, sorted.
        leftovers: markers to delete with the chunks.
    """

    source: str
    shard: str
    files: tuple[tuple[str, tuple[str, ...]], ...]
    rejected: str
    wanted: tuple[str, ...]
    leftovers: tuple[str, ...]


def compact(work: Sequence[Compaction]) -> None:
    """Join the chunk files of finished shards into one per checkpoint, then delete them.

    Raises:
        RuntimeError: the chunks do not hold exactly the wanted samples.
    """
    for shard in work:
        for target, chunks in shard.files:
            table = pa.concat_tables([storage.read_table(path) for path in chunks], promote_options="default")
            if sorted(table["key"].to_pylist()) != list(shard.wanted):
                raise RuntimeError(f"{target}: its chunks do not hold the {len(shard.wanted)} samples asked for")
            rejected = [
                {"source": shard.source, "shard": shard.shard, "key": key, "reason": status}
                for key, status in zip(table["key"].to_pylist(), table["status"].to_pylist(), strict=True)
                if status != "ok"
            ]
            if rejected:
                storage.write_json(shard.rejected, rejected)
            storage.write_table(target, table)
        for path in (*(chunk for _, chunks in shard.files for chunk in chunks), *shard.leftovers):
            storage.remove(path)
