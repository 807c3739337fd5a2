"""What every entry of ATTACKS keeps to: no leak gives AUC 0.5, a planted leak is found, and nothing is changed."""

from __future__ import annotations

import copy
from dataclasses import fields, is_dataclass

import numpy as np
import pytest
import torch

from mi_core.attacks import ATTACKS
from mi_core.attacks.base import Attack
from mi_core.checks import ConfigError, NumericError
from mi_core.features import consumes, parse_need
from mi_core.metrics.delong import auc
from mi_core.records import Features, LabelledFeatures

VIEWS = 10
PAIRS = VIEWS * (VIEWS - 1) // 2


def make(name: str, seed: int = 0) -> Attack:
    """The attack, with shorter training where it trains."""
    method = ATTACKS[name]
    names = {field.name for field in fields(method.Parameters)}
    short = {key: value for key, value in {"epochs": 15, "learning_rate": 1e-3}.items() if key in names}
    return method(method.Parameters(**short), seed=seed)


def plant(needs: tuple[str, ...], count: int, leak: float, seed: int) -> tuple[Features, np.ndarray]:
    """Features in which members stand ``leak`` standard deviations higher; half are members."""
    generator = np.random.default_rng(seed)
    member = generator.permutation(count) < count // 2
    level = generator.normal(0, 1, count) + leak * member
    values = {}
    for need in needs:
        if consumes(need) == "views":
            noise = generator.normal(0, 0.5, (count, PAIRS))
            values[need] = np.tanh(0.5 + 0.05 * (level[:, None] + noise)).astype(np.float32)
        else:
            values[need] = (10 + 0.3 * level).astype(np.float32)
    return Features(np.array([f"pool/{row}" for row in range(count)]), values), member


@pytest.fixture(params=sorted(ATTACKS))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_it_says_what_it_is(name: str) -> None:
    method = ATTACKS[name]
    assert method.name == name
    assert method.threat_model
    assert method.source
    assert method.reference
    assert method.reference <= {"shadow", "shadows", "known", "nonmembers"}
    assert is_dataclass(method.Parameters)
    made = method()
    for need in made.needs:
        parse_need(need)
    assert made.queries_per_sample(VIEWS) >= 1


def test_a_planted_leak_is_found_with_the_right_sign(name: str) -> None:
    attack = make(name)
    attack.fit(LabelledFeatures(*plant(attack.needs, 400, 3.0, 1)))
    features, member = plant(attack.needs, 600, 3.0, 2)
    scores = attack.score(features)
    assert auc(scores, member).value > 0.95
    assert auc(-scores, member).value < 0.05
    assert ((scores >= attack.threshold) == member).mean() > 0.88


def test_no_leak_gives_no_signal(name: str) -> None:
    attack = make(name)
    attack.fit(LabelledFeatures(*plant(attack.needs, 400, 0.0, 3)))
    features, member = plant(attack.needs, 2000, 0.0, 4)
    estimate = auc(attack.score(features), member)
    assert estimate.low <= 0.5 <= estimate.high


def test_same_seed_same_scores_and_state_restores(name: str) -> None:
    reference = LabelledFeatures(*plant(make(name).needs, 200, 1.0, 5))
    features, _ = plant(make(name).needs, 100, 1.0, 6)
    first, second = make(name, seed=7), make(name, seed=7)
    torch.manual_seed(1)
    first.fit(reference)
    torch.manual_seed(2)
    second.fit(reference)
    np.testing.assert_array_equal(first.score(features), second.score(features))
    restored = make(name)
    restored.load_state(first.state())
    np.testing.assert_array_equal(restored.score(features), first.score(features))
    assert restored.threshold == first.threshold


def test_scores_follow_the_samples_and_leave_them_alone(name: str) -> None:
    attack = make(name)
    reference = LabelledFeatures(*plant(attack.needs, 200, 1.0, 8))
    features, _ = plant(attack.needs, 100, 1.0, 9)
    before = copy.deepcopy((reference.features.values, features.values))
    attack.fit(reference)
    scores = attack.score(features)
    order = np.random.default_rng(0).permutation(100)
    np.testing.assert_allclose(attack.score(features.take(order)), scores[order], atol=1e-5)
    assert scores.shape == (100,)
    assert scores.dtype == np.float64
    for kept, now in zip(before, (reference.features.values, features.values), strict=True):
        for need in kept:
            np.testing.assert_array_equal(kept[need], now[need])


def test_mistakes_are_named(name: str) -> None:
    attack = make(name)
    features, member = plant(attack.needs, 40, 1.0, 10)
    with pytest.raises(ConfigError, match=f"{name} is not fitted"):
        attack.score(features)
    with pytest.raises(ConfigError, match=f"{name} is not fitted"):
        _ = attack.threshold
    with pytest.raises(ConfigError, match=f"{name} needs the feature '{attack.needs[0]}'; given: other"):
        attack.fit(LabelledFeatures(Features(features.ids, {"other": np.zeros(40)}), member))
    with pytest.raises(ConfigError, match="takes .*Parameters"):
        ATTACKS[name](object())
    broken = {need: np.full_like(values, np.nan) for need, values in features.values.items()}
    with pytest.raises(NumericError, match="pool/0"):
        Features(features.ids, broken)
