"""Scores of the attack and of its checks, from what the encoders answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import compress
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from mi_core.attacks.base import Attack, NotApplicable
from mi_core.auditing.asking import Asked
from mi_core.auditing.attacks import SHADOWS, AuditAttack, Rows
from mi_core.auditing.reading import Samples
from mi_core.auditing.references import Reference
from mi_core.metrics.delong import auc
from mi_core.records import BoolArray, Estimate, Features, FloatArray
from mi_core.validity.blind import blind_scores, semantic_scores, telling
from mi_core.validity.bound import auc_limits
from mi_core.validity.bursts import find_bursts
from mi_core.validity.file_features import FILE_FEATURES, pixel_names
from mi_core.validity.unseen import Calibration, Scale, mean_of_unseen
from mi_core.validity.verdict import Validity, judge

_Number = TypeVar("_Number", np.float64, np.int64)


@dataclass(frozen=True)
class JudgedScores:
    """Scores of the J images that one attack judges.

    Args:
        attack: that scored them.
        member: (J,) which are candidates; seen: (J,) which the classifiers saw.
        score: (J,) on the target.
        statistic: (J,) the one number that it reads; None: it reads several.
        threshold: from which on an image is called a member.
        control: (J,) on the references; None: there are none.
        groups: (J,) numbers of bursts; None: there are none.
    """

    attack: AuditAttack
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
    samples: Samples,
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
    rows = Rows(known, candidate)
    judged = attacks[0].judges(rows)
    member, summaries, hashes = candidate[seen], samples.summaries[seen], list(compress(samples.hashes, seen))

    def spread(values: npt.NDArray[_Number], absent: int = 0) -> npt.NDArray[_Number]:
        every = np.full(len(seen), absent, dtype=values.dtype)
        every[seen] = values
        return every

    bursts = find_bursts(asked.embeddings, member) if beside else None
    groups = None if bursts is None else spread(bursts, -1)
    first, *others = (_Scorer(attack, asked.features, beside, rows) for attack in attacks)
    found, faults = [first.scores(seen, groups)], {}
    for scorer in others:
        try:
            found.append(scorer.scores(seen, groups))
        except NotApplicable as error:
            faults[scorer.attack.name] = str(error)
    control = first.control
    return Scores(
        attacks=tuple(found),
        not_applicable=faults,
        known=int(known.sum()),
        blind=spread(blind_scores(summaries, asked.pixels, member, seed=seed))[judged],
        calibrated=None
        if control is None
        else Calibration.fit(first.target[known], control[known])(first.target[judged], control[judged]),
        semantic=spread(semantic_scores(asked.embeddings, member, hashes, seed=seed))[judged] if beside else None,
        telling=telling(summaries, (*FILE_FEATURES, *pixel_names(samples.decoder.channels)), member),
    )


@dataclass(frozen=True)
class _Scorer:
    """An attack on what the encoders answered about all N images."""

    attack: AuditAttack
    features: Mapping[str, Features]
    beside: Sequence[Reference]
    rows: Rows

    def scores(self, seen: BoolArray, groups: npt.NDArray[np.int64] | None) -> JudgedScores:
        """Those of the images that it judges; ``seen`` and ``groups`` are of all. Raises as `AuditAttack.fitted`."""
        judged, features, control = self.attack.judges(self.rows), self.features["target"], self.control
        return JudgedScores(
            attack=self.attack,
            member=self.rows.candidate[judged],
            seen=seen[judged],
            score=self.target[judged],
            statistic=self._fitted.statistic(features.take(judged)),
            threshold=self._fitted.threshold,
            control=None if control is None else control[judged],
            groups=None if groups is None else groups[judged],
        )

    @cached_property
    def _fitted(self) -> Attack:
        return self.attack.fitted("target", self.features, self.rows, self.beside)

    @cached_property
    def target(self) -> FloatArray:
        """(N,) on the target."""
        return self._fitted.score(self.features["target"])

    @cached_property
    def control(self) -> FloatArray | None:
        """(N,) the mean score over the references that did not see an image, on one scale; None: there are none."""
        if not self.beside:
            return None
        scores = [self._beside(one.name).score(self.features[one.name]) for one in self.beside]
        seen, alone, judged = [one.seen for one in self.beside], len(self.beside) == 1, self.attack.judges(self.rows)
        scales = [Scale() if alone else Scale.fit(own[~mine & judged]) for own, mine in zip(scores, seen, strict=True)]
        return mean_of_unseen(scores, seen, scales)

    def _beside(self, name: str) -> Attack:
        """The attack on a reference; one that is fitted on the references is the same for all encoders."""
        if self.attack.reference == SHADOWS:
            return self._fitted
        return self.attack.fitted(name, self.features, self.rows, self.beside)
