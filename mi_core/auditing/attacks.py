"""The attacks of an audit, mean-cosine, on which the verdict rests, and those that the user adds; and their scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import compress
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from mi_core.attacks import ATTACKS
from mi_core.attacks.base import Attack, NotApplicable
from mi_core.attacks.mean_cosine import MeanCosine
from mi_core.attacks.shadows import join_shadows
from mi_core.auditing.config_text import FAMILY, MISSING
from mi_core.auditing.models import Reference
from mi_core.auditing.questions import plain_value
from mi_core.auditing.reading import AuditedImages
from mi_core.checks import ConfigError, check_choice
from mi_core.features import Measure
from mi_core.metrics.delong import auc, auc_difference
from mi_core.records import BoolArray, Estimate, Features, FloatArray, LabelledFeatures
from mi_core.validity.blind import blind_scores, semantic_scores, telling
from mi_core.validity.bound import auc_limits
from mi_core.validity.bursts import find_bursts
from mi_core.validity.file_features import FILE_FEATURES, pixel_names
from mi_core.validity.unseen import Calibration, Scale, mean_of_unseen
from mi_core.validity.verdict import Validity, judge

AUDITED, NONMEMBERS, SHADOWS = "audited", "nonmembers", "shadows"
_FITTED_ON = (NONMEMBERS, AUDITED, SHADOWS)  # the first that an attack can be fitted on is taken
_Number = TypeVar("_Number", np.float64, np.int64)


@dataclass(frozen=True)
class AuditAttack:
    """An attack of an audit.

    Args:
        method: not fitted.
        reference: ``nonmembers`` (the controls that fix the threshold), ``audited`` (all images), or
            ``shadows`` (the references that are trained here on halves of the images).
        given: parameters that the user gave, by name.
    """

    method: Attack
    reference: str
    given: Mapping[str, Any]

    def settings(self) -> dict[str, Any]:
        """The attack as a config has it."""
        kind, reference = type(self.method), FAMILY if self.reference == SHADOWS else self.reference
        named: dict[str, Any] = {"attack": kind.name}
        if ATTACKS.get(kind.name) is not kind:
            module = MISSING if kind.__module__ == "__main__" else kind.__module__
            named = {"attack": f"python:{module}:{kind.__qualname__}", "trust_code": True}
        return named | {"target": "target", "reference": reference, **self.given}


def needs_of(attacks: Sequence[AuditAttack]) -> tuple[Measure, ...]:
    """All features that some attacks read, each once."""
    return tuple(dict.fromkeys(need for one in attacks for need in one.method.needs))


def attacks_of(given: Any, *, seed: int, output: str, no_shadows: str) -> tuple[AuditAttack, ...]:
    """Mean-cosine, and the attacks that the user adds.

    Args:
        given: names of attacks, dictionaries with such a name under ``attack`` and parameters beside it, classes, or
            instances.
        seed: of everything random in their fits.
        output: that is attacked.
        no_shadows: what to do so that references are trained here by the target's framework; empty: they are.

    Raises:
        ConfigError: no such attack or parameter, an attack stands twice, or it needs what an audit of images in Python
            does not have; the message names the attack and the remedy.
    """
    if not isinstance(given, list | tuple):
        raise ConfigError(f"attacks = {given!r}; give a list, such as ['lira']")
    chosen = [AuditAttack(MeanCosine(seed=seed), NONMEMBERS, {})]
    for one in given:
        attack = _read(one, seed, no_shadows)
        name = attack.method.name
        if any(name == other.method.name for other in chosen):
            raise ConfigError(f"attacks: {name} stands twice, or is that of the verdict; leave it out")
        if lack := _lack(attack.method, output):
            raise ConfigError(f"attacks: {name} {lack}; leave it out here, and run it from a config")
        chosen.append(attack)
    return tuple(chosen)


def _read(given: Any, seed: int, no_shadows: str) -> AuditAttack:
    parameters: dict[str, Any] = {}
    if isinstance(given, Attack):
        method, wanted = type(given)(given.parameters, seed=seed), None
        for one in fields(given.parameters):
            value = plain_value(f"{given.name}.{one.name}", getattr(given.parameters, one.name))
            parameters |= {} if value == one.default else {one.name: value}
    else:
        entry = dict(given) if isinstance(given, Mapping) else {"attack": given}
        kind, wanted = entry.pop("attack", None), entry.pop("reference", None)
        if not (isinstance(kind, type) and issubclass(kind, Attack)):
            if not isinstance(kind, str):
                raise ConfigError(f"attacks: {given!r} is no attack; give a name, a class of Attack, or a dictionary")
            kind = ATTACKS[check_choice("attacks", kind, ATTACKS)]
        for name in entry:
            check_choice(f"attacks: parameter of {kind.name}", name, [one.name for one in fields(kind.Parameters)])
        parameters, method = entry, kind(kind.Parameters(**entry), seed=seed)
    possible = [one for one in _FITTED_ON if one in method.reference and not (no_shadows and one == SHADOWS)]
    if not possible:
        needed = " or ".join(sorted(method.reference))
        remedy = no_shadows if SHADOWS in method.reference else ""
        raise ConfigError(
            f"attacks: {method.name} is fitted on {needed}, which this audit does not have; "
            f"{remedy or 'run it from a config'}"
        )
    reference = possible[0] if wanted is None else check_choice(f"reference of {method.name}", wanted, possible)
    return AuditAttack(method, reference, plain_value(method.name, parameters))


def _lack(method: Attack, output: str) -> str:
    """What an attack takes that is not at hand; empty: nothing."""
    takes = {
        f"reads {' or '.join(method.outputs or ())}, not {output}": method.outputs and output not in method.outputs,
        "reads captions": any(need.captions for need in method.needs),
        "needs the classes of the images": method.labelled,
        "needs further images": method.populated or method.anchored or method.bank_size,
        "needs an earlier version of the encoder": method.updated,
    }
    return next((words for words, taken in takes.items() if taken), "")


@dataclass(frozen=True)
class Asked:
    """What the encoders answer, and what the classifiers see of M of the N images.

    Args:
        features: by encoder, of all N images: what the attacks read.
        pixels: (M, P) float32, the shrunken images.
        embeddings: (M, D) float32 by all references, side by side; D = 0 without references.
    """

    features: dict[str, Features]
    pixels: np.ndarray
    embeddings: np.ndarray


@dataclass(frozen=True)
class JudgedScores:
    """Scores of the J images that one attack judges.

    Args:
        attack: that scored them.
        judged: (N,) which of all images these are.
        member: (J,) which are candidates; seen: (J,) which the classifiers saw.
        score: (J,) on the target.
        statistic: (J,) the one number that it reads; None: it reads several.
        threshold: from which on an image is called a member.
        control: (J,) on the references; None: there are none.
        groups: (J,) numbers of bursts; None: there are none.
    """

    attack: AuditAttack
    judged: BoolArray
    member: BoolArray
    seen: BoolArray
    score: FloatArray
    statistic: FloatArray | None
    threshold: float
    control: FloatArray | None
    groups: npt.NDArray[np.int64] | None

    @property
    def limits(self) -> Estimate:
        """The AUC with two limits, on images that the classifiers saw."""
        groups = None if self.groups is None else self.groups[self.seen]
        return auc_limits(self.score[self.seen], self.member[self.seen], groups)

    def difference_from(self, first: JudgedScores) -> Estimate:
        """Its AUC minus that of the attack of the verdict, paired over the images that both judge."""
        mine, theirs = (np.flatnonzero(one.judged)[one.seen] for one in (self, first))
        _, here, there = np.intersect1d(mine, theirs, assume_unique=True, return_indices=True)
        groups = None if self.groups is None else self.groups[self.seen][here]
        scores = self.score[self.seen][here], first.score[first.seen][there]
        return auc_difference(*scores, self.member[self.seen][here], groups)

    def validity(self, blind: FloatArray | None = None, semantic: FloatArray | None = None, **settled: Any) -> Validity:
        """What a verdict on it rests on; ``blind`` and ``semantic`` as in `Scores`, other arguments are its fields."""
        seen, member = self.seen, self.member[self.seen]
        blind, semantic, control = (None if every is None else every[seen] for every in (blind, semantic, self.control))
        groups = None if self.groups is None else self.groups[seen]
        semantic_auc = None if semantic is None else auc(semantic, member, groups)
        return judge(self.score[seen], blind, control, member, groups, semantic_auc=semantic_auc, **settled)


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Scores of the images of an audit; J are judged by the attack of the verdict.

    Args:
        attacks: what each gave; the first is that of the verdict.
        not_applicable: why others found nothing to read, by name.
        known: how many controls fixed thresholds.
        blind: (J,) of the classifier that never asks an encoder.
        calibrated: (J,) of the first attack without what the references explain; None: there are none. So are the next.
        semantic: (J,) of the classifier on embeddings of the references.
        telling: features of files and pixels, with the AUC of each by itself.
    """

    attacks: tuple[JudgedScores, ...]
    not_applicable: Mapping[str, str]
    known: int
    blind: FloatArray
    calibrated: FloatArray | None = None
    semantic: FloatArray | None = None
    telling: Mapping[str, float]

    @property
    def first(self) -> JudgedScores:
        """Those of the attack of the verdict."""
        return self.attacks[0]


