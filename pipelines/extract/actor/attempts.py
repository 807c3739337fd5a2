"""Count the attempts at a chunk, and find the sample that kills its worker.

Every attempt leaves a marker with its queries and its session. A commit takes one, which the driver removes with many
others; the markers left over are lost attempts. Two markers of one session mean that a worker died on the chunk; the
last marker of a session may come from an interrupted run. A chunk on which workers died twice is queried sample by
sample, and each sample is noted before it is decoded. If a worker dies again, the sample noted last is rejected and the
others continue.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pipelines.errors import UserError
from pipelines.extract.division.jobs import ATTEMPTS, Begun, ShardJob
from pipelines.files import many, storage

CARELESS = 2  # deaths after which samples are queried one by one
QUERYING, DECODING = "attempts", "decoding"  # what is attempted: the whole chunk, or its decoding by a stage of its own


class Unpaid(UserError):
    """Workers were lost on a chunk, and the budget of queries bears no further attempt at it."""


def markers_folder(store: str, encoder_key: str, kind: str) -> str:
    """The folder of the markers of an encoder."""
    return f"{store}/{kind}/{encoder_key}"


def lost_queries(store: str, encoder_key: str) -> int:
    """Queries begun and not committed; an upper bound, since an interrupted chunk may have sent fewer."""
    markers = storage.list_files(markers_folder(store, encoder_key, QUERYING))
    return sum(int(storage.read_bytes(path).split()[0]) for path in markers)


def begun(store: str, encoder_key: str) -> Mapping[str, Begun]:
    """Attempts begun and not committed, by the common name of a chunk's markers."""
    sessions: dict[str, Counter[str]] = {}
    for path in storage.list_files(markers_folder(store, encoder_key, QUERYING)):
        session = storage.read_bytes(path).decode().partition(" ")[2]
        sessions.setdefault(path.rpartition(".")[0], Counter())[session] += 1
    return {name: (found.total(), found.total() - len(found)) for name, found in sessions.items()}


def begun_of(job: ShardJob, begun: Mapping[str, Begun]) -> dict[int, Begun]:
    """Attempts begun at the chunks of a job, from attempts by marker name."""
    if not begun:
        return {}
    names = {chunk: marker_path(job, chunk, 1, QUERYING).rpartition(".")[0] for chunk in range(job.chunks)}
    return {chunk: begun[name] for chunk, name in names.items() if name in begun}


def marker_path(job: ShardJob, chunk: int, number: int, kind: str) -> str:
    """Marker of an attempt at a chunk; those at decoding are numbered by session."""
    mark = f"{number}-{job.session}" if kind == DECODING else number
    return f"{markers_folder(job.query.store, job.query.encoder_key, kind)}/{_chunk_name(job, chunk)}.{mark}"


def _suspects_path(job: ShardJob, chunk: int) -> str:
    """Keys of samples of a chunk that killed a worker, and last of the one queried now."""
    return f"{job.query.store}/suspects/{_chunk_name(job, chunk)}.json"


def _chunk_name(job: ShardJob, chunk: int) -> str:
    return f"{job.source}-{job.item.name}.{job.query.tag}-{chunk:05d}"


def mark_attempt(job: ShardJob, chunk: int, kind: str) -> tuple[int | None, str]:
    """Mark an attempt at a chunk.

    Attempts of other sessions count for whole chunks; attempts at decoding alone count per session, and cost no query.

    Returns:
        The deaths before it, or None if no attempt is left; and the marker.
    """
    markers, deaths = job.begun.get(chunk, (0, 0)) if kind == QUERYING else (0, 0)
    for more in range(min(ATTEMPTS - deaths, job.attempts if kind == QUERYING else ATTEMPTS)):
        marker = marker_path(job, chunk, markers + more + 1, kind)
        if storage.create(marker, f"{job.queries_of(job.size(chunk))} {job.session}".encode()):
            return deaths + more, marker
    return None, ""


def committed_marker(job: ShardJob, chunk: int, kind: str) -> str:
    """The marker that a commit takes: the first, so that one that is still there has not been taken."""
    return marker_path(job, chunk, 1, kind)


def settle(jobs: Iterable[ShardJob]) -> None:
    """Remove the markers of commits that a driver did not live to remove; ``jobs`` know the chunks that are done."""
    known = list(jobs)
    folders = {markers_folder(job.query.store, job.query.encoder_key, QUERYING) for job in known}
    there = {path for folder in folders for path in storage.list_files(folder)}
    if there:
        committed = {committed_marker(job, chunk, QUERYING) for job in known for chunk in job.skip}
        many.remove_files(sorted(committed & there))


@dataclass
class Attempt:
    """One attempt at a chunk.

    Args:
        job, chunk: what is attempted.
        marker: its file.
        deaths: of workers before; None: no attempt is left, and all samples are refused.
        killers: keys of samples that killed workers.
    """

    job: ShardJob
    chunk: int
    marker: str
    deaths: int | None
    killers: list[str]

    @classmethod
    def begin(cls, job: ShardJob, chunk: int, kind: str) -> Attempt:
        """Begin an attempt."""
        deaths, marker = mark_attempt(job, chunk, kind)
        careful = deaths is None or deaths >= CARELESS
        killers = list(storage.read_json_or(_suspects_path(job, chunk), [])) if careful else []
        return cls(job, chunk, marker, deaths, killers)

    @property
    def careful(self) -> bool:
        """Tell whether samples are queried one by one."""
        return self.deaths is not None and self.deaths >= CARELESS

    def paid(self) -> Attempt:
        """This attempt.

        Raises:
            Unpaid: it is none, for lack of a budget alone; nothing is known against the samples.
        """
        _, deaths = self.job.begun.get(self.chunk, (0, 0))
        if self.deaths is None and deaths + self.job.attempts < ATTEMPTS:
            raise Unpaid(
                f"{self.job.source}, shard {self.job.item.name}: a worker was lost while it queried "
                f"{self.job.encoder}, and budget.queries bears no further attempt"
            )
        return self

    def withdraw(self) -> None:
        """Undo the beginning."""
        if self.marker:
            many.remove_files([self.marker])

    def refuses(self, key: str) -> bool:
        """Tell whether a sample is refused; in careful mode a sample is noted before it is touched."""
        if self.deaths is None or key in self.killers:
            return True
        if self.careful:
            storage.write_json(_suspects_path(self.job, self.chunk), [*self.killers, key])
        return False

    def end(self) -> None:
        """Note the samples that killed workers, once all are queried."""
        if self.careful:
            storage.write_json(_suspects_path(self.job, self.chunk), self.killers)
