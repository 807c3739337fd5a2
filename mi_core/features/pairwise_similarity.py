"""The membership feature of EncoderMI (Liu et al., CCS 2021, section 4.2, equation 3; metrics: table 3).

An encoder that was trained on an image maps its augmented views closer together than those of an unseen image.
The feature is the similarity of every pair of V views: V (V - 1) / 2 numbers, 45 for the paper's 10 views.

``log-distance``, minus the logarithm of the cosine distance, is not the paper's: it spreads out the similarities near
1, where those of members lie, and one view that looks like no other weighs less in their mean.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from mi_core.checks import ConfigError, check_choice, check_shape
from mi_core.features.measure import Measure

METRICS = ("cosine", "correlation", "euclidean", "log-distance")
_LEAST_DISTANCE = 1e-4  # below it rounding of float32 embeddings shows in the logarithm


@dataclass(frozen=True)
class PairwiseSimilarity(Measure):
    """How alike all pairs of an image's views are.

    Args:
        metric: one of `METRICS`.
    """

    metric: str = "cosine"

    kind = "pairwise"
    consumes = "views"
    shares_views = True

    def __post_init__(self) -> None:
        check_choice("metric", self.metric, METRICS)

    def shape(self, views: int, width: int) -> tuple[int, ...]:
        """(V (V - 1) / 2,)."""
        return (views * (views - 1) // 2,)

    def first_views(self, values: np.ndarray, drawn: int, used: int) -> np.ndarray:
        """The pairs among the views that are used."""
        check_drawn(drawn, used)
        return values[:, pairs_within(drawn, used)]

    def values(self, answer: torch.Tensor, texts: torch.Tensor | None = None) -> torch.Tensor:
        """Similarities, see `pairwise_similarity`."""
        return pairwise_similarity(answer, self.metric)


def pairwise_similarity(views: torch.Tensor, metric: str = "cosine") -> torch.Tensor:
    """Similarity of all pairs of views, higher = more alike.

    Args:
        views: (N, V, D) embeddings, V >= 2.
        metric: ``cosine``; ``correlation``, Pearson's over the D coordinates; ``euclidean``, minus the distance;
            ``log-distance``, -log(1 - cosine), where distances below 1e-4 count as 1e-4.

    Returns (N, V (V - 1) / 2): pairs (0, 1), (0, 2), ..., (V - 2, V - 1). Cosine and correlation lie in [-1, 1], the
    last in [-0.69, 9.21]; with an embedding of length 0 (or no spread) they are 0.
    Raises ShapeError: views is not (N, V, D); ConfigError: one view only, or an unknown metric.

    Example:
        >>> pairwise_similarity(torch.tensor([[[1.0, 0.0], [0.0, 2.0], [3.0, 0.0]]]))
        tensor([[0., 1., 0.]])
    """
    check_choice("metric", metric, METRICS)
    _, count, _ = check_shape("views", views, "N V D")
    if count < 2:
        raise ConfigError(f"views = {count}, but a similarity needs a pair; set at least 2 (paper: 10)")
    first, second = torch.triu_indices(count, count, offset=1, device=views.device)
    if metric == "euclidean":
        distances = torch.cdist(views, views, compute_mode="donot_use_mm_for_euclid_dist")
        return -distances[:, first, second]
    if metric == "correlation":
        views = views - views.mean(dim=2, keepdim=True)
    unit = F.normalize(views, dim=2)
    cosines = (unit @ unit.transpose(1, 2))[:, first, second].clamp(-1, 1)
    return -(1 - cosines).clamp(min=_LEAST_DISTANCE).log() if metric == "log-distance" else cosines


def pairs_within(views: int, first: int) -> np.ndarray:
    """Columns of `pairwise_similarity` of ``views`` views that hold the pairs among the first few.

    Example:
        >>> pairs_within(4, 3).tolist()
        [0, 1, 3]
    """
    return np.flatnonzero(np.triu_indices(views, k=1)[1] < first)


def check_drawn(drawn: int, used: int) -> None:
    """Raise ConfigError if fewer views were drawn than are used."""
    if used > drawn:
        raise ConfigError(f"views = {used}, but only {drawn} were drawn; raise queries.views")
