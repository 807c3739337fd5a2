"""How fast pre-training is: our whole loop beside a plain PyTorch loop, lightly's, and the bare step of the network.

All ways train the same network with AdamW, the same batch, precision and cores on the same decoded images in one
process; the published loops in PyTorch's default memory format, as their tutorials have it. They take turns: every
round times each way once, so that a machine that slows down slows all. A ratio is that of the medians over rounds.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from PIL import Image

from docs.studies.bench.setting import MEAN, RECIPE, STD, chosen_of, dated, spread, torchvision_view
from mi_core.augmentations.simclr import SimCLRAugmentation
from mi_core.checks import ConfigError, check_choice
from mi_core.images import Decoder, decode
from mi_core.objectives.simclr import SimCLRParameters, nt_xent
from mi_core.runtime import keep_freed_memory
from mi_core.training.data import ResidentImages
from mi_core.training.loop import Pretrainer, PretrainingParameters
from mi_core.training.optimizers import OptimizerParameters
from pipelines.config.sections.sources import SourceConfig
from pipelines.console import say
from pipelines.data.read.sources import Source
from pipelines.errors import UserError
from pipelines.run.machine import cpus

TEMPERATURE = 0.5
WARM_STEPS = 2


@dataclass(frozen=True)
class TrainingCase:
    """A case of training: backbone, images per batch, batches per timed turn, rounds."""

    backbone: str
    batch_size: int
    steps: int
    rounds: int


TRAINING_CASES = {"small": TrainingCase("resnet8", 125, 8, 7), "resnet18": TrainingCase("resnet18", 64, 2, 4)}


@dataclass
class Way:
    """One way of training, and the seconds that its turns took.

    ``begin`` starts a turn: every step of its iterator trains a batch, and closing it ends its loader processes, so
    that no way works on in the turn of another.
    """

    name: str
    threads: int
    workers: int
    begin: Callable[[], Generator[None, None, None]]
    seconds: list[float] = field(default_factory=list)

    @property
    def layout(self) -> str:
        """Threads of the training process, and processes that load for it."""
        return f"{self.threads} threads" + (f" + {self.workers} loaders" if self.workers else "")

    @property
    def median(self) -> float:
        """Median seconds per turn."""
        return statistics.median(self.seconds)


def training_benchmark(
    case: str, images: torch.Tensor, *, precision: str = "float32", threads: int = 2, device: str = "cpu"
) -> dict[str, Any]:
    """Measure one case.

    Args:
        case: a key of `TRAINING_CASES`.
        images: (N, 3, S, S) uint8, at least two batches.
        precision: float32 or bfloat16 (autocast), the same for all ways.
        threads: cores to use. A DataLoader way takes the fastest of its layouts, found by one turn each: views made
            in the training process, or in loader processes beside all or some of its threads.
        device: where the network is.

    Returns:
        Images per second of every way (median, least, most), the ratios of medians ``ours_over_pil_dataloader``,
        ``ours_over_lightly`` (None without lightly) and ``ours_over_model_step``, and what was measured how.

    Raises:
        ConfigError: no such case or precision, or too few images.
    """
    chosen = TRAINING_CASES[check_choice("case", case, TRAINING_CASES)]
    if len(images) < 2 * chosen.batch_size:
        raise ConfigError(f"{len(images)} images, the case {case} needs {2 * chosen.batch_size}")
    before = torch.get_num_threads()
    keep_freed_memory()  # as training workers do; it serves all ways
    trainer = _trainer(chosen, images, precision, device)
    ways = [_ours(trainer, threads), _model_step(trainer, threads)]
    for name, views in (("PIL DataLoader", _TwoViews(32)), ("lightly", _lightly_views())):
        if views is not None:
            layouts = _dataloader_layouts(trainer, chosen, images, views, name, threads)
            ways.append(_faster(layouts, chosen.steps, trainer))
    for _ in range(chosen.rounds):
        for way in ways:
            _time(way, chosen.steps, trainer)
    torch.set_num_threads(before)
    return _summary(ways, chosen, precision, threads, device)


def _trainer(case: TrainingCase, images: torch.Tensor, precision: str, device: str) -> Pretrainer:
    parameters = PretrainingParameters(
        case.backbone,
        objective_parameters=SimCLRParameters(TEMPERATURE, 512, 128),
        optimizer=OptimizerParameters(),
        epochs=1_000_000,
        batch_size=case.batch_size,
        precision=precision,
        mean=MEAN,
        std=STD,
    )
    names = [("pool", str(row)) for row in range(len(images))]
    data = ResidentImages(images, names, batch_size=case.batch_size, seed=0, device=device)
    return Pretrainer(data, SimCLRAugmentation(**RECIPE), parameters, seed=0, device=device)


def _synchronise(trainer: Pretrainer) -> None:
    if trainer.device.type == "cuda":
        torch.cuda.synchronize(trainer.device)


def _ours(trainer: Pretrainer, threads: int) -> Way:
    """The product's loop: `Pretrainer.train_epoch` without its end."""

    def begin() -> Generator[None, None, None]:
        trainer.trained.train()
        while True:
            for step, drawn in enumerate(trainer.view_batches()):
                trainer.train_views(*drawn, step)
                yield
            trainer.epoch += 1

    return Way("ours", threads, 0, begin)


