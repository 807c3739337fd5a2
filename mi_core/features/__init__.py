"""Membership features: from what an encoder answers about an image to one row of numbers.

Each module defines a `Measure` and the pure functions that compute it; attacks say which measures they need, extraction
computes them. `MEASURES` is the table.
"""

from __future__ import annotations

from mi_core.features.adversarial import AdversarialLogits
from mi_core.features.boundary_distance import BoundaryDistance
from mi_core.features.caption_similarity import CaptionEmbedding, CaptionSimilarity
from mi_core.features.embedding import Embedding, LpNorm, NeighbourDensity, ViewEmbeddings
from mi_core.features.measure import Measure, as_json, queries_per_image
from mi_core.features.pairwise_similarity import PairwiseSimilarity
from mi_core.features.patch_similarity import CenterSimilarity
from mi_core.plugins import plugged_in

__all__ = ["MEASURES", "Measure", "as_json", "queries_per_image"]

MEASURES: dict[str, type[Measure]] = {
    measure.kind: measure
    for measure in (
        *(PairwiseSimilarity, ViewEmbeddings, LpNorm, Embedding, CenterSimilarity),
        *(CaptionSimilarity, CaptionEmbedding, BoundaryDistance, AdversarialLogits, NeighbourDensity),
    )
}
MEASURES |= plugged_in("measures", MEASURES, Measure, key="kind")
