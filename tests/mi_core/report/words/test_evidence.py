"""What is said of candidates as a whole and one by one: the numbers measured, and nothing where nothing may be said."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mi_core.records import Estimate
from mi_core.report.build import SeedTest, SetTest, combine_tests
from mi_core.report.model.as_json import part_from_json
from mi_core.report.model.judgement import Evidence
from mi_core.report.model.report import report_from_json as typed
from mi_core.report.page.html import render_html
from mi_core.report.words.sentences import say, sides_by
from mi_core.report.words.wording import dots
from mi_core.validity.sets.dataset import DatasetTest, dataset_test
from mi_core.validity.sets.share import LeastShare
from mi_core.validity.verdict import cauchy_combination, holm
from tests.mi_core.report.conftest import make_asked

SIDES = sides_by(None)


def entry(attack: str, seed: int, gap: float, target: str = "target", **more: Any) -> SeedTest:
    generator = np.random.default_rng([seed, len(attack)])
    member = np.arange(200) < 100
    test = dataset_test(generator.standard_normal(200) + gap * member, member, seed=seed, permutations=199)
    result = SetTest(**{"test": test, "least_share": None} | more)
    return SeedTest(attack=attack, target=target, output="backbone", reference="shadow", seed=seed, result=result)


def measured_by(entries: list[SeedTest]) -> list[DatasetTest]:
    tests = [one.result.test for one in entries]
    return [test for test in tests if test is not None]


def test_seeds_are_combined_and_attacks_adjusted() -> None:
    entries = [entry(attack, seed, gap) for attack, gap in (("a", 0.4), ("bb", 0.0)) for seed in (0, 1, 2)]
    rows = combine_tests(entries)
    assert [row.attack for row in rows] == ["a", "bb"]
    for row in rows:
        mine = measured_by([one for one in entries if one.attack == row.attack])
        assert row.welch_p == pytest.approx(cauchy_combination([test.welch_p for test in mine]))
        assert row.p == max(row.welch_p, row.permutation_p or 0.0)
        assert row.n == 600
        assert row.seeds == 3
        assert row.effect is not None
        assert row.effect.value == pytest.approx(np.mean([test.effect.value for test in mine if test.effect]))
    assert [row.holm_p for row in rows] == holm([row.p for row in rows])
    assert all(row.family == 2 for row in rows)


def test_attacks_on_another_target_are_another_family() -> None:
    rows = combine_tests([entry("a", 0, 0.5), entry("a", 0, 0.5, "other")])
    assert [row.family for row in rows] == [1, 1]
    assert all(row.holm_p == row.p for row in rows)


def test_the_most_cautious_seed_decides() -> None:
    entries = [
        entry("a", seed, gap, least_share=LeastShare(low, None, 200))
        for seed, gap, low in ((0, 1.0, 0.5), (1, 0.5, 0.2), (2, 0.8, 0.4))
    ]
    (row,) = combine_tests(entries)
    assert row.least_share == 0.2
    assert f"t least 20 % of {SIDES.candidates} were used (95 % confidence)." in say("whole", row, SIDES)
    needed = [test.needed.value for test in measured_by(entries) if test.needed is not None]
    assert row.needed is not None and row.needed.value == max(value for value in needed if value is not None)
    (row,) = combine_tests([entry("a", 0, 1.0), entry("a", 1, -1.0)])
    assert row.direction == "mixed"
    assert row.needed is None or row.needed.value is None
    assert "from seed to seed" in say("whole", row, SIDES)


def test_known_members_that_recur_widen_the_share_alone() -> None:
    share = Estimate(0.5, 0.4, 0.6, 90)
    entries = [entry("a", seed, 0.5, share=share) for seed in (0, 1)]
    (fresh,), (known,) = combine_tests(entries), combine_tests(entries, known_overlap=1.0)
    assert fresh.share is not None and known.share is not None
    assert (fresh.share.n, known.share.n) == (180, 90)
    assert known.share.ci95 == pytest.approx((0.4, 0.6))
    assert (known.effect, known.n) == (fresh.effect, fresh.n)


def test_a_result_in_the_wrong_direction_is_told_and_no_evidence() -> None:
    (row,) = combine_tests([entry("a", 0, -0.8)])
    assert row.direction == "lower"
    assert row.p > 0.99
    assert row.reversed_p is not None and row.reversed_p < 1e-4
    assert "no evidence" in say("whole", row, SIDES)


def seen(report: dict[str, Any]) -> str:
    return say("power", typed(report), evidence_of(report))


def trusted(report: dict[str, Any]) -> str:
    return say("believed", typed(report), evidence_of(report))


def test_what_a_small_audit_cannot_see(report: dict[str, Any]) -> None:
    assert ".554 or more if 100 % of the candidates were used, .930 or more if 10 %" in say(
        "power", typed(report), evidence_of(report)
    )
    assert "if 1 % were used, no AUC is enough" in seen(report)
    assert "2.27 %" in seen(report)
    assert trusted(report).startswith("By lot: ")
    report["validity"]["by"] = "choice"
    assert trusted(report).startswith("A classifier given only files and pixels")
    report["evidence"] |= {"n_candidate": 2, "n_control": 2, "fpr_floor": 1.0, "grouped": True}
    report["evidence"]["power"] = [{"used": 1.0}]
    assert "2 against 2 groups of images are too few" in seen(report)
    assert "only if controls are surely unused and otherwise like candidates (exchangeable)" in say(
        "believed", typed(report), evidence_of(report)
    )


def evidence_of(report: dict[str, Any]) -> Evidence:
    return part_from_json(Evidence, report["evidence"])


def test_flags_that_cannot_come_are_explained(report: dict[str, Any]) -> None:
    samples = replace(evidence_of(report).samples[0], flagged=0)
    told = "With 440 controls no single image can be flagged alone; at least 20 must stand out together."
    assert told in say("flagged", samples, SIDES)
    assert "about 8,799 controls" in say("flagged", samples, SIDES)
    assert "alone" not in say("flagged", replace(samples, least_flags=1), SIDES)
    assert "182 of 440 candidates are flagged (about 1 in 10 flags is an error: false" in say(
        "flagged", replace(samples, flagged=182, fdr=0.1), SIDES
    )
    assert say("flagged", replace(samples, flagged=1), SIDES) == (
        "1 of 440 candidates is flagged (a flag may be an error: false discovery rate 5 %)."
    )


def test_images_that_are_no_suspects_are_folded_away(report: dict[str, Any]) -> None:
    """Where nothing is flagged the highest scores are nobody's fault: folded, and every row says so."""
    flagged = render_html(typed(report), {})
    assert "none of them evidence" not in flagged
    assert flagged.count('<td class="figure">flagged</td>') == 6
    for samples in report["evidence"]["samples"]:
        samples["flagged"] = 0
        for row in samples["top"]:
            row["q_value"] = 0.4
    page = render_html(typed(report), {})
    folded = page.index("<details><summary>The 6 highest, none of them evidence</summary>")
    assert folded < page.index("pool/000000") < page.index("</table></div>\n</details>", folded)
    assert page.count('<td class="figure">none</td>') == 6
    assert '<td class="figure">flagged' not in page