def _model_step(trainer: Pretrainer, threads: int) -> Way:
    """Forward, loss, backward and optimiser step on views that are ready on the device."""
    trainer.trained.train()
    ready = trainer.views(next(trainer.data.epoch(0)), 0)

    def begin() -> Generator[None, None, None]:
        while True:
            trainer.train_views(ready, None, 0)
            yield

    return Way("model step", threads, 0, begin)


Views = Callable[[Image.Image], Sequence[torch.Tensor]]
"""An image to its two views."""


class _ImageList(torch.utils.data.Dataset[tuple[torch.Tensor, ...]]):
    """Decoded images in memory, viewed twice per access: torchvision's CIFAR-10 in a published SimCLR loop."""

    def __init__(self, images: torch.Tensor, views: Views) -> None:
        self.images = images.permute(0, 2, 3, 1).contiguous().numpy()
        self.views = views

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, row: int) -> tuple[torch.Tensor, ...]:
        return tuple(self.views(Image.fromarray(self.images[row])))


class _TwoViews:
    """torchvision's transform of PIL images, twice."""

    def __init__(self, size: int) -> None:
        from torchvision import transforms

        self.transform = transforms.Compose([*torchvision_view(size), transforms.Normalize(MEAN, STD)])

    def __call__(self, image: Image.Image) -> list[torch.Tensor]:
        return [self.transform(image) for _ in range(2)]


def _lightly_views() -> Views | None:
    try:
        from lightly.transforms import SimCLRTransform
    except ImportError:
        return None
    transform: Views = SimCLRTransform(
        input_size=32,
        cj_strength=0.5,
        min_scale=RECIPE["crop_scale"][0],
        gaussian_blur=0.0,
        normalize={"mean": list(MEAN), "std": list(STD)},
    )
    return transform


def _dataloader_layouts(
    trainer: Pretrainer, case: TrainingCase, images: torch.Tensor, views: Views, name: str, threads: int
) -> list[Way]:
    """A plain loop over a DataLoader of PIL images, with views made in the training process or in workers."""
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = partial(nt_xent, temperature=TEMPERATURE)
    if name == "lightly":
        from lightly.loss import NTXentLoss

        loss = NTXentLoss(temperature=TEMPERATURE)
    ways = []
    layouts = {(0, threads)} | {(count, kept) for count in (1, threads) for kept in {threads, max(1, threads - count)}}
    for workers, kept in sorted(layouts):
        loop = _plain_loop(trainer, _ImageList(images, views), case.batch_size, workers, loss)
        ways.append(Way(name, kept, workers, loop))
    return ways


def _plain_loop(
    trainer: Pretrainer,
    data: _ImageList,
    batch_size: int,
    workers: int,
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> Callable[[], Generator[None, None, None]]:
    """A loop as tutorials write it: the same network and AdamW, in PyTorch's default format and implementation."""
    module: Any = copy.deepcopy(trainer.module).to(memory_format=torch.contiguous_format).train()
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3, weight_decay=1e-4)
    half = trainer.parameters.precision == "bfloat16"

    def begin() -> Generator[None, None, None]:
        loader = torch.utils.data.DataLoader(
            data,
            batch_size=batch_size,
            shuffle=True,
            drop_last=True,
            num_workers=workers,
            persistent_workers=workers > 0,
            pin_memory=trainer.device.type == "cuda",
        )
        while True:
            for pair in loader:
                views = torch.cat([view.to(trainer.device, non_blocking=True) for view in pair])
                with torch.autocast(trainer.device.type, torch.bfloat16, enabled=half):
                    projected = module.projection(module.backbone(views))
                value = loss(*projected.float().chunk(2))
                optimizer.zero_grad()
                value.backward()
                optimizer.step()
                yield

    return begin


