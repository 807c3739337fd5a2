"""Train target and shadow encoders with Ray Train, as many at once as the cluster holds; adopt those from elsewhere.

Every encoder is one data-parallel TorchTrainer run. It saves weights at the chosen epochs, then the state to resume
from, in the run folder: a restarted worker or command continues after the last saved epoch.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from typing import Any

from pipelines.config.encoders import DefendedConfig, TrainedConfig
from pipelines.config.run_config import RunConfig
from pipelines.console import bars, say, step
from pipelines.data.splits import Splits, members_of
from pipelines.encoders import adopt
from pipelines.encoders.stored import describe
from pipelines.errors import UserError
from pipelines.files import storage
from pipelines.files.digest import digest
from pipelines.pretrain.board import Board
from pipelines.pretrain.defend import defend, over_cluster
from pipelines.pretrain.worker import TrainingJob, train_worker
from pipelines.run.folder import RunFolder, SeedFolder
from pipelines.run.once import Once
from pipelines.run.points import Run
from pipelines.run.ray_session import HELPER_MEMORY, TASK_MEMORY, borne, trainings_at_once

VERSION = 3
REFRESH_SECONDS = 0.5
SAVE_SECONDS = 30.0  # what trainings may take to save their state at an interrupt


def run(runs: Sequence[Run]) -> None:
    """Make every encoder of every seed of some runs that is not in its folder yet.

    An encoder that two runs share is trained once: the first gets it, the others a copy.

    Raises:
        UserError: weights from elsewhere do not fit, or an encoder in the folder comes from other inputs.
    """
    adopt.run(runs)
    every = [job for config, folder in runs for job in training_jobs(config, folder)]
    once = Once(every, lambda job: job.inputs, TrainingJob.is_done)
    jobs, whole = once.todo(), len(once.first)
    if len(jobs) < whole:
        say("pretrain", f"{whole - len(jobs)} of {whole} encoders already done")
    if jobs:
        _train_all(jobs, runs[0].config, _Bases(once.every, once.first))
    once.share(TrainingJob.copy_to)


def here(runs: Sequence[Run], threads: int) -> None:
    """Share trained encoders among some runs and fit their defenses, in this process; one of the runs has trained them.

    Raises:
        UserError: as `run`.
    """
    every = [job for config, folder in runs for job in training_jobs(config, folder)]
    made = {job.inputs: job for job in every if job.is_done()}
    for job in sorted(every, key=lambda job: isinstance(job.config, DefendedConfig)):
        if job.is_done():
            continue
        if job.inputs in made:
            made[job.inputs].copy_to(job)
        elif fault := defend(job, threads):
            raise UserError(f"{job.label}: {fault}")


class _Bases:
    """The jobs of the encoders that others start from, in whichever run these are made."""

    def __init__(self, every: Sequence[TrainingJob], first: Mapping[str, TrainingJob]) -> None:
        self.first = first
        self.by_place = {(job.folder, job.name): job for job in every}

    def of(self, job: TrainingJob) -> TrainingJob | None:
        """The encoder that a job starts from, as its own run has it; None: none that is trained here."""
        return None if job.config.start is None else self.by_place.get((job.folder, job.config.start))

    def bring(self, job: TrainingJob) -> None:
        """Copy the encoder that a job starts from to its own run, where another run has made it."""
        base = self.of(job)
        if base is not None and not base.is_done():
            self.first[base.inputs].copy_to(base)


def _train_all(jobs: Sequence[TrainingJob], config: RunConfig, bases: _Bases) -> None:
    resources = config.resources
    at_once = trainings_at_once(resources)
    import ray

    if not resources.train_gpus:
        _tell_of_emulation(jobs)
    board = ray.remote(num_cpus=0, memory=borne(HELPER_MEMORY))(Board).remote()
    with step("waiting for the training workers"), bars("epochs") as progress:
        tasks = {job.label: progress.add_task(job.label, total=job.config.epochs, note="") for job in jobs}
        try:
            for finished, notes in _run_all(jobs, at_once, lambda job: _train(job, config, board), board, bases):
                for label, (done, note) in notes.items():
                    if tasks[label] not in progress.begun:
                        progress.begin(tasks[label], done)
                    progress.update(tasks[label], completed=done, note=note)
                for job, seconds in finished:
                    progress.update(tasks[job.label], completed=job.config.epochs)
                    say("pretrain", f"{job.label}: {_in_words(job)}, {seconds:.0f} s")
        except KeyboardInterrupt:
            _save_all(board)
            raise


def _tell_of_emulation(jobs: Sequence[TrainingJob]) -> None:
    """Say that bfloat16 is slow, where a training asks for it and this CPU has no instructions for it."""
    from mi_core.training.loop import emulates_bfloat16

    asked = [job.name for job in jobs if isinstance(job.config, TrainedConfig) and job.config.precision == "bfloat16"]
    if asked and emulates_bfloat16():
        words = "bfloat16 is many times slower than float32 on this CPU, which has no AVX-512"
        say("pretrain", f"{words}; set encoders.{asked[0]}.precision=float32")


def _save_all(board: Any) -> None:
    """Let every training under way save its state and stop; a second interrupt ends the wait."""
    import ray

    left = ray.get(board.stop.remote())
    if left:
        say("pretrain", f"saving {', '.join(left)}")
    end = time.monotonic() + SAVE_SECONDS
    while left and time.monotonic() < end:
        time.sleep(REFRESH_SECONDS / 5)
        left = ray.get(board.stop.remote())
    if left:
        say("pretrain", f"{', '.join(left)}: not saved within {SAVE_SECONDS:.0f} s; the last saved state is kept")


def _in_words(job: TrainingJob) -> str:
    """The result of a finished job."""
    record = describe(job.folder, job.name).record
    if isinstance(job.config, DefendedConfig):
        figures = "".join(f", {name} {value:.3g}" for name, value in record.defense.items())
        return f"{job.config.defends} with {job.config.defense}{figures}"
    how = ", streamed from shards" if record.streamed else ""
    return f"{job.config.epochs} epochs, loss {record.losses[-1]:.3f}{how}"


def training_jobs(config: RunConfig, folder: RunFolder) -> Iterator[TrainingJob]:
    """Every encoder that a run trains, of every seed; two of the same ``inputs`` are trained once."""
    limit = config.resources.resident_mb * 2**20
    point = folder.path.partition("/sweep/")[2]
    where = f", {point}" if point else ""
    for seed in config.seeds:
        place = folder.seed(seed)
        for name, encoder in config.encoders.items():
            if isinstance(encoder, TrainedConfig):
                yield TrainingJob(name, encoder, config.data, place, _inputs(config, place, name), limit, where)


def _inputs(config: RunConfig, place: SeedFolder, name: str) -> str:
    """Hash of everything that a trained encoder depends on, with the inputs of the one it starts from."""
    encoder = config.encoders[name]
    if not isinstance(encoder, TrainedConfig):
        return describe(place, name).record.inputs
    splits = members_of(Splits.load(place.path), encoder, place.seed)
    outside = encoder.outside if isinstance(encoder, DefendedConfig) else ()
    roles = {role: splits.role_digest(role) for role in (*encoder.train_on, *outside)}
    captions = config.data.model_dump(mode="json")["captions"]
    parts = [VERSION, place.seed, name, encoder.model_dump(), roles, config.data.decoder().digest(), captions]
    return digest(*parts, *([] if encoder.start is None else [_inputs(config, place, encoder.start)]))


def _run_all(
    jobs: Sequence[TrainingJob], at_once: int, train: Callable[[TrainingJob], float], board: Any, bases: _Bases
) -> Iterator[tuple[list[tuple[TrainingJob, float]], dict[str, tuple[float, str]]]]:
    """Run jobs in threads; yields what finished since the last look, and how far the others are.

    A job waits for the one it starts from. The threads are daemons, so that an error or Ctrl-C ends the stage at once.
    """
    import ray

    waiting = list(jobs)
    running: dict[Future[float], TrainingJob] = {}
    while waiting or running:
        unfinished = {job.inputs for job in (*waiting, *running.values())}
        able = [job for job in waiting if (base := bases.of(job)) is None or base.inputs not in unfinished]
        for job in able[: at_once - len(running)]:
            waiting.remove(job)
            bases.bring(job)
            running[_in_thread(train, job)] = job
        done, _ = wait(running, timeout=REFRESH_SECONDS)
        yield [(running.pop(future), future.result()) for future in done], ray.get(board.read.remote())


def _in_thread(train: Callable[[TrainingJob], float], job: TrainingJob) -> Future[float]:
    future: Future[float] = Future()

    def work() -> None:
        try:
            future.set_result(train(job))
        except BaseException as error:  # noqa: BLE001 - handed to the one who waits
            future.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return future


def _train(job: TrainingJob, config: RunConfig, board: Any) -> float:
    """Train or defend one encoder; returns the wall seconds. Raises UserError for a fault in what the user gave."""
    import ray

    started = time.perf_counter()
    if isinstance(job.config, DefendedConfig):
        cpus, gpus = config.resources.train_cpus, config.resources.train_gpus
        remote = ray.remote(num_cpus=cpus, num_gpus=gpus, memory=borne(2 * TASK_MEMORY))(defend)
        fault = ray.get(remote.remote(job, max(1, int(cpus)), over_cluster))
    else:
        fault = _fit(job, config, board)
    if fault:
        raise UserError(f"{job.label}: {fault}")
    return time.perf_counter() - started


def _fit(job: TrainingJob, config: RunConfig, board: Any) -> str | None:
    """One TorchTrainer run; returns a fault in what the user gave, if any."""
    import ray
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    resources = config.resources
    scratch = f"{job.folder.encoder(job.name)}/state/ray"
    trainer = TorchTrainer(
        train_worker,
        train_loop_config={"job": job, "cpus": resources.train_cpus, "board": board},
        scaling_config=ScalingConfig(
            num_workers=resources.train_workers,
            use_gpu=resources.train_gpus > 0,
            resources_per_worker={
                "CPU": resources.train_cpus,
                "GPU": resources.train_gpus,
                "memory": borne(2 * TASK_MEMORY),
            },
        ),
        run_config=RunConfig(
            name=uuid.uuid4().hex,  # our own state decides what is resumed, never Ray's
            storage_path=storage.absolute(scratch),
            failure_config=FailureConfig(max_failures=resources.train_retries),
        ),
    )
    trainer.fit()
    storage.remove(scratch)
    fault: str | None = ray.get(board.fault.remote(job.label))
    return fault
