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
from dataclasses import asdict, dataclass, replace

from mi_core.encoders.remembering import Memory
from pipelines.config.demands import demands_of
from pipelines.config.run_config import RunConfig
from pipelines.config.sections.encoders import EndpointConfig
from pipelines.console import count_of, say
from pipelines.data.draw.splits import Splits
from pipelines.encoders import adopt
from pipelines.encoders.access import Access, access_to
from pipelines.encoders.probe_ledger import checks_path
from pipelines.encoders.stored import describe
from pipelines.errors import UserError
from pipelines.extract import bank, ledger, preflight, stopping
from pipelines.extract.attempts import Unpaid, begun, begun_of, settle
from pipelines.extract.chunk_size import Sizing
from pipelines.extract.features import rejected_samples
from pipelines.extract.jobs import ATTEMPTS, Place, ShardJob, looked_up, orders_of, remaining
from pipelines.extract.passes import passes_path
from pipelines.extract.plan import Planned, all_places, distinct, plan_passes, shared
from pipelines.extract.readers import Kept, chunks_of
from pipelines.extract.stream import removed_in_bulk, stream
from pipelines.extract.worker import EncodeChunks
from pipelines.files import storage
from pipelines.run.folder import RunFolder, SeedFolder
from pipelines.run.points import Run

_Asked = tuple[SeedFolder, str]  # an encoder of a folder


def run(runs: Sequence[Run], rule_of: stopping.RuleOf) -> None:
    """Compute every feature that the attacks of some runs need and that is not committed yet.

    Features that several runs share are computed once, for the first; the others get a copy.

    Args:
        runs: a run and the points of its sweeps.
        rule_of: fits the rule that stops the queries of an image, as `pipelines.attack.tasks.stopping_rule`.

    Raises:
        UserError: an encoder returned NaN or another width (the sample is named), a shard became unreadable, more
            samples than allowed were rejected, the queries exceed the budget at the start or once workers were lost, or
            an encoder behind an API fails, changed its answers, or costs more than its cap.
    """
    before = {path: storage.read_bytes(path) if storage.exists(path) else None for path in _plans(runs)}
    planned, places = plan_passes(runs, Sizing()), all_places(runs)
    asked, left = _looked_through(runs, planned, places)
    checked = adopt.to_check(runs, left)
    adopt.record_checks(checked)
    try:
        _check_copies(planned)
        allowed = ledger.attempts_left(runs, asked, left)
    except UserError:
        for path, content in before.items():  # a plan that cannot be carried out is not kept
            storage.remove(path) if content is None else storage.write_atomic(path, content)
        raise
    session = uuid.uuid4().hex
    try:
        with access_to(runs) if left else nullcontext() as access:
            adopt.check_unchanged(runs, checked, access)
            for stopped in (False, True):  # a stopping rule is fitted on features of the first wave
                wave = [one.only(stopped=stopped) for one in planned]
                if any(one.passes for one in wave):
                    _query(runs, wave, places, _Session(session, allowed, access, rule_of))
    except Unpaid as error:
        ledger.attempts_left(runs, *_looked_through(runs, planned, places))  # says what budget it needs
        raise UserError(f"{error} in this start; run the same command again, its rest covers the run") from error
    for config, folder in runs:
        _account(config, folder)


def here(runs: Sequence[Run], rule_of: stopping.RuleOf, memory: Memory, kept: Kept) -> None:
    """Do the same in this process, shard after shard: a trial of a search is itself a Ray task.

    Args:
        runs, rule_of: as for `run`.
        memory: backbone outputs computed before in this process.
        kept: samples that were read before in this process.

    Raises:
        UserError: as `run`; or an encoder is behind an API, whose ledger has one writer.
    """
    planned, places = plan_passes(runs), all_places(runs)
    session = _Session(uuid.uuid4().hex, ATTEMPTS, None, rule_of)
    encode = EncodeChunks(gpus=runs[-1].config.resources.gpus_per_actor, memory=memory)
    for stopped in (False, True):
        wave = [one.only(stopped=stopped) for one in planned]
        jobs = [job for one in wave for job in one.jobs(places)]
        first = distinct(jobs)
        todo = bank.laid(stopping.fitted(_left(list(first.values()), session), runs, rule_of, here=True), runs)
        with removed_in_bulk() as taken:
            for order in orders_of(todo):
                for row in chunks_of(order, kept.reader(order.reader)):
                    for receipt in encode(row).to_pylist():
                        if receipt["error"]:
                            raise UserError(receipt["error"])
                        taken.extend(receipt["markers"])
        files = shared(jobs, first)
        for one in wave:
            one.finish(files)
    for config, folder in runs:
        _account(config, folder)