def scores_of(
    attacks: Sequence[AuditAttack],
    asked: Asked,
    beside: Sequence[Reference],
    samples: AuditedImages,
    seen: BoolArray,
    seed: int,
) -> Scores:
    """Score the images that fixed no threshold.

    Args:
        attacks: the first is that of the verdict.
        asked: what the encoders answered about all N images.
        beside: the references.
        samples: the images.
        seen: (N,) which the classifiers see.
        seed: of the audit.
    """
    known, candidate = samples.known(seed), samples.candidate
    member, summaries, hashes = candidate[seen], samples.summaries[seen], list(compress(samples.hashes, seen))

    def spread(values: npt.NDArray[_Number], absent: int = 0) -> npt.NDArray[_Number]:
        every = np.full(len(seen), absent, dtype=values.dtype)
        every[seen] = values
        return every

    bursts = find_bursts(asked.embeddings, member) if beside else None
    groups = None if bursts is None else spread(bursts, -1)
    first, *others = (_Scorer(attack, asked.features, beside, known, candidate) for attack in attacks)
    found, faults = [first.scores(seen, groups)], {}
    for scorer in others:
        try:
            found.append(scorer.scores(seen, groups))
        except NotApplicable as error:
            faults[scorer.attack.method.name] = str(error)
    control, judged, calibrated = first.control, first.judged, None
    if control is not None:
        calibrated = Calibration.fit(first.target[known], control[known])(first.target[judged], control[judged])
    return Scores(
        attacks=tuple(found),
        not_applicable=faults,
        known=int(known.sum()),
        blind=spread(blind_scores(summaries, asked.pixels, member, seed=seed))[judged],
        calibrated=calibrated,
        semantic=spread(semantic_scores(asked.embeddings, member, hashes, seed=seed))[judged] if beside else None,
        telling=telling(summaries, (*FILE_FEATURES, *pixel_names(samples.decoder.channels)), member),
    )


