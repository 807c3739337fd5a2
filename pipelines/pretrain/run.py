"""Train target and shadow encoders with Ray Train, as many at once as the cluster holds; adopt those from elsewhere.

A training saves weights at the chosen epochs, then the state to resume from, in the run folder: a restarted worker or
command continues after the last saved epoch.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from mi_core.querying.sanity import PROBED, view_consistency
from mi_core.report.words.numbers import plain
from mi_core.streams import pixel_streams
from mi_core.training.loop import audited_encoder
from pipelines.config.sections.data import DataConfig
from pipelines.config.sections.encoders import DefendedConfig, TrainedConfig
from pipelines.config.sections.limits import ResourcesConfig
from pipelines.console import bars, say, step
from pipelines.data.draw.images import load_samples
from pipelines.data.draw.parts import seen_by
from pipelines.data.draw.splits import Splits
from pipelines.data.plans import Planned
from pipelines.encoders import adopt
from pipelines.encoders.stored import describe, tried_path
from pipelines.errors import UserError
from pipelines.files import storage
from pipelines.plan.items import Encoder, Semantic
from pipelines.pretrain.lanes import Bases, Lanes, defend
from pipelines.pretrain.worker import TrainingJob
from pipelines.run.board import REFRESH_SECONDS
from pipelines.run.folder import SeedFolder
from pipelines.run.parts import Once
from pipelines.run.points import Run
from pipelines.run.ray_session import clean_board, mapped

SAVE_SECONDS = 30.0  # what trainings may take to save their state at an interrupt


def run(runs: Sequence[Run], planned: Sequence[Planned]) -> None:
    """Make every encoder of some plans that is not in its folder yet.

    An encoder that two plans share is trained once: the first gets it, the others a copy.

    Args:
        runs: a run and the points of its sweeps.
        planned: their plans.

    Raises:
        UserError: weights from elsewhere do not fit, or an encoder in the folder comes from other inputs.
    """
    adopt.run(runs, planned)
    every = [job for one in planned for job in training_jobs(one, runs[0].config.resources.resident_mb)]
    once = Once(every, lambda job: job.inputs, TrainingJob.is_done)
    jobs, whole = once.todo(), len(once.first)
    if len(jobs) < whole:
        say("pretrain", f"{whole - len(jobs)} of {whole} encoders already done")
    if jobs:
        train_all(jobs, runs[0].config.resources, Bases(once.every, once.first))
    once.share(TrainingJob.copy_to)
    try_references(planned)


def here(planned: Sequence[Planned], threads: int) -> None:
    """Share trained encoders among some plans and fit their defenses, in this process; one of them has trained them.

    Raises:
        UserError: as `run`.
    """
    every = [job for one in planned for job in training_jobs(one, 0)]
    made = {job.inputs: job for job in every if job.is_done()}
    for job in sorted(every, key=lambda job: isinstance(job.config, DefendedConfig)):
        if job.is_done():
            continue
        if job.inputs in made:
            made[job.inputs].copy_to(job)
        elif fault := defend(job, threads):
            raise UserError(f"{job.label}: {fault}")


def train_all(jobs: Sequence[TrainingJob], resources: ResourcesConfig, bases: Bases) -> None:
    """Train encoders side by side, as far as the cluster holds them; an interrupt saves them first."""
    if not resources.train_gpus:
        tell_of_emulation(jobs)
    board = clean_board()
    lanes = Lanes(jobs, resources, board, bases)
    with step("waiting for the training workers"), bars("epochs") as progress:
        tasks = {job.label: progress.add_task(job.label, total=job.config.epochs) for job in jobs}
        try:
            for finished, notes in lanes.run():
                for label, note in notes.items():
                    if tasks[label] not in progress.begun:
                        progress.begin(tasks[label], note.done)
                    progress.update(tasks[label], completed=note.done, note=note.text)
                for job, seconds in finished:
                    progress.update(tasks[job.label], completed=job.config.epochs)
                    say("pretrain", f"{job.label}: {_in_words(job)}, {seconds:.0f} s")
        except KeyboardInterrupt:
            save_all(board)
            raise


def tell_of_emulation(jobs: Sequence[TrainingJob]) -> None:
    """Say that bfloat16 is slow, where a training asks for it and this CPU has no instructions for it."""
    asked = [job.name for job in jobs if isinstance(job.config, TrainedConfig) and job.config.precision == "bfloat16"]
    if asked and torch.backends.cpu.get_cpu_capability() in ("DEFAULT", "AVX2"):  # 16 times slower, as measured
        words = "bfloat16 is many times slower than float32 on this CPU, which has no AVX-512"
        say("pretrain", f"{words}; set encoders.{asked[0]}.precision=float32")


def save_all(board: Any) -> None:
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
        figures = "".join(f", {name} {plain(value)}" for name, value in record.defense.items())
        return f"{job.config.defends} with {job.config.defense}{figures}"
    how = ", streamed from shards" if record.streamed else ""
    return f"{job.config.epochs} epochs, loss {record.losses[-1]:.3f}{how}"


def training_jobs(planned: Planned, resident_mb: int) -> Iterator[TrainingJob]:
    """Every encoder of a plan that is trained here; two of the same key are trained once."""
    plan, folder = planned
    point = folder.run.partition("sweep/")[2]
    where = f", {point}" if point else ""
    for encoder in plan.encoders:
        if isinstance(encoder.settings, TrainedConfig):
            of_run = resident_mb * 2**20, where, encoder.nonce
            yield TrainingJob(encoder.name, encoder.settings, plan.data, folder, encoder.key, *of_run)


def try_references(planned: Sequence[Planned]) -> None:
    """Try out the references of some plans that were trained here and not tried out yet."""
    work = [
        (plan.semantic, reading.encoder, plan.data, folder)
        for plan, folder in planned
        if plan.semantic is not None
        for reading in plan.semantic.readings
        if isinstance(reading.encoder.settings, TrainedConfig)
        and not storage.exists(tried_path(folder, reading.encoder.name))
    ]
    if work:
        mapped(_try, work, "references", "trying references out")


def _try(semantic: Semantic, encoder: Encoder, data: DataConfig, folder: SeedFolder) -> None:
    """Tell whether a reference recognises audited images that it did not see, beside fresh weights."""
    torch.set_num_threads(1)
    settings, splits = encoder.settings, Splits.load(folder.path)
    assert isinstance(settings, TrainedConfig)
    audited = [role.name for role in semantic.audited]
    ids = np.array(splits.first(audited, PROBED, encoder.seed))
    unseen = ids[~seen_by(splits, settings, encoder.seed, encoder.nonce, ids.tolist())][:PROBED].tolist()
    shown = torch.from_numpy(load_samples(data, splits, audited, unseen).images)
    stored = describe(folder, encoder.name)
    found = view_consistency(
        stored.load(stored.epochs[-1]),
        audited_encoder(settings.pretraining(), data.channels, data.image_size).eval(),
        shown,
        pixel_streams("", encoder.seed, "probe", shown),
        semantic.recipe.build(),
    )
    storage.write_json(tried_path(folder, encoder.name), found)