@dataclass
class _Session:
    """One start of a run: its name, attempts per chunk, access to endpoints, and what fits stopping rules."""

    name: str
    allowed: int
    access: Access | None
    rule_of: stopping.RuleOf
    checked: bool = False

    def check(self, runs: Sequence[Run]) -> None:
        """Run the preflight checks once, before the first query."""
        if not self.checked:
            preflight.run(runs)
            self.checked = True


def _check_copies(planned: Sequence[Planned]) -> None:
    """Raise UserError if a pass needs the momentum copy of an encoder that was trained before these were kept."""
    for one in planned:
        copied = {query.asking.encoder for query in one.passes if any(measure.momentum for measure in query.needs)}
        for stored in (describe(one.folder, name) for name in sorted(copied)):
            if not stored.copied:
                raise UserError(
                    f"{stored.folder} holds no momentum copy of {stored.record.name}, which keys: momentum needs; "
                    "choose another --out, or train it again with --force pretrain"
                )


def _query(runs: Sequence[Run], planned: Sequence[Planned], places: Sequence[Place], session: _Session) -> None:
    """Compute the remaining features of some passes."""
    config, folder = runs[0]
    jobs = [job for one in planned for job in one.jobs(places)]
    first = distinct(jobs)
    todo = _left(list(first.values()), session)
    if len(todo) < len(first):
        say("extract", f"{len(first) - len(todo)} of {len(first)} shards already done")
    if todo:
        session.check(runs)
        todo = bank.laid(stopping.fitted(todo, runs, session.rule_of), runs)
        throughput = stream(todo, config, session.access)
        precision = sorted({job.query.precision for job in todo})
        folder.append_manifest("extraction", asdict(throughput) | {"precision": precision})
        rate = throughput.images / throughput.wall
        asked = asked_in_words(todo, throughput.images)
        say("extract", f"{asked}, {throughput.views} queries, {rate:.0f} images/s")
    files = shared(jobs, first)
    for one in planned:
        one.finish(files)


def asked_in_words(jobs: Sequence[ShardJob], images: int) -> str:
    """Number of images, counted anew for every encoder, and of encoders, in words."""
    encoders = {(job.folder, job.encoder) for job in jobs}
    together = f" for {len(encoders)} encoders together" if len(encoders) > 1 else ""
    return count_of(images, "image", "images") + together


def _plans(runs: Sequence[Run]) -> list[str]:
    return [
        path_of(folder.seed(seed), encoder)
        for config, folder in runs
        for seed in config.seeds
        for encoder in config.encoders
        for path_of in (passes_path, checks_path)
    ]


def _looked_through(
    runs: Sequence[Run], planned: Sequence[Planned], places: Sequence[Place]
) -> tuple[Counter[_Asked], Counter[_Asked]]:
    """Queries per folder and encoder, in all and still to send; empty without a budget or an endpoint."""
    asked: Counter[_Asked] = Counter()
    left: Counter[_Asked] = Counter()
    remote = any(isinstance(encoder, EndpointConfig) for config, _ in runs for encoder in config.encoders.values())
    if remote or runs[0][0].budget.queries is not None:
        jobs = list(distinct([job for one in planned for job in one.jobs(places)]).values())
        settle(looked_up(jobs))  # else their queries would count as lost
        for counted, some in ((asked, jobs), (left, remaining(jobs))):
            for job in some:
                counted[job.folder, job.encoder] += job.queries
            for query, place in {(job.query.tag, job.folder): (job.query, job.folder) for job in some}.values():
                counted[place, query.asking.encoder] += query.bank_queries
    return asked, left


def _left(jobs: Sequence[ShardJob], session: _Session) -> list[ShardJob]:
    """The jobs that are left, with their earlier attempts and the attempts per chunk allowed from now on."""
    known = looked_up(jobs)
    settle(known)
    left = [job for job in known if job.is_left]
    before = {place: begun(*place) for place in {(job.folder, job.encoder) for job in left}}
    return [
        replace(
            job,
            attempts=session.allowed,
            begun=begun_of(job, before[job.folder, job.encoder]),
            session=session.name,
        )
        for job in left
    ]


def _account(config: RunConfig, folder: RunFolder) -> None:
    """Raise UserError if too many samples were rejected, now or before."""
    roles = {role for demand in demands_of(config) for role in demand.needs}
    for seed in config.seeds:
        asked = Splits.load(folder.seed(seed).path).count(roles)
        rejected = rejected_samples(config, folder.seed(seed))
        if len(rejected) > config.data.max_rejected * asked:
            first = rejected[0]
            raise UserError(
                f"{len(rejected)} of {asked} samples could not be queried, more than data.max_rejected = "
                f"{config.data.max_rejected:.2%} allows; first {first['source']}/{first['key']}: {first['reason']}"
            )
