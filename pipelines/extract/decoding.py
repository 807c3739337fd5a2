"""Where images are decoded: in the encoder actors, or in tasks of their own on the CPUs that the actors leave free.

Apart is faster where decoding keeps an encoder waiting and enough CPUs stand idle, and slower where it does not: then
every image crosses the object store decoded. Which it is, the first chunks of a run tell.
"""

from __future__ import annotations

from collections.abc import Sequence

from mi_core.costs import gain_of_decoding_apart
from pipelines.config.limits import ResourcesConfig
from pipelines.console import say
from pipelines.extract.jobs import ShardJob
from pipelines.extract.throughput import Throughput

TRIAL = 4  # chunks of every actor that are timed
LONG = 40  # chunks of every actor from which on a choice is worth the restart of the actors
WORTH = 1.1  # times as fast


class Decoding:
    """The choice of one start of a run: `tasks` is the number of decoding tasks, 0 in the actors, None undecided."""

    def __init__(self, resources: ResourcesConfig, cpus: float) -> None:
        self.resources = resources
        self.fitting = resources.decoders(resources.actors({"CPU": cpus}), {"CPU": cpus})
        self.tasks: int | None = {"fused": 0, "apart": max(1, self.fitting)}.get(resources.decode)
        if self.tasks is None and not self.fitting:
            self._choose(0, "no CPU is left for tasks of its own")
        elif self.tasks:
            say("extract", f"decoding in up to {self.tasks} tasks of its own")

    def trial(self, jobs: Sequence[ShardJob], actors: int) -> int:
        """How many of some jobs to do first, to decide by; 0: there is nothing to decide, or too little to do."""
        if self.tasks is not None:
            return 0
        if sum(job.chunks - len(job.skip) for job in jobs) < LONG * actors:
            self._choose(0, "there is little to do")
            return 0
        chunks = 0
        for number, job in enumerate(jobs[:-1], start=1):
            chunks += job.chunks - len(job.skip)
            if chunks >= TRIAL * actors:
                return number
        return 0

    def decide(self, done: Throughput, actors: int) -> None:
        """Choose by what was done in the actors."""
        rest = done.augment + done.forward + done.features + done.commit
        threads = self.resources.decoding_threads
        gain = gain_of_decoding_apart(done.decode, rest, actors=actors, threads=threads, tasks=self.fitting)
        share = done.decode / (done.decode + rest)
        tasks = self.fitting if gain >= WORTH else 0
        self._choose(tasks, f"it took {share:.0%} of their time, apart it would be {gain:.2f} times as fast")

    def _choose(self, tasks: int, reason: str) -> None:
        self.tasks = tasks
        place = f"in up to {tasks} tasks of its own" if tasks else "in the encoder actors"
        say("extract", f"decoding {place}: {reason}")
