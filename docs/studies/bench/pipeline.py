"""This pipeline in the settings of a benchmark: fresh encoders, views of many images, a Ray for every turn."""

from __future__ import annotations

import io
import statistics
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from docs.studies.bench.extraction import VIEWS, ExtractionCase
from docs.studies.bench.setting import MEAN, RECIPE, STD, spread
from pipelines.audit import run as audit
from pipelines.config.run_config import RunConfig
from pipelines.console import silence
from pipelines.data.plans import plans_of
from pipelines.errors import UserError
from pipelines.extract import run as extract
from pipelines.extract.actor.worker import STEPS
from pipelines.files import storage
from pipelines.plan.load import parse
from pipelines.run.folder import FEATURES, RunFolder
from pipelines.run.machine import cpus
from pipelines.run.points import Run
from pipelines.run.ray_session import ray_cluster

ROLES = ("target-member", "target-nonmember", "known-member", "known-nonmember")
OBJECT_STORE_MB = 1000


class Pipeline:
    """One setting, which takes its turns with a Ray of its own, that nobody else has to live beside."""

    def __init__(self, config: RunConfig, folder: Path) -> None:
        self.config = config
        self.folder = RunFolder(storage.absolute(str(folder)))
        self.steady: list[float] = []
        self.started: list[float] = []
        self.steps: list[dict[str, float]] = []

    def turn(self) -> None:
        """Query all images once.

        Raises:
            UserError: there are too few of them for a steady rate.
        """
        for path in storage.list_files(self.folder.path) if storage.is_folder(self.folder.path) else ():
            if f"/{FEATURES}/" in path:
                storage.remove(path)
        with silence(), ray_cluster(None, object_store_mb=OBJECT_STORE_MB):
            audit.run(self.config, self.folder.path, last="pretrain")
            runs = [Run(self.config, self.folder)]
            extract.run(runs, plans_of(runs))
        taken: dict[str, Any] = self.folder.manifest["extraction"][-1]
        if not taken["steady"]:
            raise UserError(f"{taken['images']} images are too few for a steady rate; give more shards")
        self.steady.append(taken["steady"] / len(self.config.encoders))
        self.started.append(taken["started"])
        whole = sum(taken[step] for step in STEPS)
        self.steps.append({step: taken[step] / whole for step in STEPS})

    def figures(self) -> dict[str, Any]:
        """Rates, seconds until all workers had answered, and the share of the workers' time by step."""
        shares = {step: round(statistics.median(one[step] for one in self.steps), 3) for step in STEPS}
        return {"images_per_second": spread(self.steady), "start_seconds": spread(self.started), "share": shares}


def query_config(
    case: ExtractionCase,
    shards: Sequence[str],
    images: int,
    chunk: int,
    workers: int,
    batch_views: int,
    views: int = VIEWS,
    **encoder: Any,
) -> RunConfig:
    """A run that queries fresh encoders with the views of some images."""
    names = [f"target-{number}" for number in range(case.encoders)]
    stated: dict[str, Any] = {
        "name": "bench",
        "data": {
            "sources": {"pool": {"kind": "shards", "path": list(shards)}},
            "image_size": case.image_size,
            "roles": {role: {"from": "pool", "count": images // len(ROLES)} for role in ROLES},
        },
        "encoders": {
            name: {
                "load": f"checkpoint:{case.backbone}",
                "fresh": True,
                "mean": MEAN,
                "std": STD,
                "augmentation": RECIPE,
            }
            | encoder
            for name in names
        },
        "queries": {
            "views": views,
            "outputs": ["backbone"],
            "chunk": chunk,
            "batch_views": batch_views,
            "precision": case.precision,
        },
        "attacks": [{"attack": "encodermi-t", "target": name, "reference": "known"} for name in names],
        "resources": {"encoder_actors": workers, "actor_cpus": min(0.75, 0.75 * cpus() / workers), "reader_cpus": 0.25},
    }
    return parse(stated, "bench")


def smooth_shards(folder: Path, side: int, count: int, images: int) -> str:
    """Write shards of smooth random JPEG images; returns their pattern."""
    if not folder.exists():
        folder.mkdir(parents=True)
        with ThreadPoolExecutor(cpus()) as pool:
            list(pool.map(partial(_write_smooth_shard, folder, side, images), range(count)))
    return f"{folder}/{{000000..{count - 1:06d}}}.tar"


def _write_smooth_shard(folder: Path, side: int, images: int, number: int) -> None:
    import webdataset

    generator = np.random.default_rng(number)
    with webdataset.TarWriter(f"{folder}/{number:06d}.tar", encoder=False) as writer:
        for row in range(images):
            coarse = Image.fromarray(generator.integers(0, 256, (4, 4, 3), dtype=np.uint8))
            buffer = io.BytesIO()
            coarse.resize((side, side), Image.Resampling.BICUBIC).save(buffer, "JPEG", quality=90)
            writer.write({"__key__": f"{number:06d}{row:06d}", "jpg": buffer.getvalue()})
