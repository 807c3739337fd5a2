"""Stopping early: what it promises on samples it was not fitted on, where the truth is planted."""

from __future__ import annotations

import numpy as np
import pytest

from mi_core.attacks.sequential import EncoderMISequential, SequentialParameters
from mi_core.checks import ConfigError, NumericError
from mi_core.features.sequential import by_views, stopped
from mi_core.records import Features, LabelledFeatures

VIEWS = 10


def sampled(
    count: int, leak: float, seed: int, *, image: float = 1.0, view: float = 1.0
) -> tuple[Features, np.ndarray]:
    """Cosines of views: an effect of the image, which membership lifts by ``leak``, one of each view, and noise."""
    generator = np.random.default_rng(seed)
    member = generator.permutation(count) < count // 2
    level = leak * member + image * generator.normal(0, 1, count)
    of_view = generator.normal(0, 1, (count, VIEWS))
    first, second = np.triu_indices(VIEWS, k=1)
    logs = level[:, None] + (of_view[:, first] + of_view[:, second]) + generator.normal(0, 0.5, (count, len(first)))
    cosines = 1 - np.exp(-2 - 0.5 * logs).clip(max=2)
    ids = np.array([f"pool/{row}" for row in range(count)])
    return Features(ids, {"pairwise:cosine": cosines.astype(np.float32)}), member


def fitted(leak: float, count: int = 2000, seed: int = 0, **parameters: float) -> EncoderMISequential:
    attack = EncoderMISequential(SequentialParameters(**parameters))
    attack.fit(LabelledFeatures(*sampled(count, leak, seed)))
    return attack


def asked(attack: EncoderMISequential, features: Features) -> np.ndarray:
    """(N,) views."""
    return stopped(by_views(features.values["pairwise:cosine"]), attack.stopping_rule())[:, 0]


def all_views(attack: EncoderMISequential, features: Features) -> np.ndarray:
    """(N,) whether an image is called a member after all views."""
    state = attack.state()
    last = by_views(features.values["pairwise:cosine"])[:, -1]
    decided: np.ndarray = state["slope"][-1] * last + state["intercept"][-1] >= state["threshold"]
    return decided


@pytest.mark.parametrize("parameters", [{"tolerance": 0.02}, {"tolerance": 0.1}, {"tolerance": 0.04, "fpr": 0.01}])
def test_no_more_decisions_change_than_tolerated(parameters: dict[str, float]) -> None:
    attack = fitted(3.0, **parameters)
    features, _ = sampled(20_000, 3.0, 1)
    early = attack.score(features) >= attack.threshold
    changed = (early != all_views(attack, features)).mean()
    assert 0 < changed < parameters["tolerance"] + 0.01
    assert asked(attack, features).mean() < 0.75 * VIEWS


def test_a_tolerance_of_0_asks_for_all_views_and_a_half_for_two() -> None:
    features, _ = sampled(500, 3.0, 1)
    assert (asked(fitted(3.0, tolerance=0), features) == VIEWS).all()
    assert (asked(fitted(3.0, tolerance=0.5), features) == 2).all()


def test_scores_are_log_odds_whenever_an_image_stopped() -> None:
    attack = fitted(2.0, count=8000, tolerance=0.1)
    features, member = sampled(40_000, 2.0, 1)
    odds = 1 / (1 + np.exp(-attack.score(features)))
    views = asked(attack, features)
    for some in (views == 2, (views > 2) & (views < 6), views >= 6):
        assert some.sum() > 1000
        for low, high in ((0.0, 0.2), (0.2, 0.5), (0.5, 0.8), (0.8, 1.0)):
            inside = some & (odds >= low) & (odds < high)
            if inside.sum() > 500:
                assert member[inside].mean() == pytest.approx(odds[inside].mean(), abs=0.06)


@pytest.mark.parametrize("queries", [3.0, 5.5, 10.0])
def test_the_mean_number_of_queries_can_be_given(queries: float) -> None:
    attack = fitted(3.0, queries=queries)
    assert queries - 0.1 < asked(attack, sampled(2000, 3.0, 0)[0]).mean() <= queries
    assert asked(attack, sampled(10_000, 3.0, 1)[0]).mean() == pytest.approx(queries, abs=0.25)


def test_the_threshold_at_a_false_positive_rate_is_the_conformal_one() -> None:
    rates = []
    for seed in range(20):
        attack = fitted(2.0, count=500, seed=100 + seed, fpr=0.05, tolerance=0)
        features, member = sampled(2000, 2.0, 200 + seed)
        rates.append((attack.score(features)[~member] >= attack.threshold).mean())
    assert np.mean(rates) == pytest.approx(12 / 251, abs=4 * np.std(rates) / np.sqrt(len(rates)))
    with pytest.raises(NumericError, match="encodermi-sequential at fpr = 0.001 needs 999 known non-members, got 100"):
        fitted(2.0, count=200, fpr=0.001)
    assert EncoderMISequential(SequentialParameters(fpr=0.01)).needed_nonmembers == 99


def test_what_was_asked_is_scored_as_what_would_have_been() -> None:
    attack = fitted(2.0)
    features, _ = sampled(300, 2.0, 1)
    seen = stopped(by_views(features.values["pairwise:cosine"]), attack.stopping_rule())
    only = Features(features.ids, {"sequential": seen.astype(np.float32)})
    np.testing.assert_allclose(attack.score(only), attack.score(features), rtol=1e-5, atol=1e-5)


def test_impossible_settings_are_refused() -> None:
    for wrong in ({"tolerance": 0.6}, {"tolerance": -0.1}, {"queries": 1.5}, {"fpr": 0.0}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            SequentialParameters(**wrong)
    with pytest.raises(ConfigError, match="encodermi-sequential is not fitted"):
        EncoderMISequential().stopping_rule()
