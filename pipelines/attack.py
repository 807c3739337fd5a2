"""Fit attacks on their reference, score the target's samples, and run the controls, as Ray tasks.

One task per (seed, attack, output, checkpoint); a task whose result is on disk is skipped. Labels meet the
features only here. The same fitted attack also scores the same samples on the control encoder.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator
from dataclasses import MISSING, asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import pyarrow as pa
import torch
from pydantic import BaseModel, ConfigDict, Field, create_model, model_validator

from mi_core.attacks import ATTACKS
from mi_core.attacks.base import Attack
from mi_core.metrics.membership import evaluate
from mi_core.metrics.utility import knn_accuracy, linear_probe
from mi_core.records import Features, LabelledFeatures
from mi_core.validity.blind import blind_scores
from pipelines import storage
from pipelines.artifacts import RunFolder, SeedFolder
from pipelines.console import bars, say
from pipelines.layers import load_features
from pipelines.methods import build
from pipelines.splits import Splits, load_images

if TYPE_CHECKING:
    from pipelines.config import RunConfig

VERSION = 1
KNOWN = "known"


class AttackConfig(BaseModel):
    """One attack on one encoder; the fields of the method's own parameters stand beside these."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    attack: str
    target: str = Field(default="target", description="encoder attacked")
    reference: str = Field(default="shadow", description="encoder the attack is fitted on, or 'known'")

    def method(self) -> type[Attack]:
        """The attack's class."""
        return ATTACKS[self.attack]

    def parameters(self) -> Any:
        """The attack's own parameters."""
        own = {name: value for name, value in self.model_dump().items() if name not in AttackConfig.model_fields}
        return build(self.method().Parameters, own)

    def needs(self) -> tuple[str, ...]:
        """Membership features the attack consumes."""
        return tuple(self.method()(self.parameters()).needs)

    @model_validator(mode="after")
    def _check(self) -> AttackConfig:
        kind = KNOWN if self.reference == KNOWN else "shadow"
        if kind not in self.method().reference:
            raise ValueError(f"{self.attack} cannot be fitted on {self.reference!r}")
        self.parameters()
        return self


def _attack_model(name: str) -> type[AttackConfig]:
    own: dict[str, Any] = {"attack": (Literal[name], name)}
    own |= {
        field.name: (field.type, field.default if field.default is not MISSING else ...)
        for field in fields(ATTACKS[name].Parameters)
    }
    model: type[AttackConfig] = create_model(f"{name}-config", __base__=AttackConfig, __module__=__name__, **own)
    return model


ATTACK_CONFIGS: dict[str, type[AttackConfig]] = {name: _attack_model(name) for name in ATTACKS}


class UtilityConfig(BaseModel):
    """How useful an encoder is: kNN and a linear probe on the backbone's embedding of clean images."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    k: int = Field(default=20, ge=1, description="neighbours")
    bank: tuple[str, ...] = Field(default=(), description="labelled roles; default: what the encoder was trained on")
    test: tuple[str, ...] = Field(default=(), description="roles tested; default: downstream-test, else all unseen")


class ValidityConfig(BaseModel):
    """Which result the verdict rests on and what it is compared with."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    attack: int = Field(default=0, ge=0, description="primary attack, as its position in `attacks`")
    output: str | None = Field(default=None, description="primary output; default: the first of queries.outputs")
    control: str | None = Field(default=None, description="encoder that saw neither group; default: the reference")


@dataclass(frozen=True)
class Task:
    """One attack on one output of one checkpoint of one seed."""

    folder: SeedFolder
    position: int
    attack: AttackConfig
    output: str
    epoch: int
    control: str | None

    @property
    def name(self) -> str:
        """Folder name of the result."""
        return f"{self.attack.attack}-{self.position}-{self.output}-{self.epoch:04d}"


