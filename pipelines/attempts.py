"""How often a chunk may be tried, and which of its samples kills the worker.

Every attempt at a chunk leaves a marker with its queries and the session that made it; the commit takes the first
away, and those that are left were lost. Two markers of one session mean that a worker died on the chunk; the last of a
session may be that of a run that was interrupted. A chunk on which workers died twice is asked sample by sample, each
noted before it is decoded: if a worker dies again, the sample noted last is rejected, and the others go on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pipelines import storage
from pipelines.artifacts import SeedFolder

if TYPE_CHECKING:
    from pipelines.shard_jobs import ShardJob

ATTEMPTS = 5  # at a chunk in one session, at most: what is left of it then is committed as crashed
CARELESS = 2  # deaths after which samples are asked one by one
QUERYING, DECODING = "attempts", "decoding"  # what is attempted: the whole chunk, or its decoding by a stage of its own
Begun = tuple[int, int]
"""Markers of a chunk, and deaths of workers that they prove."""


def markers_folder(folder: SeedFolder, encoder: str, kind: str) -> str:
    """Where the attempts at chunks of an encoder are marked."""
    return f"{folder.path}/features/{encoder}/{kind}"


def lost_queries(folder: SeedFolder, encoder: str) -> int:
    """Queries of an encoder that were begun and not committed, at most: an interrupted chunk may have asked fewer."""
    return sum(_queries(path) for path in storage.list_files(markers_folder(folder, encoder, QUERYING)))


def begun(folder: SeedFolder, encoder: str) -> Mapping[str, Begun]:
    """What was begun of every chunk of an encoder and not committed, by the name of its markers."""
    sessions: dict[str, Counter[str]] = {}
    for path in storage.list_files(markers_folder(folder, encoder, QUERYING)):
        sessions.setdefault(path.rpartition(".")[0], Counter())[_session(path)] += 1
    return {name: (found.total(), found.total() - len(found)) for name, found in sessions.items()}


def begin(job: ShardJob, chunk: int, kind: str) -> int | None:
    """Mark an attempt at a chunk: the deaths before it, or None if it may not be tried again.

    What was begun in other sessions is known of whole chunks; decoding is counted anew.
    """
    markers, deaths = job.begun.get(chunk, (0, 0)) if kind == QUERYING else (0, 0)
    session = "" if kind == QUERYING else f"-{job.session}"
    for more in range(min(ATTEMPTS - deaths, job.attempts)):
        marker = job.marker(chunk, f"{markers + more + 1}{session}", kind)
        if not storage.exists(marker):
            storage.write_atomic(marker, f"{job.queries_of(job.size(chunk))} {job.session}".encode())
            return deaths + more
    return None


def end(job: ShardJob, chunk: int) -> None:
    """Take one marker away: one attempt is what it takes. Those that stay were lost."""
    storage.remove(job.marker(chunk, "1", QUERYING))
    storage.remove(job.marker(chunk, f"1-{job.session}", DECODING))


def suspects(job: ShardJob, chunk: int) -> list[str]:
    """Keys of a chunk that were noted when a worker died."""
    path = job.suspects(chunk)
    found: list[str] = storage.read_json(path) if storage.exists(path) else []
    return found


def note(job: ShardJob, chunk: int, keys: Sequence[str]) -> None:
    """Note the samples that killed a worker, and last the one that is asked now."""
    storage.write_json(job.suspects(chunk), list(keys))


def _queries(marker: str) -> int:
    return int(storage.read_bytes(marker).split()[0])


def _session(marker: str) -> str:
    return storage.read_bytes(marker).decode().partition(" ")[2]
