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
from mi_core.features.sequential import SequentialSimilarity
from mi_core.records import BoolArray, Features
from mi_core.validity.unseen import Calibration, Scale, mean_of_unseen
from pipelines.attack.reference import names_of, reference_of
from pipelines.attack.results import Task
from pipelines.data.draw.first import number_of
from pipelines.data.draw.overlap import seen_by
from pipelines.data.draw.splits import Splits, in_roles
from pipelines.errors import UserError
from pipelines.extract.features import read
from pipelines.plan.items import Beside, Encoder, Judge

FITTED = 2_000_000  # samples of the reference that an attack is fitted on, at most
MOST_AUDITED = 2_000_000  # samples that an attack which is fitted on them takes
SCALED = 100_000  # audited samples from which the scale of a reference encoder's scores is known, about

_PLAIN = Scale()


@dataclass(frozen=True)
class FittedBeside:
    """An attack on one of the reference encoders.

    Args:
        item: the encoder, and what is read of it.
        method: scores it: that of the target, or one fitted on samples of this encoder.
        scale: of its scores, so that several encoders have one.
    """

    item: Beside
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
    beside: tuple[FittedBeside, ...]
    samples: int
    anchors: int
    seconds: float
    control_fault: str = ""
    calibration: Calibration | None = None


def divisible(judge: Judge) -> bool:
    """Tell whether an attack scores each sample by itself: not where it is fitted on that sample's own features."""
    fit = judge.score.fit
    return judge.fold == "all" and not fit.by_halves and not fit.audited


