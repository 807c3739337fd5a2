"""The regression against plain Newton steps, what it reads against loops, and tests on audited samples that hold."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mi_core.attacks import combined
from mi_core.attacks.base import NotApplicable
from mi_core.attacks.combined import Combined, CombinedParameters
from mi_core.checks import ConfigError, ShapeError
from mi_core.features.caption_similarity import CaptionSimilarity
from mi_core.features.embedding import LpNorm, NeighbourDensity
from mi_core.features.pairwise_similarity import PairwiseSimilarity
from mi_core.features.patch_similarity import CenterSimilarity
from mi_core.folds import FOLDS, stratified_folds
from mi_core.metrics.delong import auc
from mi_core.records import Features, LabelledFeatures
from tests.raising import refused

PAIRS = 10
PLAIN = CombinedParameters(grid="")


def drawn(samples: int, seed: int, *, views: float = 0.0, length: float = 0.0) -> tuple[Features, np.ndarray]:
    """Half members, whose views are more alike and whose embeddings are longer, by so many standard deviations."""
    generator = np.random.default_rng(seed)
    member = generator.permutation(samples) % 2 == 0
    level = generator.normal(0.8, 0.2, samples) + 0.2 * views * member
    cosines = np.tanh(level[:, None] + generator.normal(0, 0.1, (samples, PAIRS)))
    second = np.exp(generator.normal(1, 0.3, samples) + 0.3 * length * member)
    first = second * generator.uniform(3, 4, samples)
    values = {"pairwise:cosine": cosines, "norm:1": first, "norm:2": second}
    return Features(np.array([f"pool/{row:05d}" for row in generator.permutation(samples)]), values), member


def test_numbers_match_a_loop() -> None:
    features, _ = drawn(6, 0)
    features.values["patches:3x3"] = np.random.default_rng(1).uniform(-1, 1, (6, 8))
    features.values["neighbours:2/5"] = np.linspace(-0.5, 0.9, 6)
    numbers = Combined(CombinedParameters(neighbours="2/5"))._numbers(features)
    for row in range(6):
        expected: list[float] = []
        for name in ("pairwise:cosine", "norm:1", "norm:2", "patches:3x3", "neighbours:2/5"):
            if name == "neighbours:2/5":  # members lie where others are far
                expected.append(-math.atanh(features.values[name][row]))
            elif name == "norm:1":
                expected.append(math.log(features.values[name][row] / features.values["norm:2"][row]))
            elif name == "norm:2":
                expected.append(math.log(features.values[name][row]))
            else:
                cosines = features.values[name][row].tolist()
                angles = [math.atanh(one) for one in cosines]
                mean = sum(angles) / len(angles)
                deviation = math.sqrt(sum((one - mean) ** 2 for one in angles) / len(angles))
                expected += [math.atanh(sum(cosines) / len(cosines)), math.log(deviation), min(angles), max(angles)]
        np.testing.assert_allclose(numbers[row], expected, rtol=1e-9)


def test_the_regression_is_the_penalised_one() -> None:
    """Newton's steps on sum of weight x log(1 + exp(-margin)) + penalty / 2 |w - prior|^2, from its definition."""
    features, member = drawn(60, 2, views=0.5, length=1.0)
    member[:10] = True  # unequal classes
    attack = Combined(CombinedParameters(grid="", penalty=3.0))
    attack.fit(LabelledFeatures(features, member))
    numbers = attack._numbers(features)
    design = np.column_stack([(numbers - numbers.mean(axis=0)) / numbers.std(axis=0), np.ones(60)])
    prior = np.zeros(7)
    prior[0] = 0.5
    ridge = np.diag([3.0] * 6 + [0.0])
    weight = np.where(member, 30 / member.sum(), 30 / (~member).sum())
    solution = prior.copy()
    for _ in range(50):
        chance = 1 / (1 + np.exp(-design @ solution))
        slope = design.T @ (weight * (chance - member)) + ridge @ (solution - prior)
        curve = (design * (weight * chance * (1 - chance))[:, None]).T @ design + ridge
        solution = solution - np.linalg.solve(curve, slope)
    np.testing.assert_allclose(attack.score(features), design @ solution, atol=1e-4)
    assert attack.threshold == 0


def test_it_finds_more_than_either_signal() -> None:
    known, test = (drawn(4000, seed, views=0.7, length=0.7) for seed in (3, 4))
    attack = Combined(PLAIN)
    attack.fit(LabelledFeatures(*known))
    features, member = test
    both = auc(attack.score(features), member).value
    alone = [auc(features.values[name].reshape(4000, -1).mean(axis=1), member).value for name in features.values]
    assert both > max(alone) + 0.04
    assert both == pytest.approx(0.758, abs=0.02)  # Phi(.7): of two independent signals of .7 standard deviations


