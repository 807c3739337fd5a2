"""Plan an extraction: the passes of all runs and seeds, and their jobs, each once however many runs share them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pipelines.config.demands import demands_of
from pipelines.config.run_config import RunConfig
from pipelines.extract.commit import share_features
from pipelines.extract.jobs import Place, ShardJob, jobs_of, place_name, places_of
from pipelines.extract.passes import FeatureFile, QueryPass, inherit_passes, missing_passes, passes_of, record
from pipelines.run.folder import SeedFolder
from pipelines.run.points import Run

Sized = Callable[[Sequence[QueryPass], RunConfig, SeedFolder], list[QueryPass]]
"""New passes of a seed with the images per chunk that are decided for them."""


@dataclass(frozen=True)
class Planned:
    """The passes of one seed of one run."""

    config: RunConfig
    folder: SeedFolder
    passes: list[QueryPass]

    def jobs(self, places: Sequence[Place]) -> Iterator[ShardJob]:
        """The jobs on some shards."""
        known = set(self.config.data.sources)
        mine = [place for place in places if place[0] in known and self.config.data.sources[place[0]] == place[1]]
        for query in self.passes:
            yield from jobs_of(query, self.config, self.folder, mine)

    def only(self, *, stopped: bool) -> Planned:
        """Keep the passes with a stopping rule, or those without."""
        return replace(self, passes=[query for query in self.passes if bool(query.asking.stopping) == stopped])

    def finish(self, files: Mapping[str, Sequence[FeatureFile]]) -> None:
        """Record the files of the passes, which are complete now."""
        for query in self.passes:
            query.finish(self.folder, files.get(query.files_path(self.folder), []))


def plan(runs: Sequence[Run]) -> tuple[list[ShardJob], dict[str, ShardJob]]:
    """Plan all jobs of some runs; returns them, and by identity the jobs left when shared ones are done once."""
    places = all_places(runs)
    jobs = [job for one in plan_passes(runs) for job in one.jobs(places)]
    return jobs, distinct(jobs)


def plan_passes(runs: Sequence[Run], sizing: Sized | None = None) -> list[Planned]:
    """Plan and record the passes of every seed of every run; later runs take over the plans of earlier ones.

    Args:
        runs: a run and the points of its sweeps.
        sizing: decides how many images make a chunk of a new pass; None: as many as nobody asked for.
    """
    planned = []
    for number, (config, folder) in enumerate(runs):
        for seed in config.seeds:
            place = folder.seed(seed)
            earlier = [before.seed(seed) for other, before in runs[:number] if seed in other.seeds]
            inherit_passes(place, earlier, list(config.encoders))
            new = missing_passes(config, place)
            if new and sizing is not None and config.queries.chunk == "auto":
                new = sizing(new, config, place)
            record(place, new)
            passes = [query for demand in demands_of(config) for query in passes_of(demand, config, place)]
            planned.append(Planned(config, place, passes))
    return planned


def all_places(runs: Sequence[Run]) -> list[Place]:
    """All shards of all runs, each once."""
    places: dict[tuple[str, str, str], Place] = {}
    for config, _ in runs:
        for place in places_of(config):
            places.setdefault(place_name(place), place)
    return list(places.values())


def distinct(jobs: Sequence[ShardJob]) -> dict[str, ShardJob]:
    """The jobs to do by identity: in the folder of the first, at the epochs of all."""
    first: dict[str, ShardJob] = {}
    for job in jobs:
        first[job.identity] = job.joined(first.get(job.identity))
    return first


def shared(jobs: Sequence[ShardJob], first: Mapping[str, ShardJob]) -> dict[str, list[FeatureFile]]:
    """Copy shared features to every folder that needs them; returns the files of each pass by its record."""
    share_features([(first[job.identity], job) for job in jobs if first[job.identity].folder != job.folder])
    files: dict[str, list[FeatureFile]] = {}
    for job in jobs:
        files.setdefault(job.query.files_path(job.folder), []).append(job.file)
    return files
