"""Make encoders side by side, each as a Ray task or, where several workers train one, with Ray Train.

A task takes a process of Ray's that may have made other encoders: what it costs is its own work. A TorchTrainer starts
five processes, each of which imports PyTorch or Ray Train: some 20 seconds of CPU. So each one is a lane whose workers
go on with the next encoder as long as there is one, and a short training waits for a lane instead of opening one.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import Any

import safetensors.numpy
import torch

from mi_core.defenses.base import PreparedDefense, ProviderData, Spread, numbers
from pipelines.config.sections.encoders import DefendedConfig
from pipelines.config.sections.limits import ResourcesConfig
from pipelines.data.draw.images import load_images
from pipelines.data.draw.parts import members_of
from pipelines.data.draw.splits import Splits
from pipelines.encoders.stored import DEFENSE, PREPARED, defended_fingerprint, defense_seed, describe, weights_path
from pipelines.errors import UserError
from pipelines.files import storage
from pipelines.files.digest import digest
from pipelines.pretrain.worker import FAULTS, TrainingJob, exceed, train_alone, train_worker
from pipelines.run.board import REFRESH_SECONDS, Note
from pipelines.run.ray_session import TASK_MEMORY, borne, storage_of, trainings_at_once

SHORT = 20_000  # images times epochs of a training that takes less than the start of a lane: 20 s on one core
SMALL = 2**26  # bytes of pixels; a process that trained on more ends, and its memory with it

Finished = list[tuple[TrainingJob, float]]
Notes = dict[str, Note]


@dataclass
class _Lane:
    """A TorchTrainer run under way; or, without a name, a task that makes one encoder."""

    name: str | None
    ended: Future[None]
    job: TrainingJob | None
    started: float = field(default_factory=time.perf_counter)
    trained: int = 0
    closed: bool = False

    def take(self) -> tuple[TrainingJob, float]:
        """Its job, which is finished, and the seconds that it took."""
        if self.job is None:
            raise RuntimeError(f"lane {self.name} works on nothing")
        job, seconds = self.job, time.perf_counter() - self.started
        self.job, self.trained = None, self.trained + 1
        return job, seconds


class Bases:
    """The jobs of the encoders that others start from, in whichever run these are made."""

    def __init__(self, every: Sequence[TrainingJob], first: Mapping[str, TrainingJob]) -> None:
        self.first = first
        self.by_place = {(job.folder, job.name): job for job in every}

    def base_of(self, job: TrainingJob) -> TrainingJob | None:
        """The encoder that a job starts from, as its own run has it; None: none that is trained here."""
        return None if job.config.start is None else self.by_place.get((job.folder, job.config.start))

    def bring(self, job: TrainingJob) -> None:
        """Copy the encoder that a job starts from to its own run, where another run has made it."""
        base = self.base_of(job)
        if base is not None and not base.is_done():
            self.first[base.inputs].copy_to(base)


class Lanes:
    """Makes encoders with the resources of the connected cluster.

    Args:
        jobs: encoders to make, each after those that it starts from.
        resources: of a training.
        board: the actor where workers note their progress.
        bases: the encoders that others start from.
    """

    def __init__(self, jobs: Sequence[TrainingJob], resources: ResourcesConfig, board: Any, bases: Bases) -> None:
        self.waiting = list(jobs)
        self.jobs = {job.label: job for job in jobs}
        trained = [job for job in jobs if not isinstance(job.config, DefendedConfig)]
        self.images = {job.label: Splits.load(job.folder.path).count(job.config.train_on) for job in trained}
        self.resources, self.board, self.bases = resources, board, bases
        self.at_once = trainings_at_once(resources)
        self.lanes: list[_Lane] = []

    def run(self) -> Iterator[tuple[Finished, Notes]]:
        """Make all encoders; yields what finished since the last look, and how far the others are.

        The threads are daemons, so that an error or Ctrl-C ends the stage at once.

        Raises:
            UserError: a fault in what the user gave.
        """
        import ray

        while self.waiting or self.lanes:
            self._place()
            wait([lane.ended for lane in self.lanes], timeout=REFRESH_SECONDS)
            yield self._finished(), ray.get(self.board.read.remote())

    @property
    def _working(self) -> list[_Lane]:
        return [lane for lane in self.lanes if lane.job is not None]

    def _place(self) -> None:
        """Begin as many encoders as resources allow; close lanes for which there is none."""
        unfinished = {job.inputs for job in (*self.waiting, *(lane.job for lane in self._working if lane.job))}
        for job in list(self.waiting):
            base = self.bases.base_of(job)
            if base is not None and base.inputs in unfinished:
                continue
            if len(self._working) >= self.at_once:
                break
            is_task = self._is_task(job)
            lane = None if is_task else self._free()
            trains = any(lane.name is not None for lane in self._working)  # a lane will be free for another training
            if not is_task and lane is None and trains and self.images[job.label] * job.config.epochs < SHORT:
                continue
            self.waiting.remove(job)
            self.bases.bring(job)
            self._begin(job, lane)
        while (lane := self._free()) is not None:
            self._give(lane, None)

    def _free(self) -> _Lane | None:
        """A lane whose workers wait for their next training; None: there is none."""
        return next((lane for lane in self.lanes if lane.name and lane.job is None and not lane.closed), None)

    def _is_task(self, job: TrainingJob) -> bool:
        """Tell whether an encoder is made by one process: it is trained by one worker, or is a defense of another."""
        return self.resources.train_workers == 1 or isinstance(job.config, DefendedConfig)

    def _begin(self, job: TrainingJob, lane: _Lane | None) -> None:
        """Make an encoder as a Ray task, or in a lane that is free or new."""
        if self._is_task(job):
            self.lanes.append(_Lane(None, _in_thread(lambda: self._make(job)), job))
            return
        if lane is None:
            name = uuid.uuid4().hex
            lane = _Lane(name, _in_thread(lambda: self._train(name, job)), None)
            self.lanes.append(lane)
        self._give(lane, job)

    def _give(self, lane: _Lane, job: TrainingJob | None) -> None:
        """Tell the workers of a lane what to train next; None: nothing more."""
        import ray

        ray.get(self.board.give.remote(lane.name, None if job is None else job.label))
        lane.job, lane.started, lane.closed = job, time.perf_counter(), job is None

    def _finished(self) -> Finished:
        """Encoders that were finished since the last look.

        A lane that lost too many workers is opened anew if it had finished an encoder.

        Raises:
            UserError: a fault in what the user gave.
        """
        import ray

        done = set(ray.get(self.board.done.remote()))
        finished = [lane.take() for lane in self._working if lane.job and lane.job.label in done]
        for lane in [lane for lane in self.lanes if lane.ended.done()]:
            self.lanes.remove(lane)
            error = lane.ended.exception()
            if error is not None and (lane.job is None or not lane.trained or isinstance(error, UserError)):
                raise error
            if error is not None and lane.job is not None:
                self.waiting.insert(0, lane.job)
            elif lane.job is not None:
                finished.append(lane.take())
        return finished

    def _make(self, job: TrainingJob) -> None:
        """Make an encoder as a Ray task.

        Raises:
            UserError: a fault in what the user gave.
        """
        import ray

        cpus, gpus = self.resources.train_cpus, self.resources.train_gpus
        memory, beside = borne(2 * TASK_MEMORY), self.board
        if isinstance(job.config, DefendedConfig):
            remote, beside = ray.remote(num_cpus=cpus, num_gpus=gpus, memory=memory)(defend), over_cluster
        else:
            remote = ray.remote(
                num_cpus=cpus,
                num_gpus=gpus,
                memory=memory,
                max_calls=1 if gpus or exceed(job.data, self.images[job.label], SMALL) else 0,  # 0: any number
                max_retries=self.resources.train_retries,
                retry_exceptions=True,
            )(train_alone)
        if fault := ray.get(remote.remote(job, max(1, int(cpus)), beside)):
            raise UserError(f"{job.label}: {fault}")

    def _train(self, lane: str, first: TrainingJob) -> None:
        """One TorchTrainer run.

        Raises:
            UserError: a fault in what the user gave.
        """
        import ray
        from ray.train import FailureConfig, RunConfig, ScalingConfig
        from ray.train.torch import TorchTrainer

        scratch = f"{first.folder.encoder(first.name)}/state/ray"
        trainer = TorchTrainer(
            train_worker,
            train_loop_config={"lane": lane, "jobs": self.jobs, "cpus": self.resources.train_cpus, "board": self.board},
            scaling_config=ScalingConfig(
                num_workers=self.resources.train_workers,
                use_gpu=self.resources.train_gpus > 0,
                resources_per_worker={
                    "CPU": self.resources.train_cpus,
                    "GPU": self.resources.train_gpus,
                    "memory": borne(2 * TASK_MEMORY),
                },
            ),
            run_config=RunConfig(
                name=lane,  # our own state decides what is resumed, never Ray's
                **storage_of(scratch),
                failure_config=FailureConfig(max_failures=self.resources.train_retries),
            ),
        )
        trainer.fit()
        storage.remove(scratch)
        faults: Mapping[str, str] = ray.get(self.board.all_faults.remote())
        for label, fault in faults.items():
            if fault:
                raise UserError(f"{label}: {fault}")


def _in_thread(work: Callable[[], None]) -> Future[None]:
    future: Future[None] = Future()

    def run() -> None:
        try:
            work()
            future.set_result(None)
        except BaseException as error:  # noqa: BLE001 - handed to the one who waits
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


PIECES = 64  # tasks that many independent pieces of work are cut into


def defend(job: TrainingJob, threads: int, spread: Spread = map) -> str:
    """Defend one encoder of one seed; returns the fault of the user, if there is one."""
    try:
        _defend(job, threads, spread)
    except FAULTS as error:
        return str(error)
    return ""


def over_cluster(function: Callable[[Any], Any], arguments: Sequence[Any]) -> list[Any]:
    """Like ``map``, as Ray tasks of many arguments each."""
    import ray

    shared, remote = ray.put(function), ray.remote(num_cpus=1, memory=borne(TASK_MEMORY))(_each)
    size = max(1, -(-len(arguments) // PIECES))
    pending = [remote.remote(shared, arguments[start : start + size]) for start in range(0, len(arguments), size)]
    return [result for results in ray.get(pending) for result in results]


def _each(function: Callable[[Any], Any], arguments: Sequence[Any]) -> list[Any]:
    torch.set_num_threads(1)
    return [function(one) for one in arguments]


def _defend(job: TrainingJob, threads: int, spread: Spread) -> None:
    torch.set_num_threads(threads)
    config = job.config
    assert isinstance(config, DefendedConfig)
    base, (epoch,) = describe(job.folder, config.defends), config.kept_epochs
    if epoch not in base.epochs:
        raise UserError(f"encoders.{job.name}.epoch = {epoch}, allowed: {', '.join(map(str, base.epochs))}")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    defense = config.method(defense_seed(job.folder.seed, job.name))
    splits = Splits.load(job.folder.path)
    mine = members_of(splits, config, job.folder.seed, job.nonce)
    encoder = base.load(epoch).to(device)

    def provided() -> tuple[ProviderData, ProviderData | None]:
        return _provided(job, mine, config.train_on), _provided(job, splits, config.outside) if config.outside else None

    if isinstance(defense, PreparedDefense):
        kept = {name: value for name, value in config.settings.items() if name not in defense.late}
        roles = {role: mine.role_digest(role) for role in config.train_on}
        roles |= {role: splits.role_digest(role) for role in config.outside}
        meaning = job.data.meaning_of(job.data.label, config.attribute)
        made = digest(base.record.fingerprints[str(epoch)], kept, roles, meaning)
        path = f"{base.folder}/{PREPARED}{made[:16]}.safetensors"
        if not storage.exists(path):
            prepared = dict(defense.prepare(encoder, *provided(), spread=spread))
            storage.write_atomic(path, safetensors.numpy.save(prepared))
        state = dict(defense.release(encoder, safetensors.numpy.load(storage.read_bytes(path))))
    else:
        state = dict(defense.fit(encoder, *provided()))
    data = safetensors.numpy.save(state)
    place = job.folder.encoder(job.name)
    storage.copy(weights_path(base.folder, epoch), weights_path(place, epoch))
    storage.write_atomic(f"{place}/{DEFENSE}", data)
    fingerprint = defended_fingerprint(base.record.fingerprints[str(epoch)], data, config, defense.seed)
    job.write(
        images=len(mine.rows(config.train_on)),
        outputs=defense.defended(encoder, state).outputs,
        fingerprints={str(epoch): fingerprint},
        defense=numbers(state),
    )


def _provided(job: TrainingJob, splits: Splits, roles: Sequence[str]) -> ProviderData:
    """Images of some roles, with their classes and the attribute to hide, where all of them have one."""
    assert isinstance(job.config, DefendedConfig)
    loaded = load_images(job.data, splits, roles)
    labels = None if None in loaded.labels else torch.tensor(loaded.labels, dtype=torch.int64)
    attributes = None
    if job.config.attribute is not None:
        known = splits.attribute(job.config.attribute)
        values = [known[name] for name in loaded.ids]
        if None in values:
            first = loaded.ids[values.index(None)]
            raise UserError(f"{first} has no attribute {job.config.attribute}, which {job.name} should hide")
        attributes = torch.tensor(values, dtype=torch.int64)
    return ProviderData(torch.from_numpy(loaded.images), labels, attributes)
