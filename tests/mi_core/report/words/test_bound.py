"""The upper limit of what attacks reach, on the page and in the terminal."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jsonschema
import pytest

from mi_core.records import Estimate
from mi_core.report.bounds import bound_parts
from mi_core.report.contents import schema
from mi_core.report.model.as_json import part_as_json, part_from_json
from mi_core.report.model.attacks import AttackResult
from mi_core.report.model.judgement import Bound
from mi_core.report.model.report import report_from_json as typed
from mi_core.report.page.html import render_html
from mi_core.report.words.bound import MEANING, basis, sentence
from tests.mi_core.report.page.page import page_that_says

LIMITS = [
    {"attack": "lpla", "reference": "known", "settings": "p = 1", "auc": 0.5, "low": 0.48, "high": 0.5201, "n": 880},
    {"attack": "lpla", "reference": "known", "settings": "p = 2", "auc": 0.52, "low": 0.5109, "high": 0.5432, "n": 880},
    {"attack": "encodermi-t", "reference": "shadow", "shadow": "s", "auc": 0.5, "low": 0.47, "high": 0.53, "n": 880},
]
PLAIN: dict[str, Any] = {
    "target": "target",
    "output": "backbone",
    "epoch": 20,
    "at_most": 0.5432,
    "attack": "lpla, p = 2",
    "attacks": 3,
    "planned": 4,
    "limits": LIMITS,
}
KEPT = PLAIN | {"bound": 0.55, "outcome": "met", "registered": True}
BROKEN = PLAIN | {"target": "target+noise", "bound": 0.505, "outcome": "not met", "registered": False, "planned": 3}
OPEN = PLAIN | {"bound": 0.525, "outcome": "cannot tell", "registered": True}


def part(entry: dict[str, Any]) -> Bound:
    return part_from_json(Bound, entry)


def test_the_result_is_told_with_its_attack_and_rounded_up() -> None:
    first = "AUC at most .544 (95 %): lpla, p = 2, the highest of 3 attacks on the backbone output."
    assert sentence(part(PLAIN)) == first
    assert sentence(part(KEPT)) == f"{first} The bound .55 is met."
    assert sentence(part(OPEN)) == f"{first} Whether the bound .525 is met cannot be told with so many images."
    assert sentence(part(BROKEN)) == f"{first} The bound .505 is not met: lpla has at least .510 (95 %)."
    alone = replace(part(PLAIN), attacks=1, limits=part(PLAIN).limits[:1])
    assert "lpla, p = 2, the only attack on the backbone output." in sentence(alone)


def test_what_a_reader_has_to_know_stands_beside_it() -> None:
    assert basis(part(PLAIN)).startswith("4 attacks were registered on this output: the others do not apply")
    assert basis(part(BROKEN)) == "Images, attack or bound were chosen after the first query."
    assert basis(part(PLAIN | {"planned": 3})) == ""


def test_the_page_and_the_terminal_say_it(short_report: dict[str, Any]) -> None:
    told = [text for entry in (KEPT, BROKEN) for text in (sentence(part(entry)), basis(part(entry)))]
    page = page_that_says(short_report | {"bounds": [KEPT, BROKEN]}, "target+noise", MEANING, *told)
    assert ("a", {"href": "#bound"}) in page.tags
    assert "these attacks on these images only" in MEANING
    assert 'id="bound"' not in render_html(typed(short_report), {})


@pytest.mark.parametrize("name", ["limits", "at_most", "outcome", "registered"])
def test_the_schema_misses_a_part(short_report: dict[str, Any], name: str) -> None:
    jsonschema.validate(short_report | {"bounds": [KEPT]}, schema())
    whole = short_report | {"bounds": [{part: value for part, value in KEPT.items() if part != name}]}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(whole, schema())


def result(attack: str, seed: int = 0, **more: Any) -> AttackResult:
    told: dict[str, Any] = {"target": "target", "output": "backbone", "reference": "known", "epoch": 3} | more
    auc = Estimate(0.5, 0.4, 0.6, 100)
    return AttackResult(attack=attack, seed=seed, n_member=50, n_nonmember=50, auc=auc, tpr_at_fpr={}, **told)


def test_seeds_are_pooled_attacks_and_targets_are_not() -> None:
    measured = [
        (result("lpla"), Estimate(0.52, 0.48, 0.56, 100)),
        (result("lpla", settings="p = 1"), Estimate(0.55, 0.49, 0.61, 100)),
        (result("lpla", target="target+noise"), Estimate(0.5, 0.46, 0.54, 100)),
        (result("lpla", 1), Estimate(0.50, 0.46, 0.54, 100)),
        (result("lpla", 1, settings="p = 1"), Estimate(0.53, 0.47, 0.59, 100)),
    ]
    plain, noisy = bound_parts(measured, planned={"target": 2}, bound=0.55)
    reach = 0.04 / 2**0.5  # of two independent seeds
    assert [row.settings for row in plain.limits] == [None, "p = 1"]
    assert (plain.limits[0].low, plain.limits[0].high) == pytest.approx((0.51 - reach, 0.51 + reach))
    assert (plain.at_most, plain.limits[0].n) == (pytest.approx(0.54 + 0.06 / 2**0.5), 200)
    assert (plain.attack, plain.attacks, plain.planned) == ("lpla, p = 1", 2, 2)
    assert (plain.outcome, noisy.outcome, noisy.planned) == ("cannot tell", "met", None)
    assert plain.outcome_of(0.6) == "met" and plain.outcome_of(0.501) == "cannot tell"
    again = bound_parts(measured, overlap=1.0)[0]
    assert again.limits[0].high == pytest.approx(0.51 + 0.04)
    assert (again.bound, again.outcome, again.registered) == (None, None, None)
    jsonschema.validate(part_as_json((plain, again)), schema()["properties"]["bounds"] | {"$defs": schema()["$defs"]})
