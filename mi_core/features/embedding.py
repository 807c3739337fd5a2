"""The embedding itself, of an image or of its views: what networks of an attack learn from. V views, D width."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mi_core.features.measure import Measure
from mi_core.features.pairwise_similarity import check_drawn


@dataclass(frozen=True)
class Embedding(Measure):
    """The embedding of the image itself, un-normalised; of a classifier its logits."""

    kind = "embedding"
    consumes = "image"

    def shape(self, views: int, width: int) -> tuple[int, ...]:
        """(D,)."""
        return (width,)


@dataclass(frozen=True)
class ViewEmbeddings(Measure):
    """The embedding of each view of an image."""

    kind = "view-embeddings"
    consumes = "views"
    shares_views = True

    def shape(self, views: int, width: int) -> tuple[int, ...]:
        """(V, D)."""
        return views, width

    def first_views(self, values: np.ndarray, drawn: int, used: int) -> np.ndarray:
        """(N, V D) becomes (N, V, D) of the views that are used."""
        check_drawn(drawn, used)
        return values.reshape(len(values), drawn, -1)[:, :used]
