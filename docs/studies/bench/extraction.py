"""How fast membership features are computed without Ray: the published way, a hand-written loop, the bare encoder.

All ways query the same network with ten views of the images of the same shards, on the same cores. Every way runs in
processes of its own that wait while others have their turn; a turn is a span of seconds in which the images done are
counted. A way's layout, one process with all threads or one single-threaded process per core, is the faster of the
two; a single process that loops is allowed fewer threads instead. The bare encoder and the loop query the network as
the product does, with batch norm folded into convolutions; the published way queries it as it is trained.
"""

from __future__ import annotations

import itertools
import multiprocessing
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from docs.studies.bench.setting import MEAN, RECIPE, STD, spread, torchvision_view
from mi_core.augmentations.simclr import SimCLRAugmentation
from mi_core.checks import ConfigError, check_choice
from mi_core.encoders import build_backbone
from mi_core.encoders.batch_norm import for_queries
from mi_core.encoders.checkpoint import Encoder, channelwise, seeded
from mi_core.features.pairwise_similarity import PairwiseSimilarity
from mi_core.image_files import load_image
from mi_core.images import Decoder, decode
from mi_core.querying.extractor import Extractor
from mi_core.querying.plan import QueryPlan
from mi_core.runtime import keep_freed_memory
from mi_core.streams import pixel_streams

VIEWS, NEEDS = 10, (PairwiseSimilarity(),)
LOOP_IMAGES = 64  # of one step of the loop
LAYOUT_SECONDS = 2.5  # of the turn that a layout is chosen by
READY_VIEWS = 640  # that the bare encoder is given again and again


@dataclass(frozen=True)
class ExtractionCase:
    """A case of queries: backbone, side of the images, precision of all ways but the published one, encoders.

    Several encoders are all asked for every image.
    """

    backbone: str
    image_size: int
    precision: str = "float32"
    encoders: int = 1


EXTRACTION_CASES = {
    "small": ExtractionCase("resnet8", 32),
    "small-references": ExtractionCase("resnet8", 32, encoders=5),
    "resnet18": ExtractionCase("resnet18", 32),
    "small-bfloat16": ExtractionCase("resnet8", 32, "bfloat16"),
    "resnet18-bfloat16": ExtractionCase("resnet18", 32, "bfloat16"),
    "vit-b-32": ExtractionCase("vit-b/32", 224),
    "vit-b-32-bfloat16": ExtractionCase("vit-b/32", 224, "bfloat16"),
}


@dataclass(frozen=True)
class Setting:
    """One process of a way: the case, the shards it reads, its threads, the views per call of an encoder."""

    way: str
    case: ExtractionCase
    shards: tuple[str, ...]
    threads: int
    batch_views: int


@dataclass(frozen=True)
class Layout:
    """One way as it was run: processes, threads of each, views per call of the encoder where batches are made."""

    processes: int
    threads: int
    batch_views: int

    def __str__(self) -> str:
        return f"{self.processes} x {self.threads} threads, batches of {self.batch_views} views"


class Crew:
    """The processes of one way in one layout, waiting for their turns."""

    def __init__(self, way: str, case: ExtractionCase, shards: Sequence[str], layout: Layout) -> None:
        self.layout = layout
        self.rates: list[float] = []
        context = multiprocessing.get_context("spawn")
        self.members: list[tuple[SpawnProcess, Connection]] = []
        for number in range(layout.processes):
            mine = tuple(shards[number :: layout.processes]) or tuple(shards)
            setting = Setting(way, case, mine, layout.threads, layout.batch_views)
            ours, theirs = context.Pipe()
            process = context.Process(target=_member, args=(setting, theirs), daemon=True)
            process.start()
            self.members.append((process, ours))
        for _, pipe in self.members:
            _answer(pipe)  # warmed up

    def close(self) -> None:
        """End the processes."""
        for process, pipe in self.members:
            with suppress(OSError):  # one that failed is gone
                pipe.send(0.0)
            process.join(timeout=10)
            process.kill()

    def turn(self, seconds: float) -> float:
        """Images per second of all processes together over a span of seconds; kept in ``rates``."""
        for _, pipe in self.members:
            pipe.send(seconds)
        self.rates.append(sum(_answer(pipe) for _, pipe in self.members))
        return self.rates[-1]


def _answer(pipe: Connection) -> float:
    found = pipe.recv()
    if isinstance(found, str):
        raise ConfigError(found)
    return float(found)


def _member(setting: Setting, pipe: Connection) -> None:
    """One process: warm up, then take turns until it is told to end by a span of 0."""
    try:
        keep_freed_memory()
        torch.set_num_threads(setting.threads)
        steps = WAYS[setting.way](setting)
        next(steps)
        pipe.send(0.0)
        while seconds := pipe.recv():
            done, started = 0, time.perf_counter()
            while time.perf_counter() - started < seconds:
                done += next(steps)
            pipe.send(done / (time.perf_counter() - started))
    except Exception as error:  # noqa: BLE001 - told to the one who waits, or he would wait for ever
        pipe.send(f"{setting.way}: {type(error).__name__}: {error}")