def run(config: RunConfig, folder: RunFolder) -> None:
    """Run every attack, utility measurement and control that is not on disk yet."""
    work: list[tuple[str, Callable[..., None], tuple[Any, ...]]] = []
    done = 0
    for seed in config.seeds:
        for path, function, arguments in _work(config, folder.seed(seed)):
            if storage.exists(path):
                done += 1
            else:
                work.append((path, function, arguments))
    if done:
        say("attack", f"{done} of {done + len(work)} results done before")
    if not work:
        return
    import ray

    started = time.perf_counter()
    config_reference = ray.put(config)
    remote = ray.remote(num_cpus=1)(_call)
    pending = [remote.remote(function, config_reference, *arguments) for _, function, arguments in work]
    with bars("results") as progress:
        bar = progress.add_task("attacks and controls", total=len(pending), note="")
        while pending:
            ready, pending = ray.wait(pending, num_returns=1)
            ray.get(ready)
            progress.advance(bar)
    say("attack", f"{len(work)} results, {time.perf_counter() - started:.0f} s")


def tasks(config: RunConfig, folder: SeedFolder) -> Iterator[Task]:
    """All attack tasks of one seed."""
    for position, attack in enumerate(config.attacks):
        for epoch in config.encoders[attack.target].kept_epochs:
            for output in config.queries.outputs:
                yield Task(folder, position, attack, output, epoch, config.control_of(attack))


def _work(config: RunConfig, folder: SeedFolder) -> Iterator[tuple[str, Callable[..., None], tuple[Any, ...]]]:
    for task in tasks(config, folder):
        yield f"{folder.attack(task.name)}/result.json", _attack, (task,)
    for name in config.encoders:
        for epoch in config.encoders[name].kept_epochs:
            yield utility_path(folder, name, epoch), _utility, (folder, name, epoch)
    yield blind_path(folder), _blind, (folder,)


def _call(function: Callable[..., None], config: RunConfig, *arguments: Any) -> None:
    torch.set_num_threads(1)
    function(config, *arguments)


def _attack(config: RunConfig, task: Task) -> None:
    started = time.perf_counter()
    attack = task.attack
    method = attack.method()(attack.parameters(), seed=task.folder.seed)
    splits = Splits.load(task.folder.path)
    needs = attack.needs()
    reference, reference_encoder = _reference(config, task, splits)
    method.fit(reference)
    target = load_features(config, task.folder, attack.target, task.epoch, task.output, needs, TARGET_ROLES)
    evaluated = _evaluated(attack, splits, target)
    scores = method.score(evaluated)
    member = _members(splits, evaluated)
    columns: dict[str, Any] = {"id": evaluated.ids.tolist(), "member": member, "score": scores}
    if task.control is not None:
        columns["control"] = _control_scores(config, task, method, evaluated)
    metrics = evaluate(scores, member, method.threshold, seed=task.folder.seed)
    place = task.folder.attack(task.name)
    storage.write_table(f"{place}/scores.parquet", pa.table(columns))
    storage.write_atomic(f"{place}/attack.npz", _packed(method.state()))
    queries = method.queries_per_sample(config.queries.views)
    result = {
        "attack": attack.attack,
        "target": attack.target,
        "reference": attack.reference,
        "reference_encoder": reference_encoder,
        "output": task.output,
        "epoch": task.epoch,
        "seed": task.folder.seed,
        "position": task.position,
        "parameters": asdict(attack.parameters()),
        "queries": {
            "attack_training": queries * len(reference.features),
            "evaluation": queries * len(evaluated),
        },
        "seconds": round(time.perf_counter() - started, 3),
        "metrics": metrics.as_json(),
    }
    storage.write_json(f"{place}/result.json", result)


TARGET_ROLES = ("target-member", "target-nonmember")
SHADOW_ROLES = ("shadow-member", "shadow-nonmember")
KNOWN_ROLES = ("known-member", "known-nonmember")


def _reference(config: RunConfig, task: Task, splits: Splits) -> tuple[LabelledFeatures, str]:
    """What the attack is fitted on, and the encoder it was queried from."""
    attack = task.attack
    if attack.reference == KNOWN:
        encoder, roles, members = attack.target, KNOWN_ROLES, "known-member"
    else:
        encoder, roles, members = attack.reference, SHADOW_ROLES, "shadow-member"
    epoch = _epoch_of(config, encoder, task.epoch)
    features = load_features(config, task.folder, encoder, epoch, task.output, attack.needs(), roles)
    known = set(splits.ids([members]))
    return LabelledFeatures(features, np.array([name in known for name in features.ids])), encoder