@dataclass(frozen=True)
class _Scorer:
    """An attack on what the encoders answered about all N images: ``known`` (N,) are controls that fix thresholds."""

    attack: AuditAttack
    features: Mapping[str, Features]
    beside: Sequence[Reference]
    known: BoolArray
    candidate: BoolArray

    @property
    def judged(self) -> BoolArray:
        """(N,) the images that it judges: all but those that fix its threshold."""
        return ~self.known if self.attack.reference == NONMEMBERS else np.ones_like(self.known)

    def scores(self, seen: BoolArray, groups: npt.NDArray[np.int64] | None) -> JudgedScores:
        """Those of the images that it judges; ``seen`` and ``groups`` are of all. Raises as `_fit`."""
        judged, features, control = self.judged, self.features["target"], self.control
        return JudgedScores(
            attack=self.attack,
            judged=judged,
            member=self.candidate[judged],
            seen=seen[judged],
            score=self.target[judged],
            statistic=self._fitted.statistic(features.take(judged)),
            threshold=self._fitted.threshold,
            control=None if control is None else control[judged],
            groups=None if groups is None else groups[judged],
        )

    @cached_property
    def target(self) -> FloatArray:
        """(N,) on the target."""
        return self._fitted.score(self.features["target"])

    @cached_property
    def control(self) -> FloatArray | None:
        """(N,) the mean score over the references that did not see an image, on one scale; None: there are none."""
        if not self.beside:
            return None
        by_shadows = self.attack.reference == SHADOWS  # the same for all encoders
        methods = {one.name: self._fitted if by_shadows else self._fit(one.name) for one in self.beside}
        scores = [method.score(self.features[name]) for name, method in methods.items()]
        seen, alone = [one.seen for one in self.beside], len(self.beside) == 1
        scales = [
            Scale() if alone else Scale.fit(own[~mine & self.judged]) for own, mine in zip(scores, seen, strict=True)
        ]
        return mean_of_unseen(scores, seen, scales)

    @cached_property
    def _fitted(self) -> Attack:
        return self._fit("target")

    def _fit(self, name: str) -> Attack:
        """The attack, fitted to score an encoder.

        Raises:
            NotApplicable: the features carry nothing to fit.
            ShapeError: there are too few images to learn from.
        """
        given, features = self.attack.method, self.features[name]
        method = type(given)(given.parameters, seed=given.seed)
        if self.attack.reference == SHADOWS:
            joined = join_shadows({one.name: method.condensed(self.features[one.name]) for one in self.beside})
            method.fit(LabelledFeatures(joined, np.concatenate([one.seen for one in self.beside])))
        elif self.attack.reference == AUDITED:
            method.fit(LabelledFeatures(features, self.candidate, audited=True))
        else:
            known = features.take(self.known)
            method.fit(LabelledFeatures(known, np.zeros(len(known), dtype=bool)))
        return method
