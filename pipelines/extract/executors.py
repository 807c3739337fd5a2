"""Where queries are answered: by Ray Data on a cluster, or in this process, shard after shard."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from pipelines.console import count_of, say
from pipelines.encoders.access import Access
from pipelines.errors import UserError
from pipelines.extract import preflight
from pipelines.extract.actor.worker import EncodeChunks
from pipelines.extract.division.jobs import ShardJob, orders_of
from pipelines.extract.division.readers import Kept, chunks_of
from pipelines.extract.stream import removed_in_bulk, stream
from pipelines.run.points import Run
from pipelines.run.ray_session import mapped


class Executor(Protocol):
    """Answers the jobs of a wave of passes, and fits the rules that these need."""

    def map(self, function: Callable[..., None], arguments: Iterable[tuple[Any, ...]]) -> None:
        """Call a function with all arguments."""

    def answer(self, jobs: list[ShardJob]) -> None:
        """Query what the jobs have left and commit it. Raises UserError: as `pipelines.extract.run.run`."""


@dataclass
class InRay:
    """The cluster; ``runs``: a run, whose resources and manifest are used, and the points of its sweeps."""

    runs: list[Run]
    access: Access | None
    checked: bool = False

    def map(self, function: Callable[..., None], arguments: Iterable[tuple[Any, ...]]) -> None:
        """Call a function as Ray tasks."""
        mapped(function, arguments, "rules", "stopping rules")

    def answer(self, jobs: list[ShardJob]) -> None:
        """Stream the shards through readers and encoder actors; once before, check nodes and encoders."""
        config, folder = self.runs[0]
        if not self.checked:
            preflight.run(self.runs)
            self.checked = True
        throughput = stream(jobs, config.resources, self.access, name=config.name, compile=config.queries.compile)
        precision = sorted({job.query.precision for job in jobs})
        folder.append_manifest("extraction", asdict(throughput) | {"precision": precision})
        rate = throughput.images / throughput.wall
        asked = asked_in_words(jobs, throughput.images)
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

    def map(self, function: Callable[..., None], arguments: Iterable[tuple[Any, ...]]) -> None:
        """Call a function here."""
        for given in arguments:
            function(*given)

    def answer(self, jobs: list[ShardJob]) -> None:
        """Query shard after shard."""
        with removed_in_bulk() as taken:
            for order in orders_of(jobs):
                for row in chunks_of(order, self.kept.reader(order.reader)):
                    for receipt in self.encode(row).to_pylist():
                        if receipt["error"]:
                            raise UserError(receipt["error"])
                        taken.extend(receipt["markers"])


def asked_in_words(jobs: list[ShardJob], images: int) -> str:
    """Number of images, counted anew for every encoder, and of encoders, in words."""
    encoders = {job.query.encoder_key for job in jobs}
    together = f" for {len(encoders)} encoders together" if len(encoders) > 1 else ""
    return count_of(images, "image", "images") + together