def test_audited_samples_with_a_difference_are_found() -> None:
    features, member = drawn(400, 5, views=0.7, length=0.7)
    attack = Combined(PLAIN)
    attack.fit(LabelledFeatures(features, member, audited=True))
    assert attack.threshold == 0
    assert 0.68 < auc(attack.score(features), member).value < 0.80


def test_a_sample_is_scored_by_earlier_folds_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    features, member = drawn(50, 6, length=2.0)
    attack = Combined(PLAIN, seed=1)
    attack.fit(LabelledFeatures(features, member, audited=True))
    before = attack.score(features)
    order = np.argsort(features.ids)
    fixed = stratified_folds(member[order], None, 1, "x")
    monkeypatch.setattr(combined, "stratified_folds", lambda *_: fixed)
    folds = [order[rows] for rows in fixed]
    labels = member.copy()
    labels[folds[-1]] = ~labels[folds[-1]]
    attack.fit(LabelledFeatures(features, labels, audited=True))
    np.testing.assert_array_equal(attack.score(features), before)
    labels[folds[0]] = ~labels[folds[0]]
    attack.fit(LabelledFeatures(features, labels, audited=True))
    changed = attack.score(features) != before
    assert not changed[folds[0]].any()
    assert changed[folds[1]].any()
    first = attack._numbers(features)[folds[0], 0]
    np.testing.assert_array_equal(before[folds[0]].argsort(), first.argsort())


def test_groups_stay_in_one_fold() -> None:
    member = np.arange(60) < 30
    groups = np.arange(60) // 3
    folds = stratified_folds(member, groups, 0, "x")
    assert len(folds) == FOLDS
    for rows in folds:
        inside = set(groups[rows].tolist())
        assert inside.isdisjoint(np.delete(groups, rows).tolist())
    with pytest.raises(ShapeError, match="combined on audited samples needs 5 groups of each class, got 2 of one"):
        features, _ = drawn(60, 7)
        Combined(PLAIN).fit(LabelledFeatures(features, member, audited=True, groups=np.arange(60) // 15))


def test_the_order_of_the_samples_does_not_matter() -> None:
    features, member = drawn(40, 8, views=1.0)
    shuffled = np.random.default_rng(0).permutation(40)
    scores = []
    for rows in (np.arange(40), shuffled):
        attack = Combined(PLAIN)
        attack.fit(LabelledFeatures(features.take(rows), member[rows], audited=True))
        scores.append(attack.score(features))
    np.testing.assert_array_equal(*scores)


def test_a_strange_sample_is_refused() -> None:
    features, member = drawn(40, 9)
    attack = Combined(PLAIN)
    attack.fit(LabelledFeatures(features, member, audited=True))
    strange = Features(np.array(["pool/x"]), {need: values[:1] for need, values in features.values.items()})
    refused(ConfigError, "pool/x is none of the audited samples", attack.score, strange)


def test_lengths_that_are_all_one_weigh_nothing() -> None:
    features, member = drawn(60, 10, views=1.0)
    rounding = 1 + np.random.default_rng(0).normal(0, 1e-7, 60)
    unit = Features(features.ids, features.values | {"norm:2": rounding})
    attack = Combined(PLAIN)
    attack.fit(LabelledFeatures(unit, member))
    other = Features(features.ids, unit.values | {"norm:2": rounding[::-1]})
    np.testing.assert_allclose(attack.score(other), attack.score(unit), atol=1e-5)


def test_embeddings_that_are_all_alike_are_not_applicable() -> None:
    same = {"pairwise:cosine": np.ones((8, PAIRS)), "norm:1": np.full(8, 2.0), "norm:2": np.ones(8)}
    features = Features(np.array([f"pool/{row}" for row in range(8)]), same)
    refused(NotApplicable, "leave combined out", Combined(PLAIN).fit, LabelledFeatures(features, np.arange(8) % 2 == 0))


def test_parameters() -> None:
    assert Combined().needs == (PairwiseSimilarity(), LpNorm(1), LpNorm(2), CenterSimilarity())
    assert Combined().queries_per_sample(10) == 20
    assert Combined(CombinedParameters(grid="", caption=True)).needs[-1] == CaptionSimilarity()
    refused(ConfigError, "penalty", CombinedParameters, penalty=0)
    assert CombinedParameters(neighbours="2/5").measures()[-1] == NeighbourDensity(2, 5)


@pytest.mark.parametrize(
    ("field", "text", "expected"),
    [
        ("grid", "2x2", "odd numbers"),
        ("grid", "3", "rows x columns"),
        ("grid", "ax3", "rows x columns"),
        ("neighbours", "20", "allowed: neighbours/images of the bank, as 20/128"),
        ("neighbours", "a/4", "allowed: neighbours/images of the bank, as 20/128"),
        ("neighbours", "1/2/3", "allowed: neighbours/images of the bank, as 20/128"),
        ("neighbours", "6/5", "neighbours = 6"),
    ],
)
def test_what_is_written_in_a_config(field: str, text: str, expected: str) -> None:
    refused(ConfigError, expected, CombinedParameters, **{field: text})
