"""Query encoders for membership features with Ray Data: reader tasks feed encoder actors, chunk by chunk.

A reader streams one shard and emits one row per chunk of encoded images; an encoder actor decodes, makes the
views, runs the encoder and commits one Parquet file per chunk and checkpoint; only a receipt goes on. The
committed files are the truth: names are a function of the work, so a repeated chunk overwrites itself and a
resumed run reads only what is missing. Chunks of a finished shard are compacted into one file. Shards are
planned and queried in parts of at most 40,000 chunks: Ray and the driver never hold more.
"""

from __future__ import annotations

import pickle
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace

from mi_core.encoders.remembering import Memory
from pipelines.config.demands import demands_of
from pipelines.config.encoders import EndpointConfig
from pipelines.config.run_config import RunConfig
from pipelines.console import count_of, meter, say
from pipelines.data.splits import Splits
from pipelines.encoders import adopt
from pipelines.encoders.access import Access, access_to
from pipelines.encoders.probe_ledger import checks_path
from pipelines.errors import UserError
from pipelines.extract import ledger, preflight, stopping
from pipelines.extract.attempts import begun, begun_of
from pipelines.extract.commit import compact, compaction_of, share_features
from pipelines.extract.features import rejected_samples
from pipelines.extract.jobs import ATTEMPTS, Place, ShardJob, jobs_of, places_of, remaining
from pipelines.extract.passes import FeatureFile, QueryPass, inherit_passes, passes_of, passes_path
from pipelines.extract.readers import Kept, ReadOrder, chunks_of, read_chunks
from pipelines.extract.throughput import Throughput, steady_rate
from pipelines.extract.worker import EncodeChunks, decode_chunks
from pipelines.files import storage
from pipelines.run.folder import RunFolder, SeedFolder
from pipelines.run.points import Run
from pipelines.run.ray_session import decoding_threads, encoder_actors

READERS_PER_ACTOR = 2
SHARES = 8  # jobs served by one pass over a shard, at most: each holds a chunk of images in memory
COMPACTED = 32  # shards per compaction task
PART = 40_000  # chunks given to Ray at once
_Asked = tuple[SeedFolder, str]  # an encoder of a folder


