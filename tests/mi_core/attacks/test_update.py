"""The change at an update: NumPy's own fit is the referee of the line, and the mean of others' views is left out."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mi_core.attacks.update import ConformalParameters, Update
from mi_core.checks import NumericError, ShapeError
from mi_core.features.pairwise_similarity import PairwiseSimilarity, pairwise_similarity
from mi_core.records import Features, LabelledFeatures


def features_of_views(embeddings: torch.Tensor, before: torch.Tensor | None = None) -> Features:
    """What two versions of an encoder tell of views (N, V, D)."""
    ids = np.array([f"pool/{row}" for row in range(len(embeddings))])
    values = {PairwiseSimilarity().name: pairwise_similarity(embeddings).numpy()}
    return Features(ids, values, before=None if before is None else features_of_views(before))


def versions(count: int, leak: float, seed: int) -> tuple[Features, np.ndarray]:
    """Two versions that find the same images hard; the later one draws views of members together."""
    generator = torch.Generator().manual_seed(seed)
    member = np.arange(count) % 2 == 0
    hardness = torch.rand(count, 1, 1, generator=generator) + 0.5
    kept = 1 - leak * torch.from_numpy(member)[:, None, None].float()
    centre = torch.randn(count, 1, 16, generator=generator)
    before, after = (centre + hardness * torch.randn(count, 10, 16, generator=generator) for _ in range(2))
    return features_of_views(centre + (after - centre) * kept, before), member


def fitted(leak: float) -> tuple[Update, Features, np.ndarray]:
    known, member = versions(200, leak, 1)
    attack = Update()
    attack.fit(LabelledFeatures(known, member))
    return attack, *versions(1000, leak, 2)


def test_scores_are_the_residuals_of_the_line_that_numpy_fits() -> None:
    attack, features, _ = fitted(0.1)
    known, member = versions(200, 0.1, 1)

    def statistic(given: Features) -> np.ndarray:
        cosines = np.asarray(given[PairwiseSimilarity()], dtype=np.float64).mean(axis=1)
        return np.asarray(0.5 * np.log((1 + cosines) / (1 - cosines)))

    assert known.before is not None
    assert features.before is not None
    line = np.polyfit(statistic(known.before)[~member], statistic(known)[~member], 1)
    np.testing.assert_allclose(
        attack.score(features), statistic(features) - np.polyval(line, statistic(features.before))
    )


def test_members_of_the_reference_change_nothing() -> None:
    attack, features, _ = fitted(0.1)
    known, member = versions(200, 0.1, 1)
    alone = Update()
    alone.fit(LabelledFeatures(known.take(~member), member[~member]))
    np.testing.assert_array_equal(alone.score(features), attack.score(features))


def test_too_few_known_ones_and_other_samples_are_named() -> None:
    known, _ = versions(20, 0.0, 1)
    with pytest.raises(NumericError, match="update needs 3 known non-members for a line, got 2"):
        Update(ConformalParameters(fpr=0.5)).fit(LabelledFeatures(known.take(np.arange(2)), np.zeros(2, dtype=bool)))
    assert Update(ConformalParameters(fpr=1.0)).needed_nonmembers == 3
    with pytest.raises(ShapeError, match="of other samples, or in another order"):
        Features(known.ids[::-1].copy(), known.values, before=known.before)
