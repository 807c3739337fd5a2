"""Fit an attack on its reference, and score samples of the target and of the control encoder with it."""

from __future__ import annotations

import io
import time
from dataclasses import asdict, dataclass
from typing import Any, cast

import numpy as np
import pyarrow as pa

from mi_core.attacks.base import Attack, NotApplicable
from mi_core.records import Features
from pipelines.attack.tasks import Task, evaluated_of, features_of, reference_of
from pipelines.config.attacks import AUDITED
from pipelines.config.demands import SEQUENTIAL
from pipelines.config.run_config import RunConfig
from pipelines.data.first import number_of
from pipelines.data.splits import Splits, having

FITTED = 2_000_000  # samples of the reference that an attack is fitted on, at most


@dataclass(frozen=True)
class Fitted:
    """A fitted attack.

    Args:
        method: scores the target.
        control: scores the control encoder: the same, or one fitted on samples of that encoder; None: nothing does.
        samples: of the reference.
        anchors: further images that the reference is compared with: anchors or a population, by each of its encoders.
        seconds: of the fit.
        control_fault: why the attack cannot be fitted on the control encoder; else empty.
    """

    method: Attack
    control: Attack | None
    samples: int
    anchors: int
    seconds: float
    control_fault: str = ""


def divisible(config: RunConfig, task: Task) -> bool:
    """Whether an attack scores each sample by itself: not where it is fitted on that sample's own features."""
    several = task.attack.reference not in config.encoders and bool(config.shadows(task.attack))
    return config.fold == "all" and not several and task.attack.reference != AUDITED


def fit(config: RunConfig, task: Task, splits: Splits) -> Fitted:
    """Fit an attack; of a larger reference on `FITTED` samples of shards drawn at random.

    Raises:
        NotApplicable: the features carry nothing that the attack could read.
    """
    attack, seed = task.attack, task.folder.seed
    known = splits
    if attack.reference_count is None and divisible(config, task):
        roles = config.reference_roles(attack)
        asked = max(1, number_of(splits, roles, attack.count))
        known = splits.sampled(roles, FITTED * splits.count(roles) // asked, seed)
    reference = reference_of(config, task, known, attack.target)
    method = attack.method()(attack.parameters(), seed=seed)
    started = time.perf_counter()
    method.fit(reference)
    seconds = time.perf_counter() - started
    control: Attack | None = None
    fault = ""
    if task.control is not None and config.shadows(attack):
        control = method
    elif task.control is not None:
        control = attack.method()(attack.parameters(), seed=seed)
        try:
            control.fit(reference_of(config, task, known, task.control))
        except NotApplicable as error:
            control, fault = None, str(error)
    return Fitted(method, control, len(reference.features), _anchors(reference.features), seconds, fault)


@dataclass(frozen=True)
class Scored:
    """Scores of some samples.

    Args:
        table: see `pipelines.attack.scores`.
        spent: views that a stopping rule asked for; None: there is no rule.
        anchors: further images that the samples are compared with: anchors or a population.
        control_fault: why the control encoder is not scored; else empty.
    """

    table: pa.Table
    spent: int | None
    anchors: int
    control_fault: str = ""


def score(config: RunConfig, task: Task, splits: Splits, fitted: Fitted) -> Scored:
    """Score the audited samples of whole splits, or of some shards.

    Raises:
        NotApplicable: as `fit`.
    """
    evaluated = evaluated_of(config, task, splits)
    rows = splits.samples(evaluated.ids.tolist())
    columns: dict[str, Any] = {
        "id": evaluated.ids.tolist(),
        "member": having(rows, config.audited[:1]),
        "score": fitted.method.score(evaluated),
    }
    statistic = fitted.method.statistic(evaluated)
    if statistic is not None:
        columns["statistic"] = statistic
    fault = fitted.control_fault
    if fitted.control is not None and task.control is not None:
        try:
            beside = features_of(config, task, splits, task.control, config.audited)
            row_of = {name: row for row, name in enumerate(beside.ids)}
            same = np.array([row_of[name] for name in evaluated.ids])
            columns["control"] = fitted.control.score(beside.take(same))
        except NotApplicable as error:
            fault = str(error)
    groups = splits.groups_of(rows)
    columns |= {} if groups is None else {"group": groups}
    columns |= {"class": rows["label"], "item": rows["item"].cast(pa.string())}
    decided = evaluated.values.get(SEQUENTIAL)
    spent = None if decided is None else int(decided[:, 0].sum())
    return Scored(pa.table(columns), spent, _anchors(evaluated), fault)


def outline(
    config: RunConfig, task: Task, fitted: Fitted | None, scored: tuple[int, int | None, int]
) -> dict[str, Any]:
    """What the result of an attack says of it besides its scores.

    Args:
        fitted: None: it cannot be fitted.
        scored: the number of samples, and ``spent`` and ``anchors`` as in `Scored`.
    """
    attack, repeats = task.attack, config.queries.repeats
    method = attack.method()(attack.parameters(), seed=task.folder.seed)
    queries = method.queries_per_sample(attack.views or config.queries.views) * repeats
    samples, spent, anchors = scored
    of_samples = queries * samples if spent is None else spent * repeats
    each, audited = queries if method.populated else repeats, attack.reference == AUDITED
    beside = (anchors + method.bank_size) * each
    evaluation = of_samples + (beside if config.shadows(attack) or audited else 0)
    training = 0
    if fitted is not None and not audited:  # audited samples are queried once
        training = queries * fitted.samples + (fitted.anchors + method.bank_size) * each
    told: dict[str, float] = {"per_sample": queries, "attack_training": training, "evaluation": evaluation}
    if task.stopping is not None and samples:
        told["mean_per_sample"] = evaluation / samples
    return {
        "attack": attack.attack,
        "target": attack.target,
        "reference": attack.reference,
        "output": task.output,
        "epoch": task.epoch,
        "seed": task.folder.seed,
        "position": task.position,
        "parameters": asdict(attack.parameters()),
        "queries": told,
    }


def packed(method: Attack) -> bytes:
    """What a fit learned, as a file of arrays."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **cast(Any, method.state()))
    return buffer.getvalue()


def _anchors(features: Features) -> int:
    return sum(len(images) for images in (features.anchors, features.population) if images is not None)
