"""Speed on a GPU: queries at 224 pixels, training at 32, and queries from shards through Ray.

``python -m docs.studies.gpu_speed RESULT.json [PATTERN...]`` measures the cases whose names match a pattern, such as
``'training*'`` (none: all), in some four minutes, and writes the result after every case. Rates are images per second
over turns of half a second. A case that fails is told by its error, and the others go on.
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

import torch

from docs.studies.bench.extraction import ExtractionCase
from docs.studies.bench.setting import MEAN, RECIPE, STD, dated, spread
from mi_core.augmentations.simclr import SimCLRAugmentation
from mi_core.encoders import build_backbone
from mi_core.encoders.batch_norm import for_queries
from mi_core.encoders.checkpoint import Encoder, channelwise, seeded
from mi_core.features.embedding import LpNorm
from mi_core.features.pairwise_similarity import PairwiseSimilarity
from mi_core.objectives import OBJECTIVES
from mi_core.querying.extractor import Extractor
from mi_core.querying.plan import QueryPlan
from mi_core.runtime import prepare_cuda, tf32
from mi_core.training.data import ResidentImages
from mi_core.training.loop import Pretrainer, PretrainingParameters
from mi_core.training.optimizers import OptimizerParameters

GPU = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TURNS, SECONDS = 3, 0.5
BATCH, MEMBERS = 512, 10_240
IMAGES = 16_000  # that the pipeline reads


def wait() -> None:
    if GPU.type == "cuda":
        torch.cuda.synchronize()


def rates(step: Callable[[], int], warm: int = 2) -> dict[str, float]:
    """Images per second of a step that does some images: median, least and most of the turns."""
    for _ in range(warm):
        step()
    found = []
    for _ in range(TURNS):
        wait()
        done, started = 0, time.perf_counter()
        while time.perf_counter() - started < SECONDS:
            done += step()
        wait()
        found.append(done / (time.perf_counter() - started))
    return spread(found, 1)


def fresh_encoder(name: str, side: int, compile: bool) -> Encoder:
    backbone = seeded(0, lambda: build_backbone(name, 3, side))
    made = Encoder(backbone, {}, channelwise(MEAN, 3), channelwise(STD, 3), size=side)
    return for_queries(made, GPU, compile=compile)


def queries(
    name: str, precision: str, views: int, *, compile: bool = False, batch: int | None = None
) -> dict[str, Any]:
    """Our way from images in memory to features, and the encoder alone on views that are ready."""
    images = torch.randint(256, (1024, 3, 224, 224), dtype=torch.uint8)
    keys, ids = torch.arange(len(images)), [str(row) for row in range(len(images))]
    asked = fresh_encoder(name, 224, compile)
    needs = (PairwiseSimilarity(),) if views > 1 else (LpNorm(),)
    plan = QueryPlan(needs, ("backbone",), views=views, batch_views=batch or 640, precision=precision)
    extractor = Extractor({"e": asked}, plan, SimCLRAugmentation(**RECIPE), GPU)
    if batch is None:
        extractor.fit_batch((3, 224, 224), len(images))
    size = extractor._images_at_once or plan.images_at_once
    extractor._images_at_once = size
    parts = list(keys.split(max(256, size)))
    begun: list[Any] = []

    def ours() -> int:
        for rows in parts:
            begun.append(extractor.begin(images[rows], keys[rows], [ids[row] for row in rows.tolist()]))
            if len(begun) > 1:
                begun.pop(0).fetched()
        return len(images)

    found: dict[str, Any] = {"images_at_once": size, "ours": rates(ours, warm=1)}
    begun.pop().fetched()
    seconds = {key: round(value, 3) for key, value in vars(extractor.seconds).items() if isinstance(value, float)}
    found["seconds"] = seconds
    extractor._drawing = None
    found["in_turn"] = rates(ours, warm=1)
    begun.pop().fetched()
    ready = torch.rand(size * views, 3, 224, 224, device=GPU).contiguous(memory_format=torch.channels_last)

    @torch.inference_mode()
    def alone() -> int:
        with tf32(precision == "tf32"), torch.autocast(GPU.type, torch.bfloat16, enabled=precision == "bfloat16"):
            asked(ready)
        return size

    found["encoder_only"] = rates(alone)
    found["ours_over_encoder_only"] = round(found["ours"]["median"] / found["encoder_only"]["median"], 3)
    return found


def trainer(objective: str, precision: str) -> Pretrainer:
    own = {"moco-v1": {"queue": 4096, "momentum": 0.99, "temperature": 0.1, "batch_norm_splits": 8}}.get(objective, {})
    parameters = PretrainingParameters(
        "resnet18",
        objective,
        OBJECTIVES[objective].Parameters(**own),
        OptimizerParameters("sgd", learning_rate=0.06, weight_decay=0.0005),
        epochs=1_000_000,
        batch_size=BATCH,
        precision=precision,
        mean=MEAN,
        std=STD,
    )
    images = torch.randint(256, (MEMBERS, 3, 32, 32), dtype=torch.uint8)
    data = ResidentImages(images, [("p", str(row)) for row in range(MEMBERS)], batch_size=BATCH, seed=0, device=GPU)
    return Pretrainer(data, SimCLRAugmentation(**RECIPE), parameters, seed=0, device=GPU)


def training(objective: str, precision: str) -> dict[str, Any]:
    """The product's loop, the same without drawing ahead, the step on views that are ready, and views alone."""
    made = trainer(objective, precision)
    made.trained.train()
    batches = itertools.chain.from_iterable(made.data.epoch(number) for number in itertools.count())
    drawn = itertools.chain.from_iterable(made.view_batches() for _ in itertools.count())
    ready = made.views(next(batches), 0)

    def ours() -> int:
        made.train_views(*next(drawn), 0)
        return BATCH

    def in_turn() -> int:
        made.train_views(made.views(next(batches), 0), None, 0)
        return BATCH

    def step() -> int:
        made.train_views(ready, None, 0)
        return BATCH

    def views() -> int:
        made.views(next(batches), 0)
        return BATCH

    started = time.perf_counter()
    step()
    wait()
    first = round(time.perf_counter() - started, 1)
    found: dict[str, Any] = {"first_step_seconds": first, "ours": rates(ours, warm=4), "in_turn": rates(in_turn)}
    found |= {"step": rates(step), "views": rates(views)}
    found["ours_over_step"] = round(found["ours"]["median"] / found["step"]["median"], 3)
    return found


