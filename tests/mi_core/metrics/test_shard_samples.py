"""An interval from some shards holds what all shards say, if a shard counts as one."""

from __future__ import annotations

import numpy as np
import pytest

from mi_core.metrics.delong import auc, auc_difference, design_effect

SIMULATIONS, SHARDS, EACH, DRAWN = 200, 200, 30, 30  # shards of either side, samples of a shard, shards that are read


def population(generator: np.random.Generator, alike: float) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Scores of an attack and of its control, members and shards: samples of a shard share a part of their scores."""
    shard = np.repeat(np.arange(2 * SHARDS), EACH)
    member = shard < SHARDS
    score, control = (
        alike * generator.standard_normal(2 * SHARDS)[shard] + generator.standard_normal(len(shard)) for _ in range(2)
    )
    return score + 0.4 * member, control, member, shard


@pytest.mark.parametrize("alike", [0.0, 0.5])
def test_some_shards_tell_of_all(alike: float) -> None:
    """With 200 simulations a coverage of .95 shows as .92 to .98 in 95 of 100 runs."""
    held, careless, held_difference, effects = 0, 0, 0, []
    for seed in range(SIMULATIONS):
        generator = np.random.default_rng(seed)
        score, control, member, shard = population(generator, alike)
        chosen = [generator.permutation(SHARDS)[:DRAWN], SHARDS + generator.permutation(SHARDS)[:DRAWN]]
        rows = np.isin(shard, np.concatenate(chosen))
        of_all, of_both = auc(score, member).value, auc_difference(score, control, member).value
        grouped = auc(score[rows], member[rows], shard[rows])
        plain = auc(score[rows], member[rows])
        difference = auc_difference(score[rows], control[rows], member[rows], shard[rows])
        held += grouped.low <= of_all <= grouped.high
        careless += plain.low <= of_all <= plain.high
        held_difference += difference.low <= of_both <= difference.high
        effects.append(design_effect(score[rows], member[rows], shard[rows]))
    assert held >= 0.92 * SIMULATIONS
    assert held_difference >= 0.92 * SIMULATIONS
    if alike:
        assert careless <= 0.75 * SIMULATIONS  # who takes the samples of a shard for independent is too sure
        within = alike**2 / (1 + alike**2)
        assert np.median(effects) == pytest.approx(1 + (EACH - 1) * within, rel=0.2)  # Kish's formula
    else:
        assert np.median(effects) == pytest.approx(1, abs=0.1)


def test_few_independent_shards_have_an_effect_of_one_on_average() -> None:
    """Two shards a side. The ratio of the intervals' squared lengths is above 8, by Student's quantile and its care."""
    generator = np.random.default_rng(0)
    member, shard = np.arange(400) < 200, np.arange(400) // 100
    effects = [design_effect(generator.standard_normal(400) + member, member, shard) for _ in range(500)]
    assert np.mean(effects) == pytest.approx(1, abs=3 * np.std(effects) / np.sqrt(500))
    assert np.std(effects) / np.sqrt(500) < 0.06


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