def pictured(flagged: int, least: float) -> dict[str, Any]:
    """A leak of candidates, so many of which are flagged; only the primary attack's bound of their share counts."""
    report = make_asked()
    report["validity"] = {"verdict": "leak"}
    report["evidence"]["samples"][0] |= {"flagged": flagged}
    for row in report["evidence"]["tests"]:
        row["least_share"] = least if row.get("primary") else 0.99
    return report


@pytest.mark.parametrize(
    ("flagged", "least", "expected"),
    [(164, 0.9312, (37, 56)), (0, 0.5, (0, 50)), (440, 0.2, (100, 0)), (4, 0.29, (0, 29))],
)
def test_a_picture_of_a_hundred_dots(flagged: int, least: float, expected: tuple[int, int]) -> None:
    """Rounded down; images that can be named hold errors, so their number is no lower bound of those used."""
    report = pictured(flagged, least)
    found = dots(typed(report))
    assert found is not None
    assert (found.named, found.used) == expected
    assert len(found.kinds) == 100 and found.kinds.count("unknown") == 100 - sum(expected)
    assert f"Of every 100 of your images, at least {round(100 * least)} were used (95 % confidence)" in found.words
    assert ("about 1 in 20 of those by error" in found.words) == bool(flagged)
    assert ("none of them can be named" in found.words) == (not flagged)
    report["validity"]["by"] = "choice"
    by_choice = dots(typed(report))
    assert by_choice is not None
    assert by_choice.words == f"If nothing but training sets the groups apart: of{found.words[2:]}"


def test_no_picture_without_a_leak() -> None:
    leak = pictured(396, 0.9)
    assert dots(typed(leak)) is not None
    assert dots(typed(leak | {"validity": {"verdict": "no-evidence"}})) is None
    del leak["evidence"]
    assert dots(typed(leak)) is None
    assert dots(typed(pictured(0, 0.001))) is None
