"""The verdict follows its rule in its order, on planted cases, on boundaries; several p-values at once."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mi_core.checks import ConfigError
from mi_core.records import Estimate
from mi_core.report.model.as_json import part_as_json, part_from_json
from mi_core.report.model.judgement import VerdictPart, judged
from mi_core.validity.verdict import (
    GROUPS_DIFFER,
    LOT,
    NO_LEAK,
    RESOLUTION,
    Validity,
    cauchy_combination,
    effect_size,
    holm,
    judge,
    judge_pooled,
)
from tests.raising import refused

REASONS = {
    "leak": ("by-lot", "robust"),
    "confounded": ("checks-differ",),
    "no-evidence": ("nothing-found", "not-beyond-checks", "not-robust"),
    "undecided": ("no-checks", "untrained-references", "after-looking", "encoder-broken", "another-attack"),
}


def scores(gap: float, seed: int, n: int = 300) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(2 * n) + gap * (np.arange(2 * n) < n)


MEMBER = np.arange(600) < 300


@pytest.mark.parametrize(
    ("attack", "blind", "control", "said"),
    [
        (2.0, 0.0, 0.0, ("leak", "robust")),
        (0.0, 0.0, 0.0, ("no-evidence", "nothing-found")),
        (1.0, 1.0, 0.0, ("confounded", "checks-differ")),  # the groups differ: the attack is no better than pixels
        (1.0, 0.0, 1.0, ("confounded", "checks-differ")),  # the same on an encoder that saw neither
        (3.0, 0.6, 0.0, ("leak", "robust")),  # shifted groups, but the attack is far above what the shift explains
        (1.0, 0.6, 0.6, ("confounded", "checks-differ")),  # above both, but less than twice as strong
        (0.4, 0.0, 0.0, ("no-evidence", "not-robust")),  # so weak that what these images do not resolve explains it
        (-2.0, 0.0, 0.0, ("no-evidence", "nothing-found")),
    ],
)
def test_planted_cases_by_choice(attack: float, blind: float, control: float, said: tuple[str, str]) -> None:
    result = judge(scores(attack, 1), scores(blind, 2), scores(control, 3), MEMBER, trained=True)
    assert result.judgement == said
    written = part_as_json(VerdictPart(**judged(result)))
    assert (written["verdict"], written["reason"]) == said
    assert part_from_json(VerdictPart, written).validity == result


def around(auc: float, reach: float = 0.04) -> Estimate:
    return Estimate(auc, auc - reach, auc + reach, 1000)


def chosen(attack: float, blind: float, control: float, **other: object) -> Validity:
    found: dict[str, object] = {"blind_auc": around(blind), "control_auc": around(control), "trained": True}
    found |= {"delta_auc": around(attack - blind), "delta_control_auc": around(attack - control)}
    return Validity(around(attack), **(found | other))  # type: ignore[arg-type]


def test_robustness_is_the_ratio_of_effect_sizes_at_the_cautious_ends() -> None:
    found = chosen(0.8, 0.6, 0.55).robustness
    d = NormalDist().inv_cdf
    assert found is not None and found.check == "blind_auc"
    assert found.at_least == pytest.approx(d(0.76) / d(0.64))
    assert found.value == pytest.approx(d(0.8) / d(0.6))
    assert found.at_most == pytest.approx(d(0.84) / d(0.56))
    assert effect_size(0.76) == pytest.approx(math.sqrt(2) * d(0.76))


def test_checks_below_guessing_count_as_what_the_images_resolve() -> None:
    found = chosen(0.8, 0.4, 0.45).robustness
    assert found is not None and (found.check, found.value, found.at_most) == (RESOLUTION, None, None)
    assert found.at_least == pytest.approx(effect_size(0.76) / effect_size(0.54))


def test_a_wider_check_lowers_the_robustness_and_a_semantic_check_counts() -> None:
    plain = chosen(0.8, 0.5, 0.5).robustness
    wide = chosen(0.8, 0.5, 0.5, blind_auc=around(0.5, 0.1)).robustness
    semantic = chosen(0.8, 0.5, 0.5, semantic_auc=around(0.7)).robustness
    assert plain is not None and wide is not None and semantic is not None
    assert wide.at_least == pytest.approx(effect_size(0.76) / effect_size(0.6)) and wide.at_least < plain.at_least
    assert semantic.check == "semantic_auc"
    assert chosen(0.8, 0.5, 0.5, semantic_auc=around(0.7)).judgement == ("confounded", "checks-differ")


def test_a_check_that_separates_all_leaves_nothing_to_prove() -> None:
    whole = Estimate(1.0, 0.99, 1.0, 1000)
    assert chosen(0.9, 0.5, 0.5, semantic_auc=whole).judgement == ("confounded", "checks-differ")
    assert chosen(0.9, 0.5, 0.5, semantic_auc=whole).robustness.at_least == 0.0  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, ("leak", "robust")),
        ({"trained": False}, ("undecided", "untrained-references")),
        ({"control_auc": None, "delta_control_auc": None}, ("undecided", "no-checks")),
        ({"blind_auc": None, "delta_auc": None}, ("undecided", "no-checks")),
        ({"delta_auc": Estimate(0.1, 0.0, 0.2, 1000)}, ("no-evidence", "not-beyond-checks")),  # 0 is not above 0
        ({"factor": 9.0}, ("no-evidence", "not-robust")),
        ({"works": False}, ("undecided", "encoder-broken")),
        ({"registered": False}, ("undecided", "after-looking")),
    ],
)
def test_what_each_condition_of_a_leak_is_for(changed: dict[str, object], said: tuple[str, str]) -> None:
    assert chosen(0.8, 0.5, 0.5, **changed).judgement == said


LEAK, UNLIKE, QUIET, UNCHECKED = (
    chosen(0.9, 0.5, 0.5), chosen(0.6, 0.7, 0.5), chosen(0.5, 0.5, 0.5), chosen(0.9, 0.5, 0.5, trained=False)
)  # fmt: skip


@pytest.mark.parametrize("found", [LEAK, UNLIKE, QUIET, UNCHECKED, replace(QUIET, by=LOT, p_value=0.0001)])
def test_what_is_certain_is_said_first(found: Validity) -> None:
    """An encoder that does not work is not told as groups that differ, nor as a check that is missing."""
    found = replace(found, other_attack="lpla on the backbone output", other_p=0.001)
    assert replace(found, works=False).judgement == ("undecided", "encoder-broken")
    assert replace(found, works=False, registered=False).judgement == ("undecided", "after-looking")
    assert found.by == LOT or replace(found, works=False).withheld_because == NO_LEAK


def test_no_evidence_takes_all_attacks_that_were_planned() -> None:
    for found in (QUIET, replace(QUIET, by=LOT, p_value=0.5)):
        for p, said in ((0.01, ("undecided", "another-attack")), (0.0101, ("no-evidence", "nothing-found"))):
            assert replace(found, other_attack="lpla", other_p=p).judgement == said
    for found in (LEAK, UNLIKE, UNCHECKED, replace(QUIET, by=LOT, p_value=0.01)):
        assert replace(found, other_attack="lpla", other_p=0.001).judgement == found.judgement


def test_the_number_of_checks_is_corrected_for() -> None:
    """The interval of one check lies above .5, which one of three does by chance; the largest by Holm's method."""
    low, high = around(0.545), around(0.56)
    assert low.low > 0.5
    one = {"control_auc": None, "delta_control_auc": None}
    assert list(chosen(0.5, 0.545, 0.5, **one).differing) == ["blind_auc"]
    for third, said in ((around(0.5), []), (low, []), (high, ["semantic_auc"])):
        found = chosen(0.5, 0.545, 0.5, semantic_auc=third)
        assert list(found.differing) == said
        assert found.verdict == ("confounded" if said else "no-evidence")
        assert found.withheld_because == (GROUPS_DIFFER if said else NO_LEAK)
    assert list(chosen(0.5, 0.56, 0.5, semantic_auc=high).differing) == ["blind_auc", "semantic_auc"]
    for value, low_end, p in ((1.0, 0.025 ** (1 / 60), 0.5**60), (0.0, 0.0, 1.0), (0.5, 0.46, 0.5)):
        check = Estimate(value, low_end, 1.0, 120)
        assert Validity(around(0.5), check).differing == ({"blind_auc": pytest.approx(p)} if p < 0.02 else {})