def _time(way: Way, steps: int, trainer: Pretrainer) -> None:
    """One turn: the steps that start loaders and fill their queues are not counted."""
    torch.set_num_threads(way.threads)
    turn = way.begin()
    for _ in range(WARM_STEPS):
        next(turn)
    _synchronise(trainer)
    started = time.perf_counter()
    for _ in range(steps):
        next(turn)
    _synchronise(trainer)
    way.seconds.append(time.perf_counter() - started)
    turn.close()


def _faster(ways: list[Way], steps: int, trainer: Pretrainer) -> Way:
    """The layout with the shortest turn."""
    for way in ways:
        _time(way, steps, trainer)
    best = min(ways, key=lambda way: way.seconds[-1])
    best.seconds.clear()
    return best


def _summary(ways: Sequence[Way], case: TrainingCase, precision: str, threads: int, device: str) -> dict[str, Any]:
    seconds = {way.name: way.median for way in ways}
    images = case.steps * case.batch_size
    result: dict[str, Any] = {
        "ours_over_pil_dataloader": round(seconds["PIL DataLoader"] / seconds["ours"], 3),
        "ours_over_lightly": round(seconds["lightly"] / seconds["ours"], 3) if "lightly" in seconds else None,
        "ours_over_model_step": round(seconds["model step"] / seconds["ours"], 3),
        "images_per_second": {way.name: spread([images / one for one in way.seconds], 1) for way in ways},
        "layouts": {way.name: way.layout for way in ways},
        "backbone": case.backbone,
        "batch_size": case.batch_size,
        "precision": precision,
        "threads": threads,
        "device": device if device == "cpu" else torch.cuda.get_device_name(device),
        "rounds": len(ways[0].seconds),
        "steps_per_round": case.steps,
    }
    return result


CASES = {  # name in the result: case, precision
    "small": ("small", "float32"),
    "small-bfloat16": ("small", "bfloat16"),
    "resnet18": ("resnet18", "float32"),
    "resnet18-bfloat16": ("resnet18", "bfloat16"),
}
IMAGES = 1000


def run(cases: Iterable[str] = (), *, data: str | None = None, threads: int | None = None) -> dict[str, Any]:
    """Measure the cases and return ``{"cases": {name: ratios and rates}, ...}``.

    Args:
        cases: keys of `CASES`; none: all.
        data: shards to take images from; None: smooth random ones, which cost the same.
        threads: cores to use; None: all.

    Raises:
        UserError: no such case, or too few images.
    """
    chosen = chosen_of(cases, CASES)
    images = torch.from_numpy(_random_images() if data is None else _images(data))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    cores = threads or cpus()
    results = {}
    for name in chosen:
        case, precision = CASES[name]
        results[name] = training_benchmark(case, images, precision=precision, threads=cores, device=device)
        ratios = {key: value for key, value in results[name].items() if key.startswith("ours_over")}
        say("bench", f"{name}: " + ", ".join(f"{key} {value}" for key, value in ratios.items()))
    return dated(cases=results, images=data or "random")


def _random_images() -> np.ndarray:
    """(N, 3, 32, 32) uint8: random colours, blurred by enlarging."""
    coarse = np.random.default_rng(0).integers(0, 256, (IMAGES, 3, 8, 8), dtype=np.uint8)
    return coarse.repeat(4, axis=2).repeat(4, axis=3)


def _images(pattern: str) -> np.ndarray:
    source, decoder = SourceConfig(kind="shards", path=pattern), Decoder(32)
    found: list[np.ndarray] = []
    for item in Source(source).items():
        for sample in Source(source).read(item):
            found.append(decode(sample.image, decoder))
            if len(found) == IMAGES:
                return np.stack(found)
    raise UserError(f"{pattern} holds {len(found)} images, the benchmark needs {IMAGES}")