@contextmanager
def crews(case: str, shards: Sequence[str], *, threads: int) -> Iterator[dict[str, Crew]]:
    """One crew per way in its fastest layout, ready for turns.

    Args:
        case: key of `EXTRACTION_CASES`.
        shards: paths of tars with ``.jpg`` or ``.png`` members.
        threads: cores to use, by every way.

    Raises:
        ConfigError: no such case, or a way failed.
    """
    chosen = EXTRACTION_CASES[check_choice("case", case, EXTRACTION_CASES)]
    found: dict[str, Crew] = {}
    try:
        for way in WAYS:
            found[way] = _best_layout(way, chosen, shards, threads)
        yield found
    finally:
        for crew in found.values():
            crew.close()


def figures(found: Mapping[str, Crew]) -> dict[str, Any]:
    """Rates and layout of every way."""
    return {way: {"images_per_second": spread(crew.rates), "layout": str(crew.layout)} for way, crew in found.items()}


def _best_layout(way: str, case: ExtractionCase, shards: Sequence[str], threads: int) -> Crew:
    """The processes of a way in its fastest layout, found by one short turn of each."""
    best: Crew | None = None
    for layout in _layouts(way, threads):
        crew = Crew(way, case, shards, layout)
        crew.turn(LAYOUT_SECONDS)
        if best is None or crew.rates[-1] > best.rates[-1]:
            best, crew = crew, best
        if crew is not None:
            crew.close()
    assert best is not None
    best.rates.clear()
    return best


def _layouts(way: str, threads: int) -> Iterator[Layout]:
    batches = [1] if way == "naive" else [64, 128, 256]
    spread_out = [(1, threads)]
    if threads > 1:
        spread_out.append((1, 1) if way == "loop" else (threads, 1))
    for (processes, each), batch in itertools.product(spread_out, batches):
        yield Layout(processes, each, batch)


def _images(shards: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    """Keys and encoded images of some tars, again and again."""
    while True:
        for shard in shards:
            with tarfile.open(shard) as tar:
                for member in tar:
                    if member.name.lower().endswith((".jpg", ".jpeg", ".png")):
                        file = tar.extractfile(member)
                        assert file is not None
                        yield Path(member.name).stem, file.read()


def build(case: ExtractionCase) -> list[Encoder]:
    """The encoders of a case with fresh weights: speed does not depend on them."""
    found = []
    for number in range(case.encoders):
        backbone: nn.Module = seeded(number, lambda: build_backbone(case.backbone, 3, case.image_size))
        encoder = Encoder(backbone, {}, channelwise(MEAN, 3), channelwise(STD, 3))
        found.append(encoder.eval().requires_grad_(False))
    return found


def _naive(setting: Setting) -> Iterator[int]:
    """One image at a time: PIL views, one forward pass per view, a Python loop over pairs."""
    from torchvision import transforms

    view = transforms.Compose(torchvision_view(setting.case.image_size))
    models = build(setting.case)
    results = []
    with torch.no_grad():
        for _, data in _images(setting.shards):
            image = load_image(data).image.convert("RGB")
            views = [view(image)[None] for _ in range(VIEWS)]
            similarities = []
            for model in models:
                embeddings = [model(each)["backbone"][0] for each in views]
                for one in range(VIEWS):
                    for two in range(one + 1, VIEWS):
                        similarities.append(F.cosine_similarity(embeddings[one], embeddings[two], dim=0).item())
            results.append(similarities)
            del results[:-1]
            yield 1


def _loop(setting: Setting) -> Iterator[int]:
    """Batches: each image decoded once, its views as one tensor operation, one call of an encoder for many."""
    decoder = Decoder(setting.case.image_size)
    plan = QueryPlan(NEEDS, ("backbone",), VIEWS, setting.batch_views, setting.case.precision)
    device = torch.device("cpu")
    models = {str(number): for_queries(model, device) for number, model in enumerate(build(setting.case))}
    extract = Extractor(models, plan, SimCLRAugmentation(**RECIPE), device)
    images = _images(setting.shards)
    while True:
        keys, data = zip(*itertools.islice(images, LOOP_IMAGES), strict=True)
        decoded = torch.from_numpy(np.stack([decode(one, decoder) for one in data]))
        extract(decoded, pixel_streams("", 0, "query", decoded), list(keys))
        yield LOOP_IMAGES


@torch.inference_mode()
def _encoder_only(setting: Setting) -> Iterator[int]:
    """The forward pass alone, on views that are ready."""
    models = [for_queries(model, "cpu") for model in build(setting.case)]
    size = setting.case.image_size
    views = torch.rand(READY_VIEWS, 3, size, size).contiguous(memory_format=torch.channels_last)
    half = setting.case.precision == "bfloat16"
    while True:
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            for model in models:
                for batch in views.split(setting.batch_views):
                    model(batch)
        yield READY_VIEWS // VIEWS


WAYS: dict[str, Callable[[Setting], Iterator[int]]] = {"naive": _naive, "loop": _loop, "encoder_only": _encoder_only}
