"""A worker that trains encoders: it loads or streams the members, resumes, trains, saves and logs."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import torch

from mi_core.checks import ConfigError, NumericError, ShapeError
from mi_core.encoders.checkpoint import fingerprint, load_weights, weights_bytes
from mi_core.hashing import digest64
from mi_core.objectives import OBJECTIVES
from mi_core.runtime import keep_freed_memory, prepare_cuda
from mi_core.training.data import ResidentImages, TrainingImages, by_content
from mi_core.training.loop import Pretrainer, audited_encoder, objective_parameters
from pipelines.config.sections.data import DataConfig
from pipelines.config.sections.encoders import TrainedConfig
from pipelines.data.draw.images import load_images
from pipelines.data.draw.parts import members_of
from pipelines.data.draw.splits import Splits
from pipelines.encoders.stored import EncoderJob, describe, weights_path
from pipelines.errors import UserError
from pipelines.files import storage
from pipelines.pretrain.stream import StreamedImages
from pipelines.run.board import Reporter

FAULTS = (ConfigError, NumericError, ShapeError, UserError)  # of what the user gave
TURN_SECONDS = 0.2  # between two looks for the next training
SAVE_SECONDS = 60.0  # without save_every, at most this much training is lost with a worker


@dataclass(frozen=True)
class TrainingJob(EncoderJob):
    """An encoder to train.

    Args:
        resident_bytes: of decoded members that a worker keeps.
        point: of a sweep, as progress names it.
        nonce: of the queries of an audit, by which halves are drawn; None: by the seed.
    """

    config: TrainedConfig
    resident_bytes: int
    point: str = ""
    nonce: str | None = None

    @property
    def label(self) -> str:
        """The encoder as progress and errors call it."""
        return f"{self.name} (seed {self.folder.seed}{self.point})"


def train_alone(job: TrainingJob, threads: int, board: Any) -> str | None:
    """Train an encoder in this process alone: a Ray task, in a process that may have trained others.

    Returns:
        A fault of the user, or None: the encoder is finished, or the board stopped it and its state is saved.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        if not job.is_done():
            _train(job, threads, board, device, is_chief=True)
    except FAULTS as error:
        return str(error)
    return None


def train_worker(settings: dict[str, Any]) -> None:
    """The work of every worker of a lane: its trainings in turn, as the board gives them.

    A fault of the user ends the lane for good. After other faults Ray starts its workers anew; they pass over what is
    done.
    """
    import ray.train
    import ray.train.torch

    board, threads = settings["board"], max(1, int(settings["cpus"]))
    is_chief = ray.train.get_context().get_world_rank() == 0
    for job in _turns(settings):
        try:
            finished = job.is_done() or _train(job, threads, board, ray.train.torch.get_device(), is_chief=is_chief)
        except FAULTS as error:
            ray.get(board.accuse.remote(job.label, str(error)))
            return
        if not finished:
            return
        ray.train.report({"epoch": job.config.epochs})
        if is_chief:
            ray.get(board.finish.remote(job.label))


def _turns(settings: dict[str, Any]) -> Iterator[TrainingJob]:
    """The trainings of a lane, each when the board knows it."""
    import ray

    for number in count():
        known, label = ray.get(settings["board"].turn.remote(settings["lane"], number))
        while not known:
            time.sleep(TURN_SECONDS)
            known, label = ray.get(settings["board"].turn.remote(settings["lane"], number))
        if label is None:
            return
        yield settings["jobs"][label]


def _train(job: TrainingJob, threads: int, board: Any, device: torch.device, *, is_chief: bool) -> bool:
    """Train one encoder, or go on with it; whether it is finished and not stopped before."""
    torch.set_num_threads(threads)
    keep_freed_memory() if device.type == "cpu" else prepare_cuda()
    seed = digest64(job.folder.seed, "encoder", job.name)
    data, templated = _members(job, seed, threads, device)
    trainer = Pretrainer(data, job.config.views(), job.config.pretraining(), seed=seed, device=device)
    keeper = _Keeper(job, trainer)
    if not keeper.resume() and job.config.start is not None:
        base = describe(job.folder, job.config.start)
        trainer.start_from(base.load(base.epochs[-1]).to(device))
    progress = Reporter(board, job.label)
    log = _Log(f"{keeper.folder}/tensorboard") if is_chief else None

    def after_step(index: int) -> None:
        if is_chief:
            progress(trainer.epoch + (index + 1) / data.steps)
        if progress.stop and trainer.workers == 1:  # several would have to stop at the same step
            raise _Stopped

    try:
        while trainer.epoch < job.config.epochs:
            started = time.perf_counter()
            loss = trainer.train_epoch(after_step)
            if log is not None:
                seconds = time.perf_counter() - started
                rate = data.steps * job.config.batch_size / seconds
                log.write(trainer.epoch, {"loss": loss, "learning_rate": trainer.rate, "images_per_second": rate})
                if keeper.keep():
                    log.upload()
                progress(trainer.epoch, f"  loss {loss:.3f}, {rate:.0f} images/s")
            if progress.stop and trainer.epoch < job.config.epochs:
                raise _Stopped
    except _Stopped:
        keeper.save()
        progress.leave()
        return False
    finally:
        if log is not None:
            log.close()
    if is_chief:
        keeper.finish(templated)
        progress.leave()
    return True