def pipeline(encoders: int) -> dict[str, Any]:
    """From JPEG shards through Ray: one actor that holds the GPU."""
    from docs.studies.bench.pipeline import Pipeline, query_config, smooth_shards
    from pipelines.plan.load import parse

    case = ExtractionCase("vit-b/32", 224, "bfloat16", encoders)
    with tempfile.TemporaryDirectory() as place:
        shards = smooth_shards(Path(place) / "data", 224, 16, IMAGES // 16)
        config = query_config(case, [shards], IMAGES, 250, 1, 2560)
        stated = config.model_dump(mode="json", exclude_unset=True)
        stated["resources"] |= {"gpus_per_actor": 1 if GPU.type == "cuda" else 0, "actor_cpus": 1}
        turn = Pipeline(parse(stated, "bench"), Path(place) / "run")
        turn.turn()
        taken = turn.folder.manifest["extraction"][-1]
    return {key: value for key, value in taken.items() if isinstance(value, int | float)}


def all_cases() -> dict[str, Callable[[], Any]]:
    """Every case by name."""
    cases: dict[str, Callable[[], Any]] = {}
    for objective, precision in (("simclr", "bfloat16"), ("moco-v1", "bfloat16"), ("moco-v1", "float32")):
        cases[f"training, {objective}, {precision}"] = partial(training, objective, precision)
    for encoders in (2, 1):
        cases[f"pipeline, vit-b/32, {encoders} encoders"] = partial(pipeline, encoders)
    for name in ("vit-b/32", "resnet18-imagenet"):
        ten = f"queries, {name}, bfloat16, 10 views"
        cases[ten] = partial(queries, name, "bfloat16", 10)
        cases[f"queries, {name}, bfloat16, 1 view"] = partial(queries, name, "bfloat16", 1)
        for precision in ("float32", "tf32"):
            cases[f"queries, {name}, {precision}, 10 views"] = partial(queries, name, precision, 10)
        for batch in (640, 2_560, 10_240):
            cases[f"{ten}, {batch} at once"] = partial(queries, name, "bfloat16", 10, batch=batch)
        cases[f"{ten}, compiled"] = partial(queries, name, "bfloat16", 10, compile=True)
    return cases


def main() -> None:
    path, patterns = Path(sys.argv[1]), sys.argv[2:] or ["*"]
    prepare_cuda()
    device = torch.cuda.get_device_name() if GPU.type == "cuda" else "cpu"
    result = dated(device=device, cases={})
    cases = {
        name: case for name, case in all_cases().items() if any(fnmatchcase(name, pattern) for pattern in patterns)
    }
    for name, case in cases.items():
        started = time.perf_counter()
        try:
            found = case()
        except Exception:  # noqa: BLE001 - one case of many
            found = traceback.format_exc()
        result["cases"][name] = found
        path.write_text(json.dumps(result, indent=1) + "\n")
        shown = found if isinstance(found, dict) else found[-300:]
        print(f"{name} ({time.perf_counter() - started:.0f} s): {shown}", flush=True)  # noqa: T201
        if GPU.type == "cuda":
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