@dataclass(frozen=True)
class _Planned:
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

    def only(self, *, stopped: bool) -> _Planned:
        """Keep the passes with a stopping rule, or those without."""
        return replace(self, passes=[query for query in self.passes if bool(query.asking.stopping) == stopped])

    def finish(self, files: Mapping[str, Sequence[FeatureFile]]) -> None:
        """Record the files of the passes, which are complete now."""
        for query in self.passes:
            query.finish(self.folder, files.get(query.files_path(self.folder), []))

    def chunks(self) -> int:
        """Approximate number of chunks in all."""
        counts = Splits.load(self.folder.path).counts()
        return sum(sum(counts[role] for role in query.roles) // self.config.queries.chunk + 1 for query in self.passes)


def run(runs: Sequence[Run], rule_of: stopping.RuleOf) -> None:
    """Compute every feature that the attacks of some runs need and that is not committed yet.

    Features that several runs share are computed once, for the first; the others get a copy.

    Args:
        runs: a run and the points of its sweeps.
        rule_of: fits the rule that stops the queries of an image, as `pipelines.attack.tasks.stopping_rule`.

    Raises:
        UserError: an encoder returned NaN or another width (the sample is named), a shard became unreadable, more
            samples than allowed were rejected, the queries exceed the budget, or an encoder behind an API fails,
            changed its answers, or costs more than its cap.
    """
    before = {path: storage.read_bytes(path) if storage.exists(path) else None for path in _plans(runs)}
    planned = plan_passes(runs)
    parts = _parts(runs, planned)
    asked, left = _looked_through(runs, planned, parts)
    checked = adopt.to_check(runs, left)
    adopt.record_checks(checked)
    try:
        allowed = ledger.attempts_left(runs, asked, left)
    except UserError:
        for path, content in before.items():  # a plan beyond the budget is not kept
            storage.remove(path) if content is None else storage.write_atomic(path, content)
        raise
    session = uuid.uuid4().hex
    with access_to(runs) if left else nullcontext() as access:
        adopt.check_unchanged(runs, checked, access)
        for stopped in (False, True):  # a stopping rule is fitted on features of the first wave
            wave = [one.only(stopped=stopped) for one in planned]
            if any(one.passes for one in wave):
                _query(runs, wave, parts, _Session(session, allowed, access, rule_of))
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
    planned, places = plan_passes(runs), _places(runs)
    session = _Session(uuid.uuid4().hex, ATTEMPTS, None, rule_of)
    encode = EncodeChunks(gpus=runs[-1].config.resources.gpus_per_actor, memory=memory)
    for stopped in (False, True):
        wave = [one.only(stopped=stopped) for one in planned]
        jobs = [job for one in wave for job in one.jobs(places)]
        first = _distinct(jobs)
        todo = _counted(remaining(list(first.values())), session)
        todo = stopping.fitted(todo, runs, rule_of, here=True)
        for order in _orders(todo):
            for row in chunks_of(order, kept.reader(order.reader)):
                (receipt,) = encode(row).to_pylist()
                if receipt["error"]:
                    raise UserError(receipt["error"])
        compact([compaction_of(job) for job in todo])
        files = _shared(jobs, first)
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


def _query(
    runs: Sequence[Run], planned: Sequence[_Planned], parts: Sequence[Sequence[Place]], session: _Session
) -> None:
    """Compute the remaining features of some passes, part by part."""
    config, folder = runs[0]
    done, whole = 0, 0
    files: dict[str, list[FeatureFile]] = {}
    for number, part in enumerate(parts, start=1):
        jobs = [job for one in planned for job in one.jobs(part)]
        first = _distinct(jobs)
        todo = _counted(remaining(list(first.values())), session)
        done, whole = done + len(first) - len(todo), whole + len(first)
        if number == len(parts) and done:
            say("extract", f"{done} of {whole} shards already done")
        if todo:
            session.check(runs)
            todo = stopping.fitted(todo, runs, session.rule_of)
            throughput = _stream(todo, config, session.access)
            precision = sorted({job.query.precision for job in todo})
            folder.append_manifest("extraction", asdict(throughput) | {"precision": precision})
            _compact(todo, config)
            rate = throughput.images / throughput.wall
            of_parts = f"part {number} of {len(parts)}: " if len(parts) > 1 else ""
            asked = asked_in_words(todo, throughput.images)
            say("extract", f"{of_parts}{asked}, {throughput.views} queries, {rate:.0f} images/s")
        for path, more in _shared(jobs, first).items():
            files.setdefault(path, []).extend(more)
    for one in planned:
        one.finish(files)


def _shared(jobs: Sequence[ShardJob], first: Mapping[str, ShardJob]) -> dict[str, list[FeatureFile]]:
    """Copy shared features to every folder that needs them; returns the files of each pass by its record."""
    files: dict[str, list[FeatureFile]] = {}
    for job in jobs:
        share_features(first[job.identity], job)
        files.setdefault(job.query.files_path(job.folder), []).append(job.file)
    return files


def asked_in_words(jobs: Sequence[ShardJob], images: int) -> str:
    """Numbers of distinct images and encoders, in words."""
    encoders = {(job.folder, job.encoder) for job in jobs}
    if len(encoders) == 1:
        return count_of(images, "image", "images")
    distinct = {(job.source, key) for job in jobs for key in job.wanted}
    shown = count_of(len(distinct), "image", "images")
    return f"{shown} for {len(encoders)} encoders, {images:,} in all"


def _plans(runs: Sequence[Run]) -> list[str]:
    return [
        path_of(folder.seed(seed), encoder)
        for config, folder in runs
        for seed in config.seeds
        for encoder in config.encoders
        for path_of in (passes_path, checks_path)
    ]


def plan(runs: Sequence[Run]) -> tuple[list[ShardJob], dict[str, ShardJob]]:
    """Plan all jobs of some runs; returns them, and by identity the jobs left when shared ones are done once."""
    places = _places(runs)
    jobs = [job for one in plan_passes(runs) for job in one.jobs(places)]
    return jobs, _distinct(jobs)


def plan_passes(runs: Sequence[Run]) -> list[_Planned]:
    """Plan and record the passes of every seed of every run; later runs take over the plans of earlier ones."""
    planned = []
    for number, (config, folder) in enumerate(runs):
        for seed in config.seeds:
            place = folder.seed(seed)
            earlier = [before.seed(seed) for other, before in runs[:number] if seed in other.seeds]
            inherit_passes(place, earlier, list(config.encoders))
            passes = [query for demand in demands_of(config) for query in passes_of(demand, config, place, plan=True)]
            planned.append(_Planned(config, place, passes))
    return planned


def _places(runs: Sequence[Run]) -> list[Place]:
    """All shards of all runs, each once."""
    places: dict[tuple[str, str, str], Place] = {}
    for config, _ in runs:
        for place in places_of(config):
            places.setdefault(_name(place), place)
    return list(places.values())


def _parts(runs: Sequence[Run], planned: Sequence[_Planned]) -> list[list[Place]]:
    """All shards of all runs, in parts of about ``PART`` chunks; at least one part."""
    every = _places(runs)
    per_place = sum(one.chunks() + len(one.passes) * len(every) for one in planned) / max(1, len(every))
    size = max(1, int(PART / max(1.0, per_place)))
    return [every[start : start + size] for start in range(0, len(every), size)] or [[]]


def _name(place: Place) -> tuple[str, str, str]:
    source, reader, item = place
    return source, reader.model_dump_json(), item.name


def _distinct(jobs: Sequence[ShardJob]) -> dict[str, ShardJob]:
    """The jobs to do by identity: in the folder of the first, at the epochs of all."""
    first: dict[str, ShardJob] = {}
    for job in jobs:
        first[job.identity] = job.joined(first.get(job.identity))
    return first


def _looked_through(
    runs: Sequence[Run], planned: Sequence[_Planned], parts: Sequence[Sequence[Place]]
) -> tuple[Counter[_Asked], Counter[_Asked]]:
    """Queries per folder and encoder, in all and still to send; empty without a budget or an endpoint."""
    asked: Counter[_Asked] = Counter()
    left: Counter[_Asked] = Counter()
    remote = any(isinstance(encoder, EndpointConfig) for config, _ in runs for encoder in config.encoders.values())
    for part in parts if remote or runs[0][0].budget.queries is not None else ():
        jobs = list(_distinct([job for one in planned for job in one.jobs(part)]).values())
        for counted, some in ((asked, jobs), (left, remaining(jobs))):
            for job in some:
                counted[job.folder, job.encoder] += job.queries
    return asked, left


def _counted(jobs: Sequence[ShardJob], session: _Session) -> list[ShardJob]:
    """The jobs with their earlier attempts, and the attempts per chunk allowed from now on."""
    before = {place: begun(*place) for place in {(job.folder, job.encoder) for job in jobs}}
    return [
        replace(
            job,
            attempts=session.allowed,
            begun=begun_of(job, before[job.folder, job.encoder]),
            session=session.name,
        )
        for job in jobs
    ]


def _stream(jobs: list[ShardJob], config: RunConfig, access: Access | None) -> Throughput:
    import ray
    from ray.data import ActorPoolStrategy, DataContext, TaskPoolStrategy

    context = DataContext.get_current()
    context.target_max_block_size = 1  # every chunk is a block of its own and flows at once
    context.execution_options.preserve_order = False
    context.print_on_execution_start = False
    context.enable_progress_bars = False
    context.execution_no_progress_timeout_s = -1  # a slow chunk is not a dead one
    resources = config.resources
    chunks = sum(job.chunks - len(job.skip) for job in jobs)
    actors = min(encoder_actors(resources), max(1, chunks))
    decoders = resources.decoders(actors, ray.cluster_resources())
    rows = [{"order": pickle.dumps(order)} for order in _orders(jobs)]
    data = ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
        read_chunks,
        batch_size=1,
        batch_format="pyarrow",
        compute=TaskPoolStrategy(size=min(len(rows), READERS_PER_ACTOR * actors)),  # more would only wait
        num_cpus=resources.reader_cpus,
    )
    if decoders:
        data = data.map_batches(
            decode_chunks,
            batch_size=1,
            batch_format="pyarrow",
            compute=TaskPoolStrategy(size=decoders),
            num_cpus=resources.decoder_cpus,
        )
    receipts = data.map_batches(
        EncodeChunks,
        fn_constructor_args=(config.name, decoding_threads(resources), access, resources.gpus_per_actor),
        fn_constructor_kwargs={"compile": config.queries.compile},
        batch_size=1,
        batch_format="pyarrow",
        compute=ActorPoolStrategy(size=actors),
        num_cpus=resources.actor_cpus,
        num_gpus=resources.gpus_per_actor,
    )
    total = Throughput()
    started = time.time()
    images = sum(job.images for job in jobs)
    came: dict[str, list[tuple[float, int]]] = {}
    with meter("querying encoders", images, "images") as done:
        for batch in receipts.iter_batches(batch_size=None, batch_format="pyarrow"):
            for receipt in batch.to_pylist():
                if receipt["error"]:
                    if access is not None:
                        access.stop()  # before the actors end, with the answers that they wait for
                    raise UserError(receipt["error"])
                total.add(receipt)
                came.setdefault(receipt["actor"], []).append((receipt["ended"] - started, receipt["rows"]))
            done(total.images)
    total.wall = time.time() - started
    if len(came) == actors:
        total.started, total.steady = steady_rate(list(came.values()))
    return total


def _orders(jobs: list[ShardJob]) -> Iterator[ReadOrder]:
    """One order per shard for several jobs: reading a shard costs the same however few samples are needed."""
    by_shard: dict[tuple[str, str, str], list[ShardJob]] = {}
    for job in jobs:
        by_shard.setdefault(_name((job.source, job.reader, job.item)), []).append(job)
    for same in by_shard.values():
        for start in range(0, len(same), SHARES):
            first = same[start]
            shares = tuple(job.share() for job in same[start : start + SHARES])
            yield ReadOrder(first.source, first.reader, first.item, shares)


def _compact(jobs: list[ShardJob], config: RunConfig) -> None:
    import ray

    remote = ray.remote(num_cpus=config.resources.reader_cpus)(compact)
    work = [compaction_of(job) for job in jobs]
    ray.get([remote.remote(work[start : start + COMPACTED]) for start in range(0, len(work), COMPACTED)])


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
