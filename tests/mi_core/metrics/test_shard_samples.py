"""An interval from some shards holds what all shards say, if a shard counts as one."""

from __future__ import annotations

import numpy as np
import pytest

from mi_core.metrics.delong import design_effect

SIMULATIONS, SHARDS, EACH, DRAWN = 200, 200, 30, 30  # shards of either side, samples of a shard, shards that are read


def test_the_effect_is_the_ratio_of_two_variances_by_slow_sums() -> None:
    generator = np.random.default_rng(1)
    member = np.arange(60) < 24
    shard = np.where(member, np.arange(60) // 6, 4 + np.arange(60) % 9)
    scores = np.round(generator.standard_normal(60) + generator.standard_normal(13)[shard] + member, 1)
    by_shard, alone = 0.0, 0.0
    for side in (True, False):
        own, others = scores[member == side], scores[member != side]
        placed = np.array([np.mean((others < one) + 0.5 * (others == one)) for one in own])
        shards = shard[member == side]
        alone += placed.var(ddof=1) / len(placed)
        names = np.unique(shards)
        for name in names:
            rows = shards == name
            moved = (placed[rows] - placed.mean()).sum() / len(placed)
            by_shard += moved**2 * len(names) / (len(names) - 1)
    expected = by_shard / alone
    assert expected > 1.3
    assert design_effect(scores, member, shard) == pytest.approx(expected)


def test_an_auc_without_variance_has_an_effect_of_one() -> None:
    member = np.arange(40) < 20
    assert design_effect(member * 1.0, member, np.arange(40) // 5) == 1
