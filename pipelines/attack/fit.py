"""Fit an attack on its reference, and score samples of the target and of the reference encoders with it."""

from __future__ import annotations

import io
import time
from dataclasses import asdict, dataclass, replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mi_core.attacks.base import Attack, NotApplicable
from mi_core.records import BoolArray, Features
from mi_core.validity.unseen import Calibration, Scale, mean_of_unseen
from mi_core.validity.verdict import LOT
from pipelines.attack.tasks import Task, evaluated_of, features_of, reference_of
from pipelines.config.demands import SEQUENTIAL
from pipelines.config.roles import POPULATION_ROLE
from pipelines.config.run_config import RunConfig
from pipelines.config.sections.attacks import AUDITED
from pipelines.data.draw.first import number_of
from pipelines.data.draw.halves import seen_by
from pipelines.data.draw.splits import Splits, having

FITTED = 2_000_000  # samples of the reference that an attack is fitted on, at most
SCALED = 100_000  # audited samples from which the scale of a reference encoder's scores is known, about

_PLAIN = Scale()


@dataclass(frozen=True)
class Beside:
    """An attack on one of the reference encoders.

    Args:
        encoder: its name.
        method: scores it: that of the target, or one fitted on samples of this encoder.
        scale: of its scores, so that several encoders have one.
    """

    encoder: str
    method: Attack
    scale: Scale = _PLAIN


@dataclass(frozen=True)
class Fitted:
    """A fitted attack.

    Args:
        method: scores the target.
        beside: the same on the reference encoders.
        samples: of what it is fitted on.
        anchors: further images that these are compared with: anchors or a population, by each of its encoders.
        seconds: of the fit.
        control_fault: why the attack cannot be fitted on a reference encoder; else empty.
        calibration: of scores by those on the reference encoders; None: by lot, or no image is known to be unused.
    """

    method: Attack
    beside: tuple[Beside, ...]
    samples: int
    anchors: int
    seconds: float
    control_fault: str = ""
    calibration: Calibration | None = None


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
    beside, fault = [], ""
    for name in task.references:
        try:
            beside.append(_fitted_beside(config, task, known, method, name))
        except NotApplicable as error:
            fault = str(error)
    if len(task.references) > 1:
        beside = [_on_one_scale(config, task, splits, one) for one in beside]
    found = Fitted(method, tuple(beside), len(reference.features), _anchors(reference.features), seconds, fault)
    return replace(found, calibration=_calibration(config, task, splits, found))


def _fitted_beside(config: RunConfig, task: Task, known: Splits, method: Attack, name: str) -> Beside:
    """The attack on a reference encoder. Raises NotApplicable: as `fit`."""
    attack = task.attack
    if config.shadows(attack):
        return Beside(name, method)
    own = attack.method()(attack.parameters(), seed=task.folder.seed)
    own.fit(reference_of(config, task, known, name))
    return Beside(name, own)


def _on_one_scale(config: RunConfig, task: Task, splits: Splits, one: Beside) -> Beside:
    """The same with the mean and spread of its scores of audited samples that the encoder did not see."""
    some = splits.sampled(config.audited, SCALED, task.folder.seed)
    features = features_of(config, task, some, one.encoder, config.audited)
    judged = ~_seen(config, task, splits, one.encoder, features.ids)
    judged &= ~some.among(features.ids, config.fitted_on_target(task.attack))
    scores = one.method.score(features.take(judged))
    return replace(one, scale=Scale.of(scores))


def _calibration(config: RunConfig, task: Task, splits: Splits, fitted: Fitted) -> Calibration | None:
    """How scores follow those on the reference encoders, by the known non-members, which are not judged."""
    known = (POPULATION_ROLE,)
    if config.by == LOT or not fitted.beside or known[0] not in config.fitted_on_target(task.attack):
        return None
    some = splits.sampled(known, SCALED, task.folder.seed)
    features = features_of(config, task, some, task.attack.target, known)
    try:
        beside = _beside(config, task, splits, fitted, features.ids, some)
    except NotApplicable:
        return None
    return Calibration.of(fitted.method.score(features), beside)


@dataclass(frozen=True)
class Scored:
    """Scores of some samples.

    Args:
        table: see `pipelines.attack.scores`.
        spent: views that a stopping rule asked for; None: there is no rule.
        anchors: further images that the samples are compared with: anchors or a population.
        control_fault: why no reference encoder is scored; else empty.
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
    if fitted.beside:
        try:
            columns["control"] = _beside(config, task, splits, fitted, evaluated.ids)
            if fitted.calibration is not None:
                columns["calibrated"] = fitted.calibration(columns["score"], columns["control"])
        except NotApplicable as error:
            fault = str(error)
    groups = splits.groups_of(rows)
    columns |= {} if groups is None else {"group": groups}
    columns |= {"class": rows["label"], "item": rows["item"].cast(pa.string())}
    spent = int(evaluated[SEQUENTIAL][:, 0].sum()) if SEQUENTIAL in evaluated else None
    return Scored(pa.table(columns), spent, _anchors(evaluated), fault)


def _beside(
    config: RunConfig,
    task: Task,
    splits: Splits,
    fitted: Fitted,
    ids: npt.NDArray[np.str_],
    some: Splits | None = None,
) -> npt.NDArray[np.float64]:
    """The mean score (N,) of some samples over the reference encoders that did not see them.

    ``some``: shards that hold them; None: those of ``splits``.
    """
    scores = [
        one.method.score(features_of(config, task, some or splits, one.encoder, config.audited).at(ids.tolist()))
        for one in fitted.beside
    ]
    seen = [_seen(config, task, splits, one.encoder, ids) for one in fitted.beside]
    return mean_of_unseen(scores, seen, [one.scale for one in fitted.beside])


def _seen(config: RunConfig, task: Task, splits: Splits, name: str, ids: npt.NDArray[np.str_]) -> BoolArray:
    return seen_by(splits, config.encoders[name], task.folder.seed, config.queries.nonce, ids.tolist())


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