def _epoch_of(config: RunConfig, encoder: str, epoch: int) -> int:
    """The checkpoint of a reference encoder that stands beside one of the target: the same epoch, else the last."""
    kept = config.encoders[encoder].kept_epochs
    return epoch if epoch in kept else kept[-1]


def _evaluated(attack: AttackConfig, splits: Splits, target: Features) -> Features:
    """The samples an attack is judged on: those it was not fitted on."""
    if attack.reference != KNOWN:
        return target
    known = set(splits.ids(KNOWN_ROLES))
    return target.take(np.array([name not in known for name in target.ids]))


def _members(splits: Splits, features: Features) -> np.ndarray:
    members = set(splits.ids(["target-member"]))
    return np.array([name in members for name in features.ids])


def _control_scores(config: RunConfig, task: Task, method: Attack, evaluated: Features) -> np.ndarray:
    """The same attack on an encoder that saw neither group: as fitted, or fitted anew where it knows samples of it."""
    attack, control = task.attack, task.control
    assert control is not None
    splits = Splits.load(task.folder.path)
    epoch = _epoch_of(config, control, task.epoch)
    features = load_features(config, task.folder, control, epoch, task.output, attack.needs(), TARGET_ROLES)
    row_of = {name: row for row, name in enumerate(features.ids)}
    if attack.reference == KNOWN:
        known = [name for name in splits.ids(KNOWN_ROLES) if name in row_of]
        members = set(splits.ids(["known-member"]))
        rows = features.take(np.array([row_of[name] for name in known]))
        method = attack.method()(attack.parameters(), seed=task.folder.seed)
        method.fit(LabelledFeatures(rows, np.array([name in members for name in known])))
    return method.score(features.take(np.array([row_of[name] for name in evaluated.ids])))


def _packed(state: dict[str, np.ndarray]) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **cast(Any, state))
    return buffer.getvalue()


def utility_path(folder: SeedFolder, encoder: str, epoch: int) -> str:
    """Where the utility of a checkpoint stands."""
    return f"{folder.path}/utility/{encoder}-{epoch:04d}.json"


def blind_path(folder: SeedFolder) -> str:
    """Where the scores of the blind classifier stand."""
    return f"{folder.path}/validity/blind.parquet"


def _utility(config: RunConfig, folder: SeedFolder, encoder: str, epoch: int) -> None:
    bank_roles, test_roles = config.utility_roles(encoder)
    splits = Splits.load(folder.path)
    labels = splits.labels()
    parts = []
    for roles in (bank_roles, test_roles):
        features = load_features(config, folder, encoder, epoch, "backbone", ["embedding"], roles)
        known = np.array([labels.get(name) is not None for name in features.ids])
        kept = features.take(known)
        parts.append((kept.values["embedding"], np.array([labels[name] for name in kept.ids], dtype=np.int64)))
    (bank, bank_labels), (test, test_labels) = parts
    result: dict[str, Any] = {}
    if len(bank) > config.utility.k and len(test):
        result["knn"] = knn_accuracy(bank, bank_labels, test, test_labels, k=config.utility.k).as_json()
        result["linear"] = linear_probe(bank, bank_labels, test, test_labels).as_json()
    storage.write_json(utility_path(folder, encoder, epoch), result)


def _blind(config: RunConfig, folder: SeedFolder) -> None:
    splits = Splits.load(folder.path)
    ids, images, _ = load_images(config.data, splits, TARGET_ROLES)
    members = set(splits.ids(["target-member"]))
    member = np.array([name in members for name in ids])
    scores = blind_scores(images, member, seed=folder.seed)
    storage.write_table(blind_path(folder), pa.table({"id": ids, "member": member, "score": scores}))


if __name__ == "__main__":
    from pipelines.cli import main

    main("attack")