class _Stopped(Exception):
    """The run is to end; what is trained so far is saved."""


def _members(job: TrainingJob, seed: int, threads: int, device: torch.device) -> tuple[TrainingImages, int | None]:
    """The members, on the device where they fit; how many captions were made from class names, None: not counted."""
    splits = members_of(Splits.load(job.folder.path), job.config, job.folder.seed, job.nonce)
    roles, size = job.config.train_on, job.config.batch_size
    parameters = job.config.pretraining()
    objective = OBJECTIVES[job.config.objective]
    settings = objective_parameters(parameters)
    if exceed(job.data, splits.count(roles), job.resident_bytes):
        streamed = StreamedImages(
            job.data,
            splits,
            roles,
            (objective, settings),
            batch_size=size,
            seed=seed,
            threads=threads,
            device=device,
            attribute=job.config.attribute if objective.target == "attribute" else None,
        )
        return streamed, None if objective.target == "caption" and job.data.captions else 0
    loaded = load_images(job.data, splits, roles)
    labels = loaded.labels
    if objective.target == "attribute" and job.config.attribute is not None:
        values = splits.attribute(job.config.attribute)
        labels = [values[name] for name in loaded.ids]
    targets = objective.encode_targets(settings, labels, loaded.captions)
    images, names = torch.from_numpy(loaded.images), loaded.names()
    if job.nonce is not None:  # of an audit: no name has an effect
        order, names = by_content(images)
        images, targets = images[order], None if targets is None else targets[order]
    resident = ResidentImages(images, names, targets, batch_size=size, seed=seed, device=device)
    return resident, loaded.templated if objective.target == "caption" else 0


def exceed(data: DataConfig, images: int, size: int) -> bool:
    """Tell whether the pixels of some images are more than so many bytes; members are then read every epoch."""
    return images * data.channels * data.image_size**2 > size


class _Keeper:
    """Writes weights at the chosen epochs and, after them, the state to resume from."""

    def __init__(self, job: TrainingJob, trainer: Pretrainer) -> None:
        self.job = job
        self.trainer = trainer
        self.folder = job.folder.encoder(job.name)
        self.state = f"{self.folder}/state/{job.inputs[:12]}.pt"  # one of other inputs is never met
        self.saved = time.monotonic()

    def resume(self) -> bool:
        """Continue after the last saved epoch, if there is one."""
        if not storage.exists(self.state):
            return False
        self.trainer.load_state_bytes(storage.read_bytes(self.state))
        return True

    def keep(self) -> bool:
        """Save what is due after an epoch; whether anything was."""
        epoch, every = self.trainer.epoch, self.job.config.save_every
        due = time.monotonic() - self.saved >= SAVE_SECONDS if every is None else epoch % every == 0
        if epoch in self.job.config.kept_epochs:
            storage.write_atomic(weights_path(self.folder, epoch), weights_bytes(self.trainer.encoder()))
        elif not due:
            return False
        self.save()
        return True

    def save(self) -> None:
        """Save the state to resume from, wherever in an epoch that is."""
        storage.write_atomic(self.state, self.trainer.state_bytes())
        self.saved = time.monotonic()

    def finish(self, templated: int | None) -> None:
        """Describe the encoder: from now on it is done."""
        config, data = self.job.config, self.trainer.data
        prints = {}
        for epoch in config.kept_epochs:
            encoder = audited_encoder(config.pretraining(), data.channels, data.size)
            load_weights(encoder, storage.read_bytes(weights_path(self.folder, epoch)))
            prints[str(epoch)] = fingerprint(encoder)
        self.job.write(
            outputs=config.outputs,
            fingerprints=prints,
            images=data.count,
            losses=tuple(self.trainer.losses),
            streamed=isinstance(data, StreamedImages),
            templated_captions=templated,
        )


class _Log:
    """TensorBoard curves, written on this machine and copied to the run folder whenever a state is saved."""

    def __init__(self, folder: str) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.folder = folder
        self.scratch = tempfile.mkdtemp(prefix="encoder-audit-")
        self.writer = SummaryWriter(self.scratch)

    def write(self, epoch: int, values: dict[str, float]) -> None:
        """One point per curve."""
        with storage.naming(self.scratch):
            for name, value in values.items():
                self.writer.add_scalar(name, value, epoch)

    def upload(self) -> None:
        """Copy the curves so far."""
        with storage.naming(self.scratch):
            self.writer.flush()
        for path in Path(self.scratch).iterdir():
            storage.write_atomic(f"{self.folder}/{path.name}", path.read_bytes())

    def close(self) -> None:
        """Tidy up; the last epoch is always kept, and its curves with it."""
        try:
            with storage.naming(self.scratch):
                self.writer.close()
        finally:
            shutil.rmtree(self.scratch)
