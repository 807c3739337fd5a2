"""The tail's weights, their influence and the test at percentiles, against slow loops; and planted kept images."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import beta, binom, norm

from mi_core.checks import ConfigError, ShapeError
from mi_core.report.model.as_json import given_values, part_from_json
from mi_core.validity.sets.kept import Scored, Tail, tail, weight_contrasts
from mi_core.validity.sets.share import least_share_above
from tests.mi_core.validity.sets.unlearning import drawn
from tests.raising import refused


def slow_mean(scores: list[float], member: list[bool], counts: list[float]) -> float:
    """The mean weight where control k counts as ``counts`` k."""
    controls = [score for score, inside in zip(scores, member, strict=True) if not inside]
    weights = []
    for score in (score for score, inside in zip(scores, member, strict=True) if inside):
        below = sum(
            count * (1.0 if control < score else 0.5 if control == score else 0.0)
            for control, count in zip(controls, counts, strict=True)
        ) / sum(counts)
        weights.append(math.exp(norm.ppf((below * len(controls) + 0.5) / (len(controls) + 1))))
    return sum(weights) / len(weights)


def test_mean_and_variance_are_those_of_slow_loops() -> None:
    """A control's influence is the slope of the mean in how much the control counts; the variance sums squares."""
    generator = np.random.default_rng(0)
    member = np.arange(27) % 3 > 0
    scores = np.round(generator.normal(0, 1, 27), 1) + 0.5 * member  # with ties
    ones, step = [1.0] * 9, 1e-5
    mean = slow_mean(scores.tolist(), member.tolist(), ones)
    of_controls = []
    for k in range(9):
        up, down = ([*ones[:k], 1 + sign * step, *ones[k + 1 :]] for sign in (1, -1))
        means = [slow_mean(scores.tolist(), member.tolist(), counts) for counts in (up, down)]
        of_controls.append((means[0] - means[1]) / (2 * step))
    of_images = [
        slow_mean([*scores[~member], score], [False] * 9 + [True], ones) / 18 - mean / 18 for score in scores[member]
    ]
    variance = sum(value**2 for value in of_images) * 18 / 17 + sum(value**2 for value in of_controls) * 9 / 8
    found = weight_contrasts([scores], [([1.0], 0.1)], member)[0]
    assert found.value == pytest.approx(mean)
    assert found.high - found.value == pytest.approx(norm.ppf(0.9) * math.sqrt(variance), rel=1e-4)


def test_groups_of_copies_widen_the_interval() -> None:
    generator = np.random.default_rng(1)
    member = np.arange(400) < 200
    twice = np.repeat(generator.normal(0, 1, 200), 2) + member
    wanted = [([1.0], 0.025)]
    plain, grouped = (weight_contrasts([twice], wanted, member, groups)[0] for groups in (None, np.arange(400) // 2))
    # twice as many controls reach further up, by a little
    once = weight_contrasts([twice[::2]], wanted, member[::2], np.arange(200))[0]
    assert grouped.value == plain.value
    assert grouped.high - grouped.low == pytest.approx(once.high - once.low, rel=0.1)
    assert grouped.high - grouped.low > 1.4 * (plain.high - plain.low)


def test_the_bound_at_percentiles_is_that_of_the_definition() -> None:
    """w is refuted where so few after at or below the percentile have a chance of at most the level, halved."""
    generator = np.random.default_rng(2)
    unseen, after = generator.normal(0, 1, 200), generator.normal(0, 1, 200)
    after[:40] += 4
    found, above = least_share_above(after, unseen, (0.95, 0.99), 200, 0.02)
    refuted = []
    for rank in (190, 198):
        reached = int((after <= np.sort(unseen)[rank - 1]).sum())

        def chance(share: float, rank: int = rank, reached: int = reached) -> float:
            def part(level: float) -> float:
                return float(binom.cdf(reached, 200, (1 - share) * level) * beta.pdf(level, rank, 201 - rank))

            return float(quad(part, 0.8, 1)[0])

        low, high = 0.0, 0.5
        for _ in range(10):
            middle = (low + high) / 2
            low, high = (middle, high) if chance(middle) <= 0.01 else (low, middle)
        refuted.append(low)
    assert max(refuted) - 0.005 < found.low <= max(refuted) + 0.001  # cut at quantiles, so a little lower
    assert found.threshold == np.argmax(refuted)
    assert above == pytest.approx([(after > np.sort(unseen)[rank - 1]).mean() for rank in (190, 198)])


def test_impossible_bounds_are_refused() -> None:
    some = np.arange(5.0)
    refused(ShapeError, "both sides are needed, got 0 and 5", least_share_above, some[:0], some, (0.95,), 5, 0.05)
    refused(ConfigError, "worth = 0.5", least_share_above, some, some, (0.95,), 0.5, 0.05)
    refused(ConfigError, "level = 0", least_share_above, some, some, (0.95,), 5, 0)
    refused(ConfigError, "percentile = 0", least_share_above, some, some, (0.0,), 5, 0.05)
    refused(ConfigError, "attacks = 0", tail, [drawn(np.random.default_rng(0), 20, 0.9, 0)], attacks=0)


def test_a_kept_fifth_is_found_and_bounded() -> None:
    found = tail([drawn(np.random.default_rng(4), 1000, 0.92, 0.2)])
    assert found.sign == "percentile-95"
    assert 0.05 < found.least < 0.2
    assert found.kept_at_most is not None
    assert 0.2 < found.kept_at_most < 0.35
    assert part_from_json(Tail, given_values(json.loads(json.dumps(found.as_json())))) == found
    assert replace(found, percentile=None).sign == "weights"


def test_scales_of_encoders_do_not_matter() -> None:
    one = drawn(np.random.default_rng(5), 300, 0.92, 0.1)
    other = replace(one, before=7 * one.before - 3, after=np.exp(one.after), unseen=one.unseen / 9 + 1)
    assert tail([one]) == tail([other])


def test_what_is_unlike_by_itself_is_not_kept() -> None:
    """A tenth of the images looks known to every encoder, also to one that never saw them."""
    one = drawn(np.random.default_rng(6), 1000, 0.92, 0.0)
    odd = 3.0 * (np.arange(2000) < 100)
    found = tail([Scored(one.before + odd, one.after + odd, one.unseen + odd, one.blind, one.member)])
    assert found.sign == ""
    assert max(found.above) < 0.08


def test_attacks_share_the_error_and_seeds_add_up() -> None:
    one = drawn(np.random.default_rng(7), 300, 0.92, 0.3)
    alone, many = tail([one]), tail([one], attacks=10)
    assert many.excess.high - many.excess.low == pytest.approx(
        (alone.excess.high - alone.excess.low) * norm.ppf(0.00125) / norm.ppf(0.0125)
    )
    assert many.least < alone.least
    assert many.kept_at_most == alone.kept_at_most
    apart, same = (tail([one, one], overlap=overlap) for overlap in (0.0, 1.0))
    assert same.excess.low == pytest.approx(alone.excess.low)
    assert same.least == pytest.approx(alone.least, abs=0.002)
    assert apart.least > same.least
    assert apart.excess.low > same.excess.low