def test_nothing_found_needs_no_references() -> None:
    nothing = {"control_auc": None, "delta_control_auc": None, "trained": False}
    assert chosen(0.5, 0.5, 0.5, **nothing).judgement == ("no-evidence", "nothing-found")
    assert chosen(0.8, 0.7, 0.5, **nothing).judgement == ("confounded", "checks-differ")
    assert Validity(around(0.9)).judgement == ("undecided", "no-checks")


@pytest.mark.parametrize(
    ("p_value", "said"),
    [(0.01, ("leak", "by-lot")), (0.0101, ("no-evidence", "nothing-found")), (None, ("no-evidence", "nothing-found"))],
)
def test_by_lot_the_randomisation_test_decides_alone(p_value: float | None, said: tuple[str, str]) -> None:
    for blind in (0.5, 0.9):  # checks are shown and decide nothing
        assert chosen(0.6, blind, 0.5, by=LOT, p_value=p_value, trained=False).judgement == said
    assert Validity(around(0.6), by=LOT, p_value=p_value).judgement == said


def test_pooling_gathers_evidence_that_single_seeds_lack() -> None:
    runs = [judge(scores(0.4, s), scores(0, 50 + s), scores(0, 90 + s), MEMBER, trained=True) for s in range(12)]
    assert [run.verdict for run in runs].count("leak") < 6
    pooled = judge_pooled(runs)
    assert pooled.judgement == ("leak", "robust")
    assert pooled.attack_auc.n == 12 * 600
    nothing = [judge(scores(0, s), scores(0, 50 + s), scores(0, 90 + s), MEMBER, trained=True) for s in range(12)]
    assert judge_pooled(nothing).verdict == "no-evidence"


