"""Did an encoder forget some images? Its AUC before and after, against that of an encoder that never saw them.

Machine unlearning claims that an encoder behaves as if it had been trained without some images. An attack tells these
images from controls, on the encoder before, on the encoder after, and on one that never saw them: best one that was
trained anew without them. On that one the attack is at chance, but for differences between the two groups of images.

What the attack knew before is ``known`` = AUC before - AUC unseen; what is left is ``left`` = AUC after - AUC unseen,
on the same images, in pairs. The share that is left is left / known. Its upper bound is the smallest share r for which
the interval of after - r before - (1 - r) unseen lies below 0 (Fieller, "Some problems in interval estimation", Journal
of the Royal Statistical Society B, 1954). The bound tells the power, too: few images leave it high.

Rule, in this order: ``not-forgotten`` if the encoder after still leaks by the rule of `mi_core.validity.verdict` (the
lower bounds of ``left`` and of after - blind are above 0); ``cannot-tell`` if the attack did not find the images before
(the lower bound of ``known`` is not above 0); ``forgotten`` if at most a quarter is left; else ``cannot-tell``. So an
encoder may have ``forgotten`` although something is surely left (the lower bound of ``left`` is above 0); the words of
the report then say so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from mi_core.checks import check_range
from mi_core.metrics.delong import auc, auc_contrasts
from mi_core.metrics.pooled import pool
from mi_core.records import BoolArray, Estimate, FloatArray

TOLERANCE = 0.25  # share of what the attack knew before that may be left
_STEPS = 100  # of the share that is left


@dataclass(frozen=True)
class Scored:
    """Scores of one seed: (N,) each, of the same samples in the same order, higher = more likely a member.

    Args:
        before, after: of the attack on the encoder before and after.
        unseen: of the attack on an encoder that never saw the images.
        blind: of the blind classifier.
        member: whether a sample is one of the images to be forgotten; else it is a control.
        groups: numbers of what the samples belong to; None: all are independent.
    """

    before: FloatArray
    after: FloatArray
    unseen: FloatArray
    blind: FloatArray
    member: BoolArray
    groups: npt.NDArray[np.int64] | None = None


@dataclass(frozen=True)
class Forgetting:
    """Whether images were forgotten, and the AUCs and differences that this rests on.

    Args:
        before_auc, after_auc, unseen_auc, blind_auc: of the attack on three encoders, and of the blind classifier.
        known: before minus unseen.
        left: after minus unseen.
        removed: before minus after.
        left_blind: after minus blind.
        left_at_most: upper bound of the share of ``known`` that is left, in steps of .01, at 97.5 % confidence; None:
            all of it may be left, or more.
        tolerance: the share from which on images do not count as forgotten.
    """

    before_auc: Estimate
    after_auc: Estimate
    unseen_auc: Estimate
    blind_auc: Estimate
    known: Estimate
    left: Estimate
    removed: Estimate
    left_blind: Estimate
    left_at_most: float | None
    tolerance: float

    @property
    def verdict(self) -> str:
        """``forgotten``, ``not-forgotten`` or ``cannot-tell``, by the rule of this module."""
        if self.left.low > 0 and self.left_blind.low > 0:
            return "not-forgotten"
        if self.known.low <= 0 or self.left_at_most is None or self.left_at_most > self.tolerance:
            return "cannot-tell"
        return "forgotten"

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Forgetting:
        """What `as_json` wrote."""
        plain = ("left_at_most", "tolerance")
        values: dict[str, Any] = {
            field.name: entry[field.name] if field.name in plain else Estimate.from_json(entry[field.name])
            for field in fields(cls)
        }
        return cls(**values)

    def as_json(self) -> dict[str, Any]:
        """Verdict, estimates and the bound as JSON values."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        told = {name: one.as_json() if isinstance(one, Estimate) else one for name, one in values.items()}
        return {"verdict": self.verdict, **told}


def forgetting(seeds: Sequence[Scored], *, overlap: float = 0.0, tolerance: float = TOLERANCE) -> Forgetting:
    """Judge whether images were forgotten, from one or more seeds.

    Args:
        seeds: at least one.
        overlap: share of a seed's samples that another seed has too, as `mi_core.metrics.pooled.pool`.
        tolerance: share of what the attack knew before that may be left, in (0, 1].

    Raises:
        ConfigError: tolerance is out of range, or ``member`` is not boolean.
        ShapeError: no seed, scores of different lengths, or fewer than 2 samples of a kind.
        NumericError: a score is NaN or infinite.
    """
    check_range("tolerance", tolerance, 0, 1, open_low=True)
    shares = np.arange(_STEPS + 1) / _STEPS
    left_of = [[-share, 1.0, share - 1, 0.0] for share in shares.tolist()]
    wanted = [[1.0, 0.0, -1.0, 0.0], [0.0, 1.0, -1.0, 0.0], [1.0, -1.0, 0.0, 0.0], [0.0, 1.0, 0.0, -1.0], *left_of]
    paired, alone = [], []
    for one in seeds:
        scores = (one.before, one.after, one.unseen, one.blind)
        paired.append(auc_contrasts(scores, wanted, one.member, one.groups))
        alone.append([auc(own, one.member, one.groups) for own in scores])
    known, left, removed, left_blind, *beyond = (
        pool(of_seeds, overlap=overlap) for of_seeds in zip(*paired, strict=True)
    )
    before, after, unseen, blind = (pool(of_seeds, overlap=overlap) for of_seeds in zip(*alone, strict=True))
    most = None
    for share, bound in zip(shares[::-1].tolist(), beyond[::-1], strict=True):
        if bound.high >= 0:
            break
        most = share
    return Forgetting(before, after, unseen, blind, known, left, removed, left_blind, most, tolerance)
