"""How alike the views of an image are that were asked for until it was decided, and the rule that decides.

N samples, V views at most. After k = 2, 3, ... views the statistic is the mean of -log(1 - cosine) over their pairs:
the logarithm of the cosine distance spreads out the similarities near 1, where those of members lie, and one view that
looks like no other weighs less than in a mean of cosines. A rule holds an interval per number of views; an image whose
statistic lies inside is undecided and is asked for one more view, up to V.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from mi_core.checks import ShapeError
from mi_core.features.measure import Measure, Oracle
from mi_core.features.pairwise_similarity import pairs_within

FIRST = 2  # views that make a pair
_LEAST_DISTANCE = 1e-4  # below it rounding of float32 embeddings shows in the logarithm


@dataclass(frozen=True)
class StoppingRule:
    """After k views an image with ``low[k - 2] < statistic < high[k - 2]`` is asked for another one.

    Raises ShapeError: not as many bounds below as above.
    """

    low: tuple[float, ...]  # V - 2 bounds, for k = 2 ... V - 1
    high: tuple[float, ...]  # the upper ones

    def __post_init__(self) -> None:
        if len(self.low) != len(self.high):
            raise ShapeError(f"a stopping rule with {len(self.low)} bounds below and {len(self.high)} above")

    @property
    def views(self) -> int:
        """V, the most views that an image is asked for."""
        return len(self.low) + FIRST


@dataclass(frozen=True)
class SequentialSimilarity(Measure):
    """The views that a rule asks for, and their statistic.

    Each call to the encoder holds one view of every image that is undecided. Between them V and the rule of the plan
    say which views that are.
    """

    kind = "sequential"
    consumes = "views"
    searches = True

    def query_count(self, views: int) -> int:
        """All views, at most."""
        return views

    def queries_at_once(self, views: int) -> int:
        """The first pair."""
        return FIRST

    def shape(self, views: int, width: int) -> tuple[int, ...]:
        """The number of views, and the statistic."""
        return (2,)

    def answers(self, oracle: Oracle, sent: torch.Tensor | None) -> dict[str, torch.Tensor]:
        """Views asked, and the statistic of these, (N, 2) float64. Raises as `Oracle.bounds`."""
        batch, drawing, device = oracle.batch, oracle.views, oracle.batch.images.device
        low, high = (torch.tensor(side, dtype=torch.float64, device=device) for side in oracle.bounds())
        (output,), most = oracle.outputs, drawing.number
        total = torch.zeros(len(batch.images), dtype=torch.float64, device=device)
        asked = torch.full_like(total, most)
        rows = torch.arange(len(batch.images), device=device)
        seen: torch.Tensor | None = None  # (undecided, views asked, D), of length 1
        for views in range(FIRST, most + 1):
            number, first = (FIRST, 0) if seen is None else (1, views - 1)
            drawn = drawing.draw(batch.images[rows], batch.streams[rows], number, first)
            new = F.normalize(oracle.embed(drawn, ids=[batch.ids[row] for row in rows.tolist()])[output], dim=2)
            before, last = (new[:, :-1], new[:, -1:]) if seen is None else (seen, new)
            cosines = (before * last).sum(dim=2).clamp(-1, 1)
            seen = torch.cat([before, last], dim=1)
            total[rows] += log_similarity(cosines).sum(dim=1)
            if views == most:
                break
            statistic = total[rows] / (views * (views - 1) / 2)
            undecided = (statistic > low[views - FIRST]) & (statistic < high[views - FIRST])
            asked[rows[~undecided]] = views
            rows, seen = rows[undecided], seen[undecided]
            if not len(rows):
                break
        return {output: torch.stack([asked, total / (asked * (asked - 1) / 2)], dim=1)}


def log_similarity(cosines: torch.Tensor) -> torch.Tensor:
    """-log(1 - cosine) in float64, of any shape; in [-0.69, 9.21]: distances below 1e-4 count as 1e-4.

    Example:
        >>> log_similarity(torch.tensor([0.0, 0.5])).tolist()
        [-0.0, 0.6931471805599453]
    """
    return -(1 - cosines.double()).clamp(min=_LEAST_DISTANCE).log()


def by_views(cosines: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
    """The statistic (N, V - 1) after 2, ..., V views, from cosines (N, V (V - 1) / 2) as of `pairwise_similarity`."""
    views = round((1 + np.sqrt(1 + 8 * cosines.shape[1])) / 2)
    logs = log_similarity(torch.tensor(cosines, dtype=torch.float32)).numpy()
    return np.stack([logs[:, pairs_within(views, first)].mean(axis=1) for first in range(FIRST, views + 1)], axis=1)


def stopped(statistics: npt.NDArray[np.float64], rule: StoppingRule) -> npt.NDArray[np.float64]:
    """The views that a rule asks for and sees of images, told from all their views.

    Args:
        statistics: (N, V - 1), from `by_views`.
        rule: of V views.

    Returns (N, 2): views asked, in 2 ... V, and the statistic of these.

    Example:
        >>> stopped(np.array([[3.0, 1.0], [0.5, 2.0]]), StoppingRule(low=(0.0,), high=(1.0,))).tolist()
        [[2.0, 3.0], [3.0, 2.0]]
    """
    if statistics.shape[1] != rule.views - 1:
        raise ShapeError(f"statistics of {statistics.shape[1] + 1} views, the stopping rule is of {rule.views}")
    decided = (statistics[:, :-1] <= np.array(rule.low)) | (statistics[:, :-1] >= np.array(rule.high))
    stage = np.pad(decided, ((0, 0), (0, 1)), constant_values=True).argmax(axis=1)
    return np.stack([stage + FIRST, statistics[np.arange(len(statistics)), stage]], axis=1)
