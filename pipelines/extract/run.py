"""Query encoders for membership features with Ray Data: reader tasks feed encoder actors, chunk by chunk.

A reader streams one shard and emits one row per chunk of encoded images; an encoder actor decodes, makes the
views, runs the encoders that ask for these images and commits one Parquet file per chunk and checkpoint; only a
receipt goes on. The committed files are the truth: names are a function of the work, so a repeated chunk overwrites
itself and a resumed run reads only what is missing. They are the feature files for good, so nothing waits for the end
of a shard; the driver holds no sample.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

from pipelines.config.sections.data import DataConfig
from pipelines.console import say
from pipelines.data.draw.splits import Splits
from pipelines.data.plans import Planned
from pipelines.encoders.access import access_to
from pipelines.errors import UserError
from pipelines.extract import bank, ledger, preflight
from pipelines.extract.actor.attempts import Unpaid, begun, begun_of, settle
from pipelines.extract.actor.worker import EncodeChunks
from pipelines.extract.chunk_size import Sizing
from pipelines.extract.division.jobs import ATTEMPTS, Place, ShardJob, jobs_of, looked_up, places_of
from pipelines.extract.division.passes import FeatureFile, Pass, grouped, recorded_passes, resumed, with_banks
from pipelines.extract.division.readers import Kept
from pipelines.extract.features import rejected_samples
from pipelines.extract.stream import InProcess, InRay
from pipelines.plan.items import Query, items_in
from pipelines.run.folder import SeedFolder
from pipelines.run.points import Run

_Asked = tuple[SeedFolder, str]  # an encoder of a folder


def run(runs: Sequence[Run], planned: Sequence[Planned]) -> None:
    """Compute every query of some plans that is not committed yet, each once however many plans have it.

    Args:
        runs: a run and the points of its sweeps.
        planned: their plans.

    Raises:
        UserError: an encoder returned NaN or another width (the sample is named), a shard became unreadable, more
            samples than allowed were rejected, the queries exceed the budget at the start or once workers were lost, or
            an encoder behind an API fails, changed its answers, or costs more than its cap.
    """
    config = runs[0].config
    passes = plan_passes(planned, Sizing(config.resources), config.queries.chunk)
    budget = config.budget.queries
    asked, left = _looked_through(passes, budget)
    checked = preflight.to_check(runs, left)
    allowed = ledger.attempts_left(budget, planned, asked, left)
    preflight.record_checks(checked)
    for one in passes:
        one.record()
    try:
        with access_to(runs) if left else nullcontext() as access:
            preflight.check_unchanged(planned, checked, access)
            _answer(passes, planned, InRay(list(runs), access), allowed)
    except Unpaid as error:
        ledger.attempts_left(budget, planned, *_looked_through(passes, budget))  # says what budget it needs
        raise UserError(f"{error} in this start; run the same command again, its rest covers the run") from error
    for plan in planned:
        _account(plan)


def here(planned: Sequence[Planned], encode: EncodeChunks, kept: Kept, chunk: int | str) -> None:
    """Do the same in this process, shard after shard: a trial of a search is itself a Ray task.

    Args:
        planned: as for `run`.
        encode: the encoder actor, which may remember backbone outputs.
        kept: samples that were read before in this process.
        chunk: images per chunk, as the config says.

    Raises:
        UserError: as `run`; or an encoder is behind an API, whose ledger has one writer.
    """
    passes = plan_passes(planned, None, chunk)
    for one in passes:
        one.record()
    _answer(passes, planned, InProcess(encode, kept))
    for plan in planned:
        _account(plan)


@dataclass(frozen=True)
class PlannedPass:
    """A pass, the plan that it is made for, which is the first that has its queries, and all shards of this plan."""

    query: Pass
    planned: Planned
    places: Sequence[Place]
    new: bool

    def jobs(self) -> list[ShardJob]:
        """Its jobs, one for each shard that has images of it."""
        plan, folder = self.planned
        return list(jobs_of(self.query, plan.data, folder, self.places))

    def record(self) -> None:
        """Write it down, unless it is."""
        if self.new:
            self.query.record(self.planned.folder.run)


def plan_passes(planned: Sequence[Planned], sizing: Sizing | None, chunk: int | str) -> list[PlannedPass]:
    """The passes that compute all queries of some plans; earlier ones go on.

    Args:
        planned: the plans; all have one store.
        sizing: decides how many images make a chunk of a new pass; None: as many as nobody asked for.
        chunk: images per chunk, as the config says.
    """
    store = planned[0].folder.store
    recorded = recorded_passes(store, [one.folder.trial for one in planned])
    wanted = [{query.key: query for query in items_in(one.plan, Query)} for one in planned]
    places: dict[str, list[Place]] = {}  # sources are listed once

    def places_in(data: DataConfig) -> list[Place]:
        sources = str({name: source.model_dump_json() for name, source in data.sources.items()})
        if sources not in places:
            places[sources] = places_of(data)
        return places[sources]

    earlier: dict[str, PlannedPass] = {}
    for one, queries in zip(planned, wanted, strict=True):
        for query in resumed(queries, store, recorded):
            earlier.setdefault(query.tag, PlannedPass(query, one, places_in(one.plan.data), new=False))
    passes = list(earlier.values())
    covered = {key for record in recorded if record.finished for key in record.keys}
    covered.update(key for known in passes for key in known.query.keys)
    for one, queries in zip(planned, wanted, strict=True):
        missing = [query for key, query in queries.items() if key not in covered]
        new = [replace(query, trial=one.folder.trial) for query in grouped(missing, store)]
        covered.update(queries)
        if chunk != "auto":
            new = [replace(query, chunk=int(chunk)) for query in new]
        elif new and sizing is not None:
            new = sizing(new, one.plan.data, one.folder)
        passes += [PlannedPass(query, one, places_in(one.plan.data), new=True) for query in new]
    return passes


def _answer(
    passes: Sequence[PlannedPass], planned: Sequence[Planned], executor: InRay | InProcess, allowed: int = ATTEMPTS
) -> None:
    """Compute the remaining features of some passes, by so many attempts per chunk at most."""
    jobs = [job for one in passes for job in one.jobs()]
    todo = _with_attempts(jobs, allowed)
    if len(todo) < len(jobs):
        say("extract", f"{len(jobs) - len(todo)} of {len(jobs)} shards already done")
    if todo:
        executor.answer(bank.with_banks(todo, planned))
    files: dict[str, list[FeatureFile]] = {}
    for job in jobs:
        files.setdefault(job.query.tag, []).append(job.file)
    for one in passes:
        one.query.finish(files.get(one.query.tag, []))


def _looked_through(passes: Sequence[PlannedPass], budget: int | None) -> tuple[Counter[_Asked], Counter[_Asked]]:
    """Queries per folder and encoder, in all and still to send; empty without a budget or an endpoint."""
    asked: Counter[_Asked] = Counter()
    left: Counter[_Asked] = Counter()
    if any(one.query.remote for one in passes) or budget is not None:
        jobs = [job for one in passes for job in one.jobs()]
        settle(looked_up(jobs))  # else their queries would count as lost
        for counted, some in ((asked, jobs), (left, [job for job in looked_up(jobs) if job.is_left])):
            for job in some:
                counted[job.folder, job.encoder] += job.queries
            first = {job.query.tag: job for job in some}
            for query in with_banks(job.query for job in first.values()):
                counted[first[query.tag].folder, query.encoder] += query.bank_queries
    return asked, left


def _with_attempts(jobs: Sequence[ShardJob], allowed: int) -> list[ShardJob]:
    """The jobs that are left, with their earlier attempts and the attempts per chunk allowed from now on."""
    known, session = looked_up(jobs), uuid.uuid4().hex
    settle(known)
    left = [job for job in known if job.is_left]
    before = {place: begun(*place) for place in {(job.query.store, job.query.encoder_key) for job in left}}
    return [
        replace(
            job, attempts=allowed, begun=begun_of(job, before[job.query.store, job.query.encoder_key]), session=session
        )
        for job in left
    ]


def _account(planned: Planned) -> None:
    """Raise UserError if too many samples were rejected, now or before."""
    plan, folder = planned
    roles = {role.name for query in items_in(plan, Query) for role in query.samples.roles}
    asked = Splits.load(folder.path).count(roles)
    rejected = rejected_samples(plan, folder)
    if len(rejected) > plan.data.max_rejected * asked:
        first = rejected[0]
        raise UserError(
            f"{len(rejected)} of {asked} samples could not be queried, more than data.max_rejected = "
            f"{plan.data.max_rejected:.2%} allows; first {first['source']}/{first['key']}: {first['reason']}"
        )
