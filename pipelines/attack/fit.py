"""Fit an attack on samples whose membership is known, and score those of the target and of the references with it."""

from __future__ import annotations

import io
import time
from dataclasses import asdict, dataclass, field, replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mi_core.attacks.base import Attack, NotApplicable
from mi_core.attacks.shadows import join_shadows
from mi_core.records import BoolArray, Features, LabelledFeatures, among
from mi_core.report.model.attacks import AttackQueries
from mi_core.validity.unseen import Calibration, Scale, mean_of_unseen
from pipelines.attack.results import Result, Task
from pipelines.config.sections.encoders import TrainedConfig
from pipelines.data.draw.parts import members_of, number_of, seen_by
from pipelines.data.draw.splits import Splits, in_roles
from pipelines.errors import UserError
from pipelines.extract.features import read
from pipelines.plan.items import Beside, Encoder, Fit, Judge, Reading
from pipelines.run.folder import SeedFolder

FITTED = 2_000_000  # samples of the reference that an attack is fitted on, at most
MOST_AUDITED = 2_000_000  # samples that an attack which is fitted on them takes
SCALED = 100_000  # audited samples from which the scale of a reference encoder's scores is known, about


def names_of(reading: Reading) -> list[str]:
    """The names of the roles of a reading."""
    return [role.name for role in reading.samples.roles]


def _unfitted(fit: Fit) -> Attack:
    return fit.attack.method()(fit.attack.parameters(), seed=fit.seed)


def _reference(fit: Fit, folder: SeedFolder, splits: Splits) -> LabelledFeatures:
    """What an attack is fitted on: features of samples whose membership is known, of whole splits or of some shards."""
    if fit.by_halves:
        return _halves(fit, folder, splits)
    (reading,) = fit.readings
    features = read(folder, reading, splits)
    member = splits.among(features.ids, [role.name for role in fit.known_members])
    if fit.audited:
        return LabelledFeatures(features, member, audited=True, groups=splits.groups(features.ids.tolist()))
    if fit.attack.reference_count is not None:
        rows = among(features.ids, set(splits.first(names_of(reading), fit.attack.reference_count, fit.seed)))
        features, member = features.take(rows), member[rows]
    return LabelledFeatures(features, member)


def _halves(fit: Fit, folder: SeedFolder, splits: Splits) -> LabelledFeatures:
    """Features of the audited samples from several shadow encoders; members are the training samples of each."""
    method, by_shadow, members = _unfitted(fit), {}, []
    for reading in fit.readings:
        shadow, settings = reading.encoder, cast(TrainedConfig, reading.encoder.settings)
        features = by_shadow[shadow.name] = method.condensed(read(folder, reading, splits))
        members.append(members_of(splits, settings, fit.seed, shadow.nonce).among(features.ids, settings.train_on))
    return LabelledFeatures(join_shadows(by_shadow), np.concatenate(members))


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
    scale: Scale = field(default_factory=Scale)


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
    judge, attack, item, known = task.judge, task.judge.attack, task.judge.score.fit, splits
    roles = names_of(item.readings[0])
    asked = number_of(splits, roles, attack.count)
    if item.audited and asked > MOST_AUDITED:
        raise UserError(
            f"attacks.{judge.position}: {attack.attack} with reference = {attack.reference!r} takes {MOST_AUDITED:,} "
            f"audited samples at most, got {asked:,}; set its count, or fit it on an encoder"
        )
    if attack.reference_count is None and divisible(judge):
        known = splits.sampled(roles, FITTED * splits.count(roles) // max(1, asked), judge.seed)
    reference, method = _reference(item, task.folder, known), _unfitted(item)
    started = time.perf_counter()
    method.fit(reference)
    seconds = time.perf_counter() - started
    beside, fault = [], ""
    for other in judge.score.beside:
        own = method
        try:
            if other.fit is not None:
                own = _unfitted(other.fit)
                own.fit(_reference(other.fit, task.folder, known))
            beside.append(FittedBeside(other, own))
        except NotApplicable as error:
            fault = str(error)
    if len(judge.score.beside) > 1:
        beside = [replace(fitted, scale=_scale(task, splits, fitted)) for fitted in beside]
    plain = Fitted(method, tuple(beside), len(reference.features), _anchors(reference.features), seconds, fault)
    return replace(plain, calibration=_calibration(task, splits, plain))


def _scale(task: Task, splits: Splits, fitted: FittedBeside) -> Scale:
    """The mean and spread of the scores of audited samples that a reference encoder did not see."""
    reading = fitted.item.reading
    some = splits.sampled(names_of(reading), SCALED, task.judge.seed)
    features = read(task.folder, reading, some)
    judged = ~_seen(splits, reading.encoder, features.ids)
    judged &= ~some.among(features.ids, [role.name for role in task.judge.score.reading.samples.without])
    return Scale.fit(fitted.method.score(features.take(judged)))


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
    """What scoring some samples took, beside their table.

    Args:
        samples: that were scored.
        anchors: further images that the samples are compared with: anchors or a population.
        control_fault: why no reference encoder is scored; else empty.
        fault: why the attack does not apply; else empty.
    """

    samples: int = 0
    anchors: int = 0
    control_fault: str = ""
    fault: str = ""


def score(task: Task, splits: Splits, fitted: Fitted) -> tuple[pa.Table, Scored]:
    """Score the audited samples of whole splits, or of some shards: a table as `pipelines.attack.scores` has it.

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
    return pa.table(columns), Scored(len(evaluated), _anchors(evaluated), fault)


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


def describe(task: Task, fitted: Fitted | None, scored: Scored) -> Result:
    """The description of an attack in its result, besides its scores.

    Args:
        task: the attack.
        fitted: None: it cannot be fitted.
        scored: all samples together.
    """
    judge, attack, item, reading = task.judge, task.judge.attack, task.judge.score.fit, task.judge.score.reading
    method = _unfitted(item)
    queries = method.queries_per_sample(reading.used) * judge.repeats
    each = queries if method.populated else judge.repeats
    beside = (scored.anchors + method.bank_size) * each
    has_shadow = item.readings[0].encoder != judge.target
    evaluation = queries * scored.samples + (beside if has_shadow or item.audited else 0)
    training = 0
    if fitted is not None and not item.audited:  # audited samples are queried once
        training = queries * fitted.samples + (fitted.anchors + method.bank_size) * each
    return Result(
        attack=attack.attack,
        target=attack.target,
        reference=attack.reference,
        output=judge.output,
        epoch=judge.epoch,
        seed=judge.seed,
        position=judge.position,
        parameters=asdict(attack.parameters()),
        queries=AttackQueries(per_sample=queries, attack_training=training, evaluation=evaluation),
    )


def state_bytes(method: Attack) -> bytes:
    """The learned state of a fit, as a file of arrays."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **cast(Any, method.state()))
    return buffer.getvalue()


def _anchors(features: Features) -> int:
    return sum(len(images) for images in (features.anchors, features.population) if images is not None)
