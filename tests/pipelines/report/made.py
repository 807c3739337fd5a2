"""A run folder as a finished run leaves it, made in seconds without Ray: real roles, records, plans and verdicts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pyarrow as pa
import safetensors.torch
import torch

from mi_core.encoders.checkpoint import fingerprint, weights_bytes
from mi_core.hashing import digest64
from mi_core.registration import LOOK, ROLES, START
from mi_core.report.contents import schema, to_json
from mi_core.report.model.as_json import part_as_json
from mi_core.training.loop import audited_encoder
from pipelines.attack.blind import blind_path
from pipelines.attack.results import Result, tasks, write_result
from pipelines.attack.scores import part_path
from pipelines.audit.run import register
from pipelines.config.run_config import RunConfig
from pipelines.config.sections.encoders import DefendedConfig, EndpointConfig, LoadedConfig
from pipelines.data.draw.draw import draw
from pipelines.data.plans import plan_of
from pipelines.encoders import stored
from pipelines.files import storage
from pipelines.files.digest import digest
from pipelines.plan.load import parse
from pipelines.plan.rules import ThreatModel
from pipelines.report.finished import FinishedRun
from pipelines.report.verdict import verdict
from pipelines.run.folder import RunFolder, SeedFolder
from pipelines.run.points import Run
from pipelines.run.registration import lines_of, write_down
from tests.conftest import small_config
from tests.pipelines.data.made import scanned


def made_run(place: Path, *, leak: bool = False, others: float = 0.0, **sections: Any) -> Path:
    """A run of the small config with untrained encoders; scores of its attacks are drawn from two normal laws.

    Args:
        place: of the folder.
        leak: whether members score two standard deviations higher.
        others: by how many they score higher in the attacks that are not primary.
        sections: of the config, to change.
    """
    config = parse(small_config(**sections), "small.yaml")
    folder = RunFolder(str(place))
    folder.open(config.model_dump(mode="json", by_alias=True), command="encoder-audit audit small.yaml")
    found = scanned(config.data, f"{folder.path}/scan/digits")
    for seed in config.seeds:
        draw(config.data, found, seed, folder.seed(seed).path)
        for name in config.encoders:
            _encoder(config, folder.seed(seed), name)
    ((config, _),), _ = register([Run(config, folder)])
    for event in (START, LOOK):
        write_down(folder, event, {"command": "encoder-audit audit small.yaml"})
    report = _report(config, folder, 2.0 * leak, others)
    jsonschema.validate(report, schema())
    storage.write_atomic(f"{folder.path}/report.json", to_json(report).encode())
    storage.write_atomic(f"{folder.path}/report.html", b"<p>made</p>")
    return place


def _encoder(config: RunConfig, folder: SeedFolder, name: str) -> None:
    settings, path = config.encoders[name], folder.encoder(name)
    record = stored.EncoderRecord(
        name=name,
        inputs=digest(name),
        config=settings.model_dump(mode="json"),
        seed=folder.seed,
        channels=1,
        image_size=8,
        outputs=("backbone", "projection"),
        fingerprints={},
    )
    if isinstance(settings, EndpointConfig):
        storage.write_atomic(f"{path}/{stored.ANSWERS}", safetensors.torch.save({"embedding": torch.ones(4, 3)}))
        marks, told = {"0": digest("api")}, {"noise": {"largest": 0.0, "n": 4}}
        return stored.write_record(folder, replace(record, fingerprints=marks, answers=told))
    if isinstance(settings, LoadedConfig):
        storage.write_atomic(stored.weights_path(path, 0), b"")
        return stored.write_record(folder, replace(record, fingerprints={"0": digest("code")}))
    marks = {}
    for epoch in settings.kept_epochs:
        network = audited_encoder(settings.pretraining(), 1, 8)
        random = torch.Generator().manual_seed(digest64(config.name, folder.seed, epoch, name) % 2**32)
        for weight in network.parameters():
            weight.data.add_(torch.randn(weight.shape, generator=random))
        storage.write_atomic(stored.weights_path(path, epoch), weights_bytes(network))
        marks[str(epoch)] = fingerprint(network)
        if isinstance(settings, DefendedConfig):
            state = safetensors.torch.save({"scale": torch.ones(1)})
            storage.write_atomic(f"{path}/{stored.DEFENSE}", state)
            seed = stored.defense_seed(folder.seed, name)
            marks[str(epoch)] = stored.defended_fingerprint(marks[str(epoch)], state, settings, seed)
    return stored.write_record(folder, replace(record, fingerprints=marks))


def _scores(config: RunConfig, folder: SeedFolder, shift: float, others: float) -> None:
    """The scores of all attacks at all checkpoints, of their control and of the blind classifier."""
    random = np.random.default_rng(folder.seed)
    ids, member = [f"digits/{row:04d}" for row in range(120)], np.arange(120) < 60
    blind, control = random.normal(size=(2, 120))
    columns = {"id": ids, "score": random.normal(size=120) + shift * member, "member": member, "control": control}
    storage.write_table(blind_path(folder), pa.table({"id": ids, "score": blind}))
    for task in tasks(plan_of(config, folder)):
        scores = columns if task.judge.primary else columns | {"score": random.normal(size=120) + others * member}
        storage.write_table(part_path(task, 0), pa.table(scores))
        write_result(task, Result())


def _report(config: RunConfig, folder: RunFolder, shift: float, others: float) -> dict[str, Any]:
    primary = config.attacks[config.validity.attack]
    epoch = ThreatModel(config).attacked_epochs(primary.target)[-1]
    roles = next(line["roles"] for line in lines_of(folder) if line["event"] == ROLES)
    for seed in config.seeds:
        _scores(config, folder.seed(seed), shift, others)
    pooled = part_as_json(verdict(FinishedRun.at(config, folder)))
    found = dict(zip(config.seeds, pooled.get("per_seed", [pooled]), strict=True))
    auc = pooled["attack_auc"]
    rows = [
        {
            "attack": primary.attack,
            "target": primary.target,
            "output": ThreatModel(config).primary_output,
            "reference": "shadow",
            "shadow": "shadow",
            "seed": seed,
            "epoch": epoch,
            "n_member": 60,
            "n_nonmember": 60,
            "auc": of_seed["attack_auc"],
            "accuracy": of_seed["attack_auc"],
            "tpr_at_fpr": {},
            "threshold": 0.5,
            "primary": True,
        }
        for seed, of_seed in found.items()
    ]
    manifest = folder.manifest
    return {
        "schema_version": 1,
        "name": config.name,
        "created": "2026-01-01T00:00:00+00:00",
        "config_sha256": manifest["config_sha256"],
        "versions": manifest["versions"],
        "membership": "known",
        "data": {"source": "digits", "roles": roles[str(config.seeds[0])], "duplicates_removed": 0},
        "encoders": {name: {"load": "made"} | _fingerprints(folder, config, name) for name in config.encoders},
        "attacks": rows,
        "validity": pooled,
        "queries": {"total": auc["n"], "entries": []},
    }


def _fingerprints(folder: RunFolder, config: RunConfig, name: str) -> dict[str, Any]:
    last = str(config.encoders[name].kept_epochs[-1])
    per_seed = [
        {"seed": seed, "fingerprint": stored.describe(folder.seed(seed), name).record.fingerprints[last]}
        for seed in config.seeds
    ]
    return {"fingerprint": per_seed[0]["fingerprint"]} | ({"per_seed": per_seed} if len(per_seed) > 1 else {})
