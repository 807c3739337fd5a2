"""The arrays that figures are drawn from and report.json does not hold."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mi_core.checks import ShapeError, check_finite, check_shape
from mi_core.records import BoolArray, FloatArray


@dataclass(frozen=True)
class AttackScores:
    """The scores of one attack on one seed's last checkpoint: what a ROC curve and a histogram are drawn from.

    Args:
        attack, target, output, seed: as in the attack's entry of report.json.
        reference: what the attack was fitted on: the name of the shadow encoder, or the entry's reference; and the
            entry's settings, where several entries differ by them only.
        score: (N,) float, higher = more likely a member.
        member: (N,) bool, the truth.
        threshold: the score from which on the attack says "member".
        statistic: (N,) the number that the attack reads, in its own unit, where it is one.

    Raises:
        ShapeError: scores and truth differ in length, or one class is empty.
        NumericError: a score is NaN or infinite.
    """

    attack: str
    target: str
    output: str
    reference: str
    seed: int
    score: FloatArray
    member: BoolArray
    threshold: float | None = None
    statistic: FloatArray | None = None

    def __post_init__(self) -> None:
        name = f"scores of {self.attack} on {self.target}, {self.output}, seed {self.seed}"
        (samples,) = check_shape(name, self.score, "N")
        check_shape(f"membership of the {name}", self.member, "N", N=samples)
        check_finite(name, self.score)
        if self.member.all() or not self.member.any():
            raise ShapeError(f"{name} need members and non-members, got {int(self.member.sum())} of {samples}")


@dataclass(frozen=True)
class LossCurve:
    """The pre-training loss (E,) of one encoder by epoch (E,)."""

    encoder: str
    seed: int
    epoch: FloatArray
    loss: FloatArray


@dataclass(frozen=True)
class EmbeddingMap:
    """Embeddings of N samples in the plane, with what the samples are.

    Args:
        target, output: whose embeddings; attribute: its name; names: of its values.
        points: (N, 2).
        task: (N,) class of the task, -1 where there is none; values: (N,) value of the attribute.
    """

    target: str
    output: str
    attribute: str
    points: FloatArray
    task: npt.NDArray[np.int64]
    values: npt.NDArray[np.int64]
    names: tuple[str, ...]


@dataclass(frozen=True)
class ViewGrid:
    """Some images (N, C, H, W) uint8, C 1 or 3, with their views (N, V, C, S, S)."""

    images: npt.NDArray[np.uint8]
    views: npt.NDArray[np.uint8]


@dataclass(frozen=True)
class FigureData:
    """All of them."""

    scores: tuple[AttackScores, ...] = ()
    losses: tuple[LossCurve, ...] = ()
    maps: tuple[EmbeddingMap, ...] = ()
    views: ViewGrid | None = None
