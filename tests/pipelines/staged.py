"""The stages of `pipelines.audit.run` in this process: for tests that are not about workers.

A search does its trials so. No encoder is trained here: those of `trained_run` are given, or the run's are loaded.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from mi_core.encoders.remembering import Memory
from mi_core.registration import LOOK, START
from pipelines.attack import run as attack
from pipelines.audit.run import register
from pipelines.config.run_config import RunConfig
from pipelines.config.sections.encoders import ForeignConfig
from pipelines.data.draw.draw import draw
from pipelines.data.draw.splits import are_drawn
from pipelines.data.plans import plan_of
from pipelines.data.scan.scan import scan
from pipelines.encoders import adopt
from pipelines.extract import run as extract
from pipelines.extract.actor.worker import EncodeChunks
from pipelines.extract.division.readers import Kept
from pipelines.plan.load import parse
from pipelines.pretrain import run as pretrain
from pipelines.report import run as report
from pipelines.report.finished import FinishedRun
from pipelines.run.folder import SCAN, RunFolder
from pipelines.run.points import Run
from pipelines.run.registration import registered_nonce, write_down


def prepare(raw: dict[str, Any], trained_run: Path, folder: Path) -> Path:
    """A run folder with roles and with the encoders of `trained_run`, whose roles and settings are the same."""
    begin(parse(raw, "small.yaml"), folder)
    shutil.copytree(trained_run / "seed-0" / "encoders", folder / "seed-0" / "encoders")
    return folder


def begin(config: RunConfig, folder: Path) -> RunFolder:
    """Open a run folder and draw the roles that are not drawn."""
    place = RunFolder(str(folder))
    place.open(config.model_dump(mode="json", by_alias=True), command="")
    todo = [seed for seed in config.seeds if not are_drawn(place.seed(seed).path)]
    if todo:
        found = scan(config.data, f"{folder}/{SCAN}/{config.data.scan_digest[:12]}")
        for seed in todo:
            draw(config.data, found, seed, place.seed(seed).path)
    return place


def query(config: RunConfig, folder: Path) -> RunFolder:
    """The stages up to extraction; loading an encoder takes Ray."""
    config = config.with_queries(nonce=config.queries.nonce or registered_nonce(RunFolder(str(folder))))
    runs, planned = register([Run(config, begin(config, folder))])
    ((config, place),) = runs
    if any(isinstance(encoder, ForeignConfig) for encoder in config.encoders.values()):
        adopt.run(runs, planned)
    pretrain.here(planned, 1)
    write_down(place, START, {"command": ""})
    extract.here(planned, EncodeChunks(memory=Memory()), Kept(), config.queries.chunk)
    return place


def judge(config: RunConfig, folder: Path) -> Path:
    """All stages of a run without sweeps."""
    place = query(config, folder)
    config = config.with_queries(nonce=registered_nonce(place) or config.queries.nonce)
    for seed in config.seeds:
        attack.here(plan_of(config, place.seed(seed)))
    write_down(place, LOOK, {"command": ""})
    report.run(FinishedRun.at(config, place))
    return folder
