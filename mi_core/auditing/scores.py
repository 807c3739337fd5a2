"""Scores of the attack and of its checks, from what the encoders answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from mi_core.attacks.mean_cosine import MeanCosine
from mi_core.auditing.asking import Asked
from mi_core.auditing.reading import Samples
from mi_core.auditing.references import Reference
from mi_core.metrics.delong import auc
from mi_core.records import BoolArray, Estimate, Features, FloatArray, LabelledFeatures
from mi_core.validity.blind import blind_scores, semantic_scores, telling
from mi_core.validity.bound import auc_limits
from mi_core.validity.bursts import find_bursts
from mi_core.validity.file_features import FILE_FEATURES, pixel_names
from mi_core.validity.unseen import Calibration, Scale, mean_of_unseen
from mi_core.validity.verdict import Validity, judge

_Number = TypeVar("_Number", np.float64, np.int64)


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Scores of the J judged images.

    Args:
        member: (J,) which are candidates; seen: (J,) which the classifiers saw.
        score, statistic: (J,) of the attack on the target, and what it reads.
        threshold: of the attack; known: how many controls fixed it.
        blind: (J,) of the classifier that never asks an encoder.
        control: (J,) of the attack on the references; None: there are none. So are the next three.
        calibrated: (J,) of the attack without what the references explain.
        semantic: (J,) of the classifier on embeddings of the references.
        groups: (J,) numbers of bursts; None also where none were found.
        telling: features of files and pixels, with the AUC of each by itself.
    """

    member: BoolArray
    seen: BoolArray
    score: FloatArray
    statistic: FloatArray | None
    threshold: float
    known: int
    blind: FloatArray
    control: FloatArray | None = None
    calibrated: FloatArray | None = None
    semantic: FloatArray | None = None
    groups: npt.NDArray[np.int64] | None = None
    telling: Mapping[str, float]

    @property
    def limits(self) -> Estimate:
        """The AUC of the attack with two limits, on what the verdict rests on."""
        return auc_limits(self.score[self.seen], self.member[self.seen], self._seen_groups)

    @property
    def _seen_groups(self) -> npt.NDArray[np.int64] | None:
        return None if self.groups is None else self.groups[self.seen]

    def validity(self, *, trained: bool, works: bool, factor: float) -> Validity:
        """What the verdict rests on; the arguments are fields of it."""
        seen, groups = self.seen, self._seen_groups
        semantic = None if self.semantic is None else auc(self.semantic[seen], self.member[seen], groups)
        control = None if self.control is None else self.control[seen]
        settled = {"semantic_auc": semantic, "trained": trained, "works": works, "factor": factor}
        return judge(self.score[seen], self.blind[seen], control, self.member[seen], groups, **settled)


def scores_of(asked: Asked, beside: Sequence[Reference], samples: Samples, seen: BoolArray, seed: int) -> Scores:
    """Score the images that fixed no threshold.

    Args:
        asked: what the encoders answered about all N images.
        beside: the references.
        samples: the images.
        seen: (N,) which the classifiers see.
        seed: of the audit.
    """
    known, candidate = samples.known(seed), samples.candidate
    judged, features = ~known, asked.features["target"]
    member, summaries, hashes = candidate[seen], samples.summaries[seen], list(compress(samples.hashes, seen))

    def among_judged(values: npt.NDArray[_Number], absent: int = 0) -> npt.NDArray[_Number]:
        every = np.full(len(seen), absent, dtype=values.dtype)
        every[seen] = values
        return every[judged]

    attack = _fitted(features, known, seed)
    scores = attack.score(features)
    control = _beside(asked.features, beside, known, seed) if beside else None
    groups = find_bursts(asked.embeddings, member) if beside else None
    return Scores(
        member=candidate[judged],
        seen=seen[judged],
        score=scores[judged],
        statistic=attack.statistic(features.take(judged)),
        threshold=attack.threshold,
        known=int(known.sum()),
        blind=among_judged(blind_scores(summaries, asked.pixels, member, seed=seed)),
        control=None if control is None else control[judged],
        calibrated=None
        if control is None
        else Calibration.fit(scores[known], control[known])(scores[judged], control[judged]),
        semantic=among_judged(semantic_scores(asked.embeddings, member, hashes, seed=seed)) if beside else None,
        groups=None if groups is None else among_judged(groups, -1),
        telling=telling(summaries, (*FILE_FEATURES, *pixel_names(3)), member),
    )


def _fitted(features: Features, known: BoolArray, seed: int) -> MeanCosine:
    """The attack, fitted on the known controls."""
    method = MeanCosine(seed=seed)
    method.fit(LabelledFeatures(features.take(known), np.zeros(int(known.sum()), dtype=bool)))
    return method


def _beside(features: Mapping[str, Features], beside: Sequence[Reference], known: BoolArray, seed: int) -> FloatArray:
    """The mean score (N,) of every image over the references that did not see it, on one scale."""
    scores = [_fitted(features[mine.name], known, seed).score(features[mine.name]) for mine in beside]
    seen = [mine.seen for mine in beside]
    alone = len(beside) == 1
    scales = [Scale() if alone else Scale.fit(own[~mine & ~known]) for own, mine in zip(scores, seen, strict=True)]
    return mean_of_unseen(scores, seen, scales)