def fit(task: Task, splits: Splits) -> Fitted:
    """Fit an attack; of a larger reference on `FITTED` samples of shards drawn at random.

    Raises:
        NotApplicable: the features carry nothing that the attack could read.
        UserError: features are missing, or audited samples are too many for one process.
    """
    judge, attack = task.judge, task.judge.attack
    item, known = judge.score.fit, splits
    if item.audited:
        _check_size(judge, splits)
    if attack.reference_count is None and divisible(judge):
        roles = names_of(item.readings[0])
        asked = max(1, number_of(splits, roles, attack.count))
        known = splits.sampled(roles, FITTED * splits.count(roles) // asked, judge.seed)
    reference = reference_of(item, task.folder, known)
    method = attack.method()(attack.parameters(), seed=judge.seed)
    started = time.perf_counter()
    method.fit(reference)
    seconds = time.perf_counter() - started
    beside, fault = [], ""
    for other in judge.score.beside:
        try:
            beside.append(_fitted_beside(task, known, method, other))
        except NotApplicable as error:
            fault = str(error)
    if len(judge.score.beside) > 1:
        beside = [_on_one_scale(task, splits, fitted) for fitted in beside]
    plain = Fitted(method, tuple(beside), len(reference.features), _anchors(reference.features), seconds, fault)
    return replace(plain, calibration=_calibration(task, splits, plain))


def _check_size(judge: Judge, splits: Splits) -> None:
    attack = judge.attack
    asked = number_of(splits, names_of(judge.score.fit.readings[0]), attack.count)
    if asked > MOST_AUDITED:
        raise UserError(
            f"attacks.{judge.position}: {attack.attack} with reference = {attack.reference!r} takes {MOST_AUDITED:,} "
            f"audited samples at most, got {asked:,}; set its count, or fit it on an encoder"
        )


def _fitted_beside(task: Task, known: Splits, method: Attack, other: Beside) -> FittedBeside:
    """The attack on a reference encoder. Raises NotApplicable: as `fit`."""
    if other.fit is None:
        return FittedBeside(other, method)
    attack = task.judge.attack
    own = attack.method()(attack.parameters(), seed=task.judge.seed)
    own.fit(reference_of(other.fit, task.folder, known))
    return FittedBeside(other, own)


def _on_one_scale(task: Task, splits: Splits, fitted: FittedBeside) -> FittedBeside:
    """The same with the mean and spread of its scores of audited samples that the encoder did not see."""
    reading = fitted.item.reading
    some = splits.sampled(names_of(reading), SCALED, task.judge.seed)
    features = read(task.folder, reading, some)
    judged = ~_seen(splits, reading.encoder, features.ids)
    judged &= ~some.among(features.ids, [role.name for role in task.judge.score.reading.samples.without])
    return replace(fitted, scale=Scale.fit(fitted.method.score(features.take(judged))))


def _calibration(task: Task, splits: Splits, fitted: Fitted) -> Calibration | None:
    """How scores follow those on the reference encoders, by the known non-members, which are not judged."""
    reading = task.judge.score.calibration
    if reading is None or not fitted.beside:
        return None
    some = splits.sampled(names_of(reading), SCALED, task.judge.seed)
    features = read(task.folder, reading, some)
    try:
        beside = _beside(task, splits, fitted, features.ids, known=some)
    except NotApplicable:
        return None
    return Calibration.fit(fitted.method.score(features), beside)


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


def score(task: Task, splits: Splits, fitted: Fitted) -> Scored:
    """Score the audited samples of whole splits, or of some shards.

    Raises:
        NotApplicable: as `fit`.
    """
    evaluated = read(task.folder, task.judge.score.reading, splits)
    rows = splits.samples(evaluated.ids.tolist())
    columns: dict[str, Any] = {
        "id": evaluated.ids.tolist(),
        "member": in_roles(rows, [task.judge.audited[0].name]),
        "score": fitted.method.score(evaluated),
    }
    statistic = fitted.method.statistic(evaluated)
    if statistic is not None:
        columns["statistic"] = statistic
    fault = fitted.control_fault
    if fitted.beside:
        try:
            columns["control"] = _beside(task, splits, fitted, evaluated.ids)
            if fitted.calibration is not None:
                columns["calibrated"] = fitted.calibration(columns["score"], columns["control"])
        except NotApplicable as error:
            fault = str(error)
    groups = splits.groups_of(rows)
    columns |= {} if groups is None else {"group": groups}
    columns |= {"class": rows["label"], "item": rows["item"].cast(pa.string())}
    decided = evaluated.values.get(SequentialSimilarity().name)
    spent = None if decided is None else int(decided[:, 0].sum())
    return Scored(pa.table(columns), spent, _anchors(evaluated), fault)


def _beside(
    task: Task, splits: Splits, fitted: Fitted, ids: npt.NDArray[np.str_], known: Splits | None = None
) -> npt.NDArray[np.float64]:
    """The mean score (N,) of some samples over the reference encoders that did not see them.

    ``known``: shards that hold them, where they are samples that the attack on each reference is fitted on, too; None:
    they are audited.
    """
    scores, seen = [], []
    for other in fitted.beside:
        reading, fit_beside = other.item.reading, other.item.fit
        if known is not None and fit_beside is not None:
            reading = fit_beside.readings[0]
        scores.append(other.method.score(read(task.folder, reading, known or splits).at(ids.tolist())))
        seen.append(_seen(splits, reading.encoder, ids))
    return mean_of_unseen(scores, seen, [other.scale for other in fitted.beside])


def _seen(splits: Splits, encoder: Encoder, ids: npt.NDArray[np.str_]) -> BoolArray:
    return seen_by(splits, encoder.settings, encoder.seed, encoder.nonce, ids.tolist())


def described(task: Task, fitted: Fitted | None, scored: tuple[int, int | None, int]) -> dict[str, Any]:
    """The description of an attack in its result, besides its scores.

    Args:
        task: the attack.
        fitted: None: it cannot be fitted.
        scored: the number of samples, and ``spent`` and ``anchors`` as in `Scored`.
    """
    judge, attack, item = task.judge, task.judge.attack, task.judge.score.fit
    repeats, reading = judge.repeats, judge.score.reading
    method = attack.method()(attack.parameters(), seed=judge.seed)
    queries = method.queries_per_sample(reading.used) * repeats
    samples, spent, anchors = scored
    of_samples = queries * samples if spent is None else spent * repeats
    each = queries if method.populated else repeats
    beside = (anchors + method.bank_size) * each
    evaluation = of_samples + (beside if judge.has_shadow or item.audited else 0)
    training = 0
    if fitted is not None and not item.audited:  # audited samples are queried once
        training = queries * fitted.samples + (fitted.anchors + method.bank_size) * each
    told: dict[str, float] = {"per_sample": queries, "attack_training": training, "evaluation": evaluation}
    if reading.queries[0].stopping is not None and samples:
        told["mean_per_sample"] = evaluation / samples
    return {
        "attack": attack.attack,
        "target": attack.target,
        "reference": attack.reference,
        "output": judge.output,
        "epoch": judge.epoch,
        "seed": judge.seed,
        "position": judge.position,
        "parameters": asdict(attack.parameters()),
        "queries": told,
    }


def packed(method: Attack) -> bytes:
    """The learned state of a fit, as a file of arrays."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **cast(Any, method.state()))
    return buffer.getvalue()


def _anchors(features: Features) -> int:
    return sum(len(images) for images in (features.anchors, features.population) if images is not None)
