"""Fit attacks on their reference, score the target's samples, and run the controls, as Ray tasks.

One task per (seed, attack, output, checkpoint); a task whose result is on disk is skipped. Labels meet the
features only here. The same fitted attack also scores the same samples on the control encoder.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import pyarrow as pa
import torch
from pydantic import BaseModel, ConfigDict, Field, create_model, field_validator, model_validator

from mi_core.attacks import ATTACKS
from mi_core.attacks.base import Attack
from mi_core.metrics.membership import evaluate
from mi_core.metrics.utility import classifier_accuracy, knn_accuracy, linear_probe, overfitting_level
from mi_core.records import Features, LabelledFeatures
from mi_core.validity.blind import blind_scores
from pipelines import storage
from pipelines.artifacts import RunFolder, SeedFolder
from pipelines.console import bars, say
from pipelines.layers import load_features
from pipelines.loading import load_images
from pipelines.methods import build
from pipelines.splits import Splits

if TYPE_CHECKING:
    from pipelines.config import RunConfig

VERSION = 1
KNOWN = "known"
NONMEMBERS = "nonmembers"


class AttackConfig(BaseModel):
    """One attack on one encoder; the fields of the method's own parameters stand beside these."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    attack: str
    target: str = Field(default="target", description="encoder attacked")
    reference: str = Field(default="shadow", description="encoder the attack is fitted on, known, or nonmembers")

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
        kind = self.reference if self.reference in (KNOWN, NONMEMBERS) else "shadow"
        if kind not in self.method().reference:
            fits = " or ".join(sorted(self.method().reference))
            raise ValueError(f"{self.attack} cannot be fitted on {self.reference!r}; it needs reference: {fits}")
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

    k: tuple[int, ...] = Field(default=(20,), min_length=1, description="neighbours; several are tried one by one")
    bank: tuple[str, ...] = Field(
        default=(), description="labelled roles; default: downstream-train, else what the encoder was trained on"
    )
    test: tuple[str, ...] = Field(default=(), description="roles tested; default: downstream-test, else all unseen")

    @field_validator("k", mode="before")
    @classmethod
    def _one_k(cls, value: Any) -> Any:
        return (value,) if isinstance(value, int) else value

    @field_validator("k")
    @classmethod
    def _at_least_one(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if min(value) < 1:
            raise ValueError(f"k = {min(value)}, allowed: at least 1")
        return value


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
    target = load_features(config, task.folder, attack.target, task.epoch, task.output, needs, config.audited)
    evaluated = _evaluated(config, attack, splits, target)
    scores = method.score(evaluated)
    member = _members(splits, evaluated, config.audited[0])
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
CANDIDATE_ROLES = ("candidate", "control")  # of an encoder whose training data is not known
BANK_ROLE = "downstream-train"
SHADOW_ROLES = ("shadow-member", "shadow-nonmember")
KNOWN_ROLES = ("known-member", "known-nonmember")


def _reference(config: RunConfig, task: Task, splits: Splits) -> tuple[LabelledFeatures, str]:
    """What the attack is fitted on, and the encoder it was queried from."""
    attack = task.attack
    roles = config.reference_roles(attack)
    encoder = attack.reference if attack.reference in config.encoders else attack.target
    epoch = _epoch_of(config, encoder, task.epoch)
    features = load_features(config, task.folder, encoder, epoch, task.output, attack.needs(), roles)
    return LabelledFeatures(features, _reference_members(splits, features, roles)), encoder


def _reference_members(splits: Splits, features: Features, roles: Sequence[str]) -> np.ndarray:
    members = set(splits.ids([role for role in roles if not role.endswith("nonmember")]))
    return np.array([name in members for name in features.ids])


def _epoch_of(config: RunConfig, encoder: str, epoch: int) -> int:
    """The checkpoint of a reference encoder that stands beside one of the target: the same epoch, else the last."""
    kept = config.encoders[encoder].kept_epochs
    return epoch if epoch in kept else kept[-1]


def _evaluated(config: RunConfig, attack: AttackConfig, splits: Splits, target: Features) -> Features:
    """The samples an attack is judged on: those it was not fitted on."""
    if attack.reference in config.encoders:
        return target
    known = set(splits.ids(config.reference_roles(attack)))
    return target.take(np.array([name not in known for name in target.ids]))


def _members(splits: Splits, features: Features, role: str) -> np.ndarray:
    members = set(splits.ids([role]))
    return np.array([name in members for name in features.ids])


def _control_scores(config: RunConfig, task: Task, method: Attack, evaluated: Features) -> np.ndarray:
    """The same attack on an encoder that saw neither group: as fitted, or fitted anew where it knows samples of it."""
    attack, control = task.attack, task.control
    assert control is not None
    splits = Splits.load(task.folder.path)
    epoch = _epoch_of(config, control, task.epoch)
    features = load_features(config, task.folder, control, epoch, task.output, attack.needs(), config.audited)
    row_of = {name: row for row, name in enumerate(features.ids)}
    if attack.reference not in config.encoders:
        roles = config.reference_roles(attack)
        known = load_features(config, task.folder, control, epoch, task.output, attack.needs(), roles)
        method = attack.method()(attack.parameters(), seed=task.folder.seed)
        method.fit(LabelledFeatures(known, _reference_members(splits, known, roles)))
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
    device = "cuda" if torch.cuda.is_available() else "cpu"
    labels = Splits.load(folder.path).labels()

    def labelled(output: str, roles: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        features = load_features(config, folder, encoder, epoch, output, ["embedding"], roles)
        kept = features.take(np.array([labels.get(name) is not None for name in features.ids], dtype=bool))
        return kept.values["embedding"], np.array([labels[name] for name in kept.ids], dtype=np.int64)

    result: dict[str, Any] = {"probes": {}}
    bank_roles, test_roles = config.utility_roles(encoder)
    if bank_roles and test_roles:
        bank, test = labelled("backbone", bank_roles), labelled("backbone", test_roles)
        if len(test[1]):
            for position, k in enumerate(config.utility.k):
                if len(bank[1]) > k:
                    name = f"knn_{k}" if position else "knn"
                    result["probes"][name] = knn_accuracy(*bank, *test, k=k, device=device).as_json()
            if len(np.unique(bank[1])) > 1:
                result["probes"]["linear"] = linear_probe(*bank, *test, device=device).as_json()
    roles = config.classifier_roles(encoder)
    if all(roles) and roles:
        train, unseen = (classifier_accuracy(*labelled("logits", group)) for group in roles)
        result["classifier"] = {
            "train_accuracy": train.as_json(),
            "test_accuracy": unseen.as_json(),
            "overfitting": overfitting_level(train, unseen).as_json(),
        }
    storage.write_json(utility_path(folder, encoder, epoch), result)


def _blind(config: RunConfig, folder: SeedFolder) -> None:
    splits = Splits.load(folder.path)
    loaded = load_images(config.data, splits, config.audited)
    members = set(splits.ids(config.audited[:1]))
    member = np.array([name in members for name in loaded.ids])
    scores = blind_scores(loaded.images, member, seed=folder.seed)
    storage.write_table(blind_path(folder), pa.table({"id": loaded.ids, "member": member, "score": scores}))


if __name__ == "__main__":
    from pipelines.cli import main

    main("attack")