def test_pooling_combines_p_values_and_is_as_careful_as_its_weakest_run() -> None:
    runs = [chosen(0.6, 0.5, 0.5, by=LOT, p_value=p) for p in (0.03, 0.0001)]
    assert judge_pooled(runs).p_value == pytest.approx(2 / (1 / 0.03 + 1 / 0.0001), rel=0.01)
    assert judge_pooled(runs[:1]) == runs[0]
    weak = [chosen(0.8, 0.5, 0.5), chosen(0.8, 0.5, 0.5, trained=False)]
    assert judge_pooled(weak).judgement == ("undecided", "untrained-references")
    assert (
        judge_pooled([chosen(0.5, 0.5, 0.5), chosen(0.5, 0.5, 0.5, works=False)]).judgement.reason == "encoder-broken"
    )


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="by"):
        Validity(around(0.6), by="vote")
    with pytest.raises(ConfigError, match="factor"):
        Validity(around(0.6), factor=0.5)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_rejects_what_the_steps_reject(p_values: list[float]) -> None:
    adjusted = holm(p_values)
    for level in (0.01, 0.05, 0.3, 0.9):
        rejected: set[int] = set()
        for step, index in enumerate(sorted(range(len(p_values)), key=lambda index: p_values[index])):
            if p_values[index] * (len(p_values) - step) > level:
                break
            rejected.add(index)
        assert {index for index, p in enumerate(adjusted) if p <= level} == rejected
    assert all(p <= q <= 1 for p, q in zip(p_values, adjusted, strict=True))


@given(st.lists(st.floats(0.001, 0.999), min_size=1, max_size=8))
def test_cauchy_equals_the_formula(p_values: list[float]) -> None:
    statistic = sum(math.tan((0.5 - p) * math.pi) for p in p_values) / len(p_values)
    assert cauchy_combination(p_values) == pytest.approx(0.5 - math.atan(statistic) / math.pi, rel=1e-6, abs=1e-9)


def test_cauchy_at_the_ends() -> None:
    assert 0 < cauchy_combination([0.0, 0.7]) < 1e-300
    assert 0 < cauchy_combination([0.0, 1.0]) < 1e-300
    assert 1 - 1e-15 < cauchy_combination([1.0, 1e-10]) <= 1 - 2.0**-53
    assert cauchy_combination([1.0]) == pytest.approx(1.0)
    assert cauchy_combination([1.0, 0.2]) >= cauchy_combination([0.999, 0.2])


def test_p_values_are_checked() -> None:
    for combine in (holm, cauchy_combination):
        refused(ConfigError, "0 p-values", combine, [])
        refused(ConfigError, r"p-value = 1.1, allowed: \[0.0, 1.0\]", combine, [0.1, 1.1])
        refused(ConfigError, "p-value = nan", combine, [math.nan])
