"""How far an image is from what a classifier takes for another class; see `mi_core.features.hop_skip_jump`."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mi_core.augmentations.views import clean
from mi_core.checks import check_range
from mi_core.features.hop_skip_jump import LEAST_QUERIES, hop_skip_jump
from mi_core.features.measure import Measure, Oracle


@dataclass(frozen=True)
class BoundaryDistance(Measure):
    """The 2-norm of the smallest change, of pixels in [0, 1], that alters the prediction; 0 where that is wrong.

    Args:
        iterations: of HopSkipJump.
        queries: the most that it may spend on an image.
    """

    iterations: int = 7
    queries: int = 2000

    kind = "boundary"
    consumes = "search"
    output = "logits"
    labels = True
    searches = True

    def __post_init__(self) -> None:
        check_range("iterations", self.iterations, 1)
        check_range("queries", self.queries, LEAST_QUERIES)

    def query_count(self, views: int) -> int:
        """The most that it may spend."""
        return self.queries

    def queries_at_once(self, views: int) -> int:
        """None: the search takes care of its own batches."""
        return 0

    def answers(self, oracle: Oracle, sent: torch.Tensor | None) -> dict[str, torch.Tensor]:
        """Distances."""
        batch = oracle.batch
        assert batch.labels is not None

        def predict(images: torch.Tensor) -> torch.Tensor:
            return oracle.embed(images, ("logits",))["logits"].argmax(dim=1)

        boundary = hop_skip_jump(
            predict,
            clean(batch.images),
            batch.labels,
            batch.streams,
            iterations=self.iterations,
            queries=self.queries,
            batch=oracle.at_once,
        )
        return {"logits": boundary.distance}
