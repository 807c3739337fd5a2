"""How often a chunk may be tried, and which of its samples kills the worker.

Every attempt at a chunk leaves a marker with its queries and the session that made it; the commit takes the first
away, and those that are left were lost. Two markers of one session mean that a worker died on the chunk; the last of a
session may be that of a run that was interrupted. A chunk on which workers died twice is asked sample by sample, each
noted before it is decoded: if a worker dies again, the sample noted last is rejected, and the others go on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from pipelines.extract.jobs import ATTEMPTS, Begun, ShardJob
from pipelines.files import storage
from pipelines.run.folder import SeedFolder

CARELESS = 2  # deaths after which samples are asked one by one
QUERYING, DECODING = "attempts", "decoding"  # what is attempted: the whole chunk, or its decoding by a stage of its own


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


def begun_of(job: ShardJob, begun: Mapping[str, Begun]) -> dict[int, Begun]:
    """What was begun of the chunks of a job, from what is begun by the name of markers."""
    if not begun:
        return {}
    names = {chunk: marker_path(job, chunk, "1", QUERYING).rpartition(".")[0] for chunk in range(job.chunks)}
    return {chunk: begun[name] for chunk, name in names.items() if name in begun}


def marker_path(job: ShardJob, chunk: int, number: str, kind: str) -> str:
    """Marker of an attempt at a chunk."""
    return f"{markers_folder(job.folder, job.encoder, kind)}/{_chunk_name(job, chunk)}.{number}"


def _suspects_path(job: ShardJob, chunk: int) -> str:
    """Where the samples of a chunk that may kill a worker are noted."""
    return f"{job.folder.path}/features/{job.encoder}/suspects/{_chunk_name(job, chunk)}.json"


def _chunk_name(job: ShardJob, chunk: int) -> str:
    return f"{job.source}-{job.item.name}.{job.tag}-{chunk:05d}"


def begin(job: ShardJob, chunk: int, kind: str) -> int | None:
    """Mark an attempt at a chunk: the deaths before it, or None if it may not be tried again.

    What was begun in other sessions is known of whole chunks; decoding is counted anew.
    """
    markers, deaths = job.begun.get(chunk, (0, 0)) if kind == QUERYING else (0, 0)
    session = "" if kind == QUERYING else f"-{job.session}"
    for more in range(min(ATTEMPTS - deaths, job.attempts)):
        marker = marker_path(job, chunk, f"{markers + more + 1}{session}", kind)
        if not storage.exists(marker):
            storage.write_atomic(marker, f"{job.queries_of(job.size(chunk))} {job.session}".encode())
            return deaths + more
    return None


def end(job: ShardJob, chunk: int) -> None:
    """Take one marker away: one attempt is what it takes. Those that stay were lost."""
    storage.remove(marker_path(job, chunk, "1", QUERYING))
    storage.remove(marker_path(job, chunk, f"1-{job.session}", DECODING))


def suspects(job: ShardJob, chunk: int) -> list[str]:
    """Keys of a chunk that were noted when a worker died."""
    path = _suspects_path(job, chunk)
    found: list[str] = storage.read_json(path) if storage.exists(path) else []
    return found


def note(job: ShardJob, chunk: int, keys: Sequence[str]) -> None:
    """Note the samples that killed a worker, and last the one that is asked now."""
    storage.write_json(_suspects_path(job, chunk), list(keys))


def _queries(marker: str) -> int:
    return int(storage.read_bytes(marker).split()[0])


def _session(marker: str) -> str:
    return storage.read_bytes(marker).decode().partition(" ")[2]
