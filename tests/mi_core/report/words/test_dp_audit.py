"""A promise of differential privacy on the page and in the terminal: the numbers of report.json, in plain words."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest

from mi_core.report.contents import schema
from mi_core.report.model.as_json import part_from_json
from mi_core.report.model.promises import DpAudit
from mi_core.report.model.report import report_from_json as typed
from mi_core.report.page.html import render_html
from mi_core.report.words.dp_audit import MEANING, basis, sentence
from mi_core.report.words.numbers import small
from tests.mi_core.report.page.page import page_that_says

REFUTED: dict[str, Any] = {
    "target": "target+forgotten",
    "attack": "metric-loss",
    "output": "logits",
    "epoch": 20,
    "seeds": [0, 1],
    "kind": "mislabelled",
    "canaries": 600,
    "inside": 301,
    "tried": [{"guesses": 60, "correct": 58}, {"guesses": 1200, "correct": 1001}],
    "guesses": 1200,
    "correct": 1001,
    "confidence": 0.95,
    "family": "gaussian",
    "delta": 1e-5,
    "epsilon": 2.714,
    "most": 6.32,
    "mu": 0.61,
    "promised": {"epsilon": 1.0, "delta": 1e-5, "by": "config"},
    "p_value": 0.0004,
    "verdict": "refuted",
}
KEPT = REFUTED | {
    "target": "target+honest",
    "tried": [{"guesses": 60, "correct": 31}],
    "kind": "plain",
    "epsilon": 0.0,
    "promised": {"epsilon": 1.0, "delta": 1e-5, "by": "defense", "gamma": 0.077},
    "p_value": 1.0,
    "verdict": "not-refuted",
}
UNPROMISED = {name: part for name, part in REFUTED.items() if name not in ("promised", "p_value", "mu")} | {
    "target": "target",
    "family": "approximate",
    "verdict": "no-promise",
}


def part(entry: dict[str, Any]) -> DpAudit:
    return part_from_json(DpAudit, entry)


@pytest.fixture
def audited(short_report: dict[str, Any]) -> dict[str, Any]:
    return short_report | {"dp_audit": [REFUTED, KEPT, UNPROMISED]}


def test_a_promise_of_a_replaced_image_is_told_apart_from_the_one_that_is_judged(audited: dict[str, Any]) -> None:
    converted = KEPT | {"promised": {"epsilon": 1.34, "delta": 1e-5, "by": "defense", "replaced": 1.0}}
    jsonschema.validate(audited | {"dp_audit": [converted]}, schema())
    assert sentence(part(converted)).startswith("Promised epsilon 1.34; ")
    assert "set to an epsilon of 1 for a replaced image" in basis(part(converted))
    assert "of that its noise promises 1.34." in basis(part(converted))


def test_the_result_is_one_sentence() -> None:
    assert sentence(part(REFUTED)) == "Promised epsilon 1; this run shows at least 2.71 with 95 % confidence: refuted."
    assert sentence(part(KEPT)) == "Promised epsilon 1; this run shows at least 0 with 95 % confidence: not refuted."
    assert sentence(part(UNPROMISED)) == "No epsilon is promised; this run shows at least 2.71 with 95 % confidence."


def test_what_it_rests_on_is_told() -> None:
    told = basis(part(REFUTED))
    assert told.startswith("1,001 of 1,200 guesses right, on 600 mislabelled canaries; delta .00001.")
    assert "Best of 2 numbers of guesses" in told and "mu of at least 0.61" in told and "would show 6.32" in told
    assert "of any mechanism" not in told and "of any mechanism" in basis(part(UNPROMISED))
    assert "random pairs" not in told and "chosen without them" not in told
    assert "counts only if the scale of the noise was chosen without them" in basis(part(KEPT))
    assert (
        "on 600 canaries" in basis(part(KEPT))
        and "Best of" not in basis(part(KEPT))
        and "random pairs" in basis(part(KEPT))
    )


def test_the_page_and_the_terminal_say_it(audited: dict[str, Any]) -> None:
    told = [text for entry in audited["dp_audit"] for text in (sentence(part(entry)), basis(part(entry)))]
    page = page_that_says(audited, MEANING, *told)
    assert small(REFUTED["p_value"]) in page.text
    assert ("li", {}) in page.tags and ("a", {"href": "#dp-audit"}) in page.tags


def test_a_report_without_canaries_says_nothing_of_them(short_report: dict[str, Any]) -> None:
    assert "dp-audit" not in render_html(typed(short_report), {}) and "canaries" not in render_html(
        typed(short_report), {}
    )


@pytest.mark.parametrize("name", ["verdict", "canaries", "epsilon"])
def test_the_schema_misses_a_part(audited: dict[str, Any], name: str) -> None:
    audited["dp_audit"] = [{part: value for part, value in REFUTED.items() if part != name}]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(audited, schema())
