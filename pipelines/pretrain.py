"""Pre-train target and shadow encoders with Ray Train, as many at once as the cluster holds.

Every encoder is one data-parallel TorchTrainer run. The truth is in the run folder: weights at the chosen
epochs, then the state to resume from; a restarted worker or command continues after the last saved epoch.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from mi_core.augmentations import AUGMENTATIONS
from mi_core.checks import ConfigError, NumericError, check_choice
from mi_core.encoders import ENCODERS
from mi_core.encoders.checkpoint import Encoder, fingerprint, load_weights, weights_bytes
from mi_core.hashing import digest64
from mi_core.objectives import OBJECTIVES
from mi_core.pretraining import OptimizerParameters, Pretrainer, PretrainingParameters, audited_encoder
from pipelines import storage
from pipelines.artifacts import RunFolder, SeedFolder, digest
from pipelines.console import bars, say
from pipelines.errors import UserError
from pipelines.methods import build, complete
from pipelines.progress import Board, Reporter
from pipelines.splits import DataConfig, Splits, load_images

if TYPE_CHECKING:
    from pipelines.config import RunConfig

VERSION = 1
REFRESH_SECONDS = 0.5
SAVE_SECONDS = 60.0  # at most this much training is lost with a worker


class EncoderConfig(BaseModel):
    """One encoder to train: framework, architecture, data, schedule."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    objective: str = Field(default="simclr", description="pre-training framework")
    backbone: str = Field(description="architecture")
    train_on: tuple[str, ...] = Field(description="roles whose samples are the members")
    epochs: int = Field(ge=1, description="passes over the members")
    batch_size: int = Field(ge=2, description="images per step over all workers")
    checkpoints: tuple[int, ...] = Field(default=(), description="epochs to keep weights of; the last is always kept")
    precision: str = Field(default="float32", description="float32 or bfloat16 (autocast)")
    mean: tuple[float, ...] = Field(default=(0.5,), description="per-channel normalisation, pixels in [0, 1]")
    std: tuple[float, ...] = Field(default=(0.5,))
    optimizer: dict[str, Any] = Field(
        default_factory=dict, validate_default=True, description="see OptimizerParameters"
    )
    augmentation: dict[str, Any] = Field(
        default_factory=dict, validate_default=True, description="settings of the training views"
    )
    parameters: dict[str, Any] = Field(
        default_factory=dict, validate_default=True, description="settings of the objective"
    )

    @field_validator("train_on", mode="before")
    @classmethod
    def _one_role(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @field_validator("objective")
    @classmethod
    def _known_objective(cls, value: str) -> str:
        return check_choice("objective", value, OBJECTIVES)

    @field_validator("backbone")
    @classmethod
    def _known_backbone(cls, value: str) -> str:
        return check_choice("backbone", value, ENCODERS)

    @field_validator("optimizer")
    @classmethod
    def _complete_optimizer(cls, value: dict[str, Any]) -> dict[str, Any]:
        return complete(OptimizerParameters, value)

    @field_validator("augmentation")
    @classmethod
    def _complete_augmentation(cls, value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        return complete(AUGMENTATIONS[info.data.get("objective", "simclr")], value)

    @field_validator("parameters")
    @classmethod
    def _complete_parameters(cls, value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        return complete(OBJECTIVES[info.data.get("objective", "simclr")].Parameters, value)

    @model_validator(mode="after")
    def _check(self) -> EncoderConfig:
        for epoch in self.checkpoints:
            if not 1 <= epoch <= self.epochs:
                raise ValueError(f"checkpoints holds {epoch}, allowed: 1 to epochs = {self.epochs}")
        self.pretraining()
        return self

    @property
    def kept_epochs(self) -> tuple[int, ...]:
        """Epochs whose weights are kept, ascending, the last included."""
        return tuple(sorted({*self.checkpoints, self.epochs}))

    def views(self) -> Any:
        """The recipe of training views."""
        return build(AUGMENTATIONS[self.objective], self.augmentation)

    def pretraining(self) -> PretrainingParameters:
        """The settings as the trainer takes them."""
        return PretrainingParameters(
            backbone=self.backbone,
            objective=self.objective,
            objective_parameters=build(OBJECTIVES[self.objective].Parameters, self.parameters),
            optimizer=build(OptimizerParameters, self.optimizer),
            epochs=self.epochs,
            batch_size=self.batch_size,
            precision=self.precision,
            mean=self.mean,
            std=self.std,
        )


@dataclass(frozen=True)
class TrainedEncoder:
    """An encoder in a run folder, by its description."""

    folder: str
    description: dict[str, Any]

    def load(self, epoch: int, channels: int) -> Encoder:
        """The encoder at a kept epoch, in evaluation mode, on the CPU."""
        config = EncoderConfig(**self.description["config"])
        encoder = audited_encoder(config.pretraining(), channels)
        load_weights(encoder, storage.read_bytes(f"{self.folder}/epoch-{epoch:04d}.safetensors"))
        return encoder.eval()


@dataclass(frozen=True)
class _Job:
    name: str
    config: EncoderConfig
    data: DataConfig
    folder: SeedFolder
    inputs: str

    @property
    def label(self) -> str:
        return f"{self.name} (seed {self.folder.seed})"


def run(config: RunConfig, folder: RunFolder) -> None:
    """Train every encoder of every seed that is not trained yet.

    Raises:
        UserError: too few CPUs for one encoder, or an encoder in the folder comes from other inputs.
    """
    jobs = [job for job in _jobs(config, folder) if not _done(job)]
    total = len(config.seeds) * len(config.encoders)
    if len(jobs) < total:
        say("pretrain", f"{total - len(jobs)} of {total} encoders done before")
    if not jobs:
        return
    resources = config.resources
    at_once = max(1, int(resources.available_cpus() // (resources.train_workers * resources.train_cpus)))
    board = Board.remote()  # type: ignore[attr-defined]
    with bars("epochs") as progress:
        tasks = {job.label: progress.add_task(job.label, total=job.config.epochs, note="") for job in jobs}
        for finished, notes in _run_all(jobs, at_once, lambda job: _train(job, config, board), board):
            for label, (done, note) in notes.items():
                progress.update(tasks[label], completed=done, note=note)
            for job, seconds in finished:
                losses = describe(job.folder, job.name).description["losses"]
                say("pretrain", f"{job.label}: {job.config.epochs} epochs, loss {losses[-1]:.3f}, {seconds:.0f} s")


def describe(folder: SeedFolder, name: str) -> TrainedEncoder:
    """The trained encoder of a seed."""
    path = folder.encoder(name)
    return TrainedEncoder(path, storage.read_json(f"{path}/encoder.json"))


def _jobs(config: RunConfig, folder: RunFolder) -> Iterator[_Job]:
    for seed in config.seeds:
        place = folder.seed(seed)
        for name, encoder in config.encoders.items():
            roles = {role: Splits.load(place.path).role_digest(role) for role in encoder.train_on}
            inputs = digest(VERSION, seed, name, encoder.model_dump(), roles, config.data.decoder().digest())
            yield _Job(name, encoder, config.data, place, inputs)


def _done(job: _Job) -> bool:
    path = f"{job.folder.encoder(job.name)}/encoder.json"
    if not storage.exists(path):
        return False
    if storage.read_json(path)["inputs"] != job.inputs:
        raise UserError(f"{path} was trained from other inputs; redo with --force pretrain")
    return True


def _run_all(
    jobs: Sequence[_Job], at_once: int, train: Callable[[_Job], float], board: Any
) -> Iterator[tuple[list[tuple[_Job, float]], dict[str, tuple[int, str]]]]:
    """Run jobs in threads; yields what finished since the last look, and how far the others are.

    The threads are daemons: an error or Ctrl-C ends the stage at once instead of after the other runs.
    """
    import ray

    waiting = list(jobs)
    running: dict[Future[float], _Job] = {}
    while waiting or running:
        while waiting and len(running) < at_once:
            job = waiting.pop(0)
            running[_in_thread(train, job)] = job
        done, _ = wait(running, timeout=REFRESH_SECONDS)
        yield [(running.pop(future), future.result()) for future in done], ray.get(board.read.remote())


def _in_thread(train: Callable[[_Job], float], job: _Job) -> Future[float]:
    future: Future[float] = Future()

    def work() -> None:
        try:
            future.set_result(train(job))
        except BaseException as error:  # noqa: BLE001 - handed to the one who waits
            future.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return future


def _train(job: _Job, config: RunConfig, board: Any) -> float:
    """One TorchTrainer run; returns its wall seconds. Raises UserError for a fault in what the user gave."""
    import ray
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    started = time.perf_counter()
    resources = config.resources
    scratch = f"{job.folder.encoder(job.name)}/state/ray"
    trainer = TorchTrainer(
        _train_worker,
        train_loop_config={"job": job, "cpus": resources.train_cpus, "board": board},
        scaling_config=ScalingConfig(
            num_workers=resources.train_workers,
            use_gpu=resources.train_gpus > 0,
            resources_per_worker={"CPU": resources.train_cpus, "GPU": resources.train_gpus},
        ),
        run_config=RunConfig(
            name=uuid.uuid4().hex,  # our own state decides what is resumed, never Ray's
            storage_path=storage.absolute(scratch),
            failure_config=FailureConfig(max_failures=resources.train_retries),
        ),
    )
    trainer.fit()
    storage.remove(scratch)
    fault = ray.get(board.fault.remote(job.label))
    if fault is not None:
        raise UserError(f"{job.label}: {fault}")
    return time.perf_counter() - started


def _train_worker(settings: dict[str, Any]) -> None:
    """What every worker of one run does. A fault of the user's ends it for good; others let Ray try again."""
    try:
        _train_here(settings)
    except (ConfigError, NumericError, UserError) as error:
        import ray

        ray.get(settings["board"].accuse.remote(settings["job"].label, str(error)))


def _train_here(settings: dict[str, Any]) -> None:
    """Load the members, resume, train, save."""
    import ray.train
    import ray.train.torch

    job: _Job = settings["job"]
    torch.set_num_threads(max(1, int(settings["cpus"])))
    splits = Splits.load(job.folder.path)
    ids, images, _ = load_images(job.data, splits, job.config.train_on)
    names = [(source, key) for source, _, key in (name.partition("/") for name in ids)]
    trainer = Pretrainer(
        torch.from_numpy(images),
        names,
        job.config.views(),
        job.config.pretraining(),
        seed=digest64(job.folder.seed, "encoder", job.name),
        device=ray.train.torch.get_device(),
    )
    chief = ray.train.get_context().get_world_rank() == 0
    progress = Reporter(settings["board"], job.label)
    keeper = _Keeper(job, trainer)
    keeper.resume()
    while trainer.epoch < job.config.epochs:
        loss = trainer.train_epoch()
        if chief:
            keeper.keep()
            progress(trainer.epoch, f"  loss {loss:.3f}")
    if chief:
        keeper.finish(len(images))
    ray.train.report({"epoch": trainer.epoch})


class _Keeper:
    """Writes weights at the chosen epochs and, after them, the state to resume from."""

    def __init__(self, job: _Job, trainer: Pretrainer) -> None:
        self.job = job
        self.trainer = trainer
        self.folder = job.folder.encoder(job.name)
        self.state = f"{self.folder}/state/state.pt"
        self.saved = time.monotonic()

    def resume(self) -> None:
        if storage.exists(self.state):
            self.trainer.load_state_bytes(storage.read_bytes(self.state))

    def keep(self) -> None:
        epoch = self.trainer.epoch
        if epoch in self.job.config.kept_epochs:
            weights = weights_bytes(self.trainer.encoder())
            storage.write_atomic(f"{self.folder}/epoch-{epoch:04d}.safetensors", weights)
        elif time.monotonic() - self.saved < SAVE_SECONDS:
            return
        storage.write_atomic(self.state, self.trainer.state_bytes())
        self.saved = time.monotonic()

    def finish(self, images: int) -> None:
        config = self.job.config
        channels = self.trainer.images.shape[1]
        prints = {}
        for epoch in config.kept_epochs:
            encoder = audited_encoder(config.pretraining(), channels)
            load_weights(encoder, storage.read_bytes(f"{self.folder}/epoch-{epoch:04d}.safetensors"))
            prints[epoch] = fingerprint(encoder)
        storage.write_json(
            f"{self.folder}/encoder.json",
            {
                "name": self.job.name,
                "inputs": self.job.inputs,
                "config": config.model_dump(mode="json"),
                "seed": self.job.folder.seed,
                "images": images,
                "channels": channels,
                "fingerprints": prints,
                "losses": self.trainer.losses,
            },
        )


if __name__ == "__main__":
    from pipelines.cli import main

    main("pretrain")
