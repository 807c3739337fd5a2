"""Promises together on the page and in the terminal: the numbers of report.json, in plain words."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest

from mi_core.defenses.composition import METHODS
from mi_core.defenses.sensitivity import ADJACENCIES
from mi_core.report.contents import schema
from mi_core.report.model.as_json import part_from_json
from mi_core.report.model.promises import Composition
from mi_core.report.model.report import report_from_json as typed
from mi_core.report.page.html import render_html
from mi_core.report.words import composition
from mi_core.report.words.composition import MEANING, basis, sentence
from tests.mi_core.report.page.page import page_that_says


def row(name: str, epsilon: float, **more: Any) -> dict[str, Any]:
    known = {"adjacencies": ["replace-one", "leave-one-out"], "mechanism": "gaussian"}
    return {"encoder": name, "epsilon": epsilon, "delta": 1e-5, **known, **more}


TWO: dict[str, Any] = {
    "encoders": [row("target+strong", 1.0), row("target+weak", 2.0)],
    "seeds": [0],
    "seed": 0,
    "images": 1440,
    "epsilon": 2.2345,
    "basic": 3.0,
    "delta": 2e-5,
    "adjacency": "replace-one",
    "method": "gaussian",
}
MIXED = TWO | {
    "encoders": [
        row("target+noise", 1.0, adjacencies=["replace-one"], mechanism="unknown", gamma=0.077),
        row(
            "target+dp-sgd",
            3.0,
            adjacencies=["leave-one-out"],
            mechanism="sampled-gaussian",
            converted={"epsilon": 5.3, "delta": 1e-5},
        ),
    ],
    "seeds": [0, 1],
    "seed": 1,
    "epsilon": 6.3,
    "basic": 6.3,
    "method": "sum",
    "gamma": 0.077,
    "hint": "pip install 'encoder-audit[dp]'",
}
NOTHING = {name: part for name, part in MIXED.items() if name not in ("epsilon", "basic", "gamma")} | {"delta": 1.0}


def part(entry: dict[str, Any]) -> Composition:
    return part_from_json(Composition, entry)


@pytest.fixture
def together(short_report: dict[str, Any]) -> dict[str, Any]:
    return short_report | {"composition": [TWO, MIXED, NOTHING]}


def test_the_promise_is_one_sentence() -> None:
    assert sentence(part(TWO)) == (
        "Whoever publishes “target+strong” and “target+weak” together promises epsilon 2.23 at delta .00002, "
        "not epsilon 2."
    )
    many = TWO | {"encoders": [row(str(number), 1.0) for number in range(5)]}
    assert sentence(part(many)).startswith("Whoever publishes these 5 encoders together promises epsilon 2.23")
    three = TWO | {"encoders": [row(name, 1.0) for name in "abc"]}
    assert sentence(part(three)).startswith("Whoever publishes “a”, “b” and “c” together")


def test_a_tighter_sum_below_one_of_its_parts_is_explained() -> None:
    tight = TWO | {"epsilon": 1.9, "method": "numerical"}
    assert sentence(part(tight)).endswith("together promises epsilon 1.9 at delta .00002.")
    assert "only because its delta is larger, .00002, or because it is computed more tightly" in basis(part(tight))
    assert "more tightly" not in basis(part(TWO))


def test_gammas_of_other_images_are_no_bound() -> None:
    assert "fails with a chance of at most .077." in basis(part(MIXED))
    assert "no chance that the promise fails is known" in basis(part(MIXED | {"apart": True}))
    assert "counts only if the scale of the noise was chosen without them" in basis(part(MIXED))
    assert "chosen without them" not in basis(part(TWO))
    assert "at most" not in basis(part(MIXED | {"apart": True}))


def test_what_promises_nothing_says_so() -> None:
    assert sentence(part(NOTHING)).endswith("together promises nothing: their deltas add up to 1 or more.")
    assert "sum" not in basis(part(NOTHING))
    assert sentence(part(NOTHING | {"gamma": 1.0})).endswith("sampled sensitivities fail add up to 1 or more.")


def test_what_it_rests_on_is_told() -> None:
    assert basis(part(TWO)) == (
        "Images in the training of all of them: 1,440. The epsilon is computed exactly: Gaussian noise adds in "
        "squares; the plain sum is 3. The delta is the sum of the promised ones. Adjacent data sets: one image "
        "replaced."
    )
    told = basis(part(MIXED))
    assert "The epsilon is the plain sum." in told and "Of 2 seeds, seed 1 promises least" in told
    assert "Promises about one image there or not were converted" in told
    assert "fails with a chance of at most .077" in told
    assert told.endswith("A smaller epsilon may hold; to compute it: pip install 'encoder-audit[dp]'.")
    assert "from the privacy losses; the plain sum is 3" in basis(part(TWO | {"method": "numerical"}))


def test_every_method_and_adjacency_has_words() -> None:
    assert set(composition.METHODS) == set(METHODS) and set(composition.PAIRS) == set(ADJACENCIES)
    properties = schema()["properties"]["composition"]["items"]["properties"]
    assert set(properties["method"]["enum"]) == set(METHODS)
    assert set(schema()["$defs"]["adjacency"]["enum"]) == set(ADJACENCIES)
    kinds = properties["encoders"]["items"]["properties"]["mechanism"]["enum"]
    assert set(kinds) == set(composition.MECHANISMS)


def test_the_page_and_the_terminal_say_it(together: dict[str, Any]) -> None:
    told = [text for entry in together["composition"] for text in (sentence(part(entry)), basis(part(entry)))]
    page = page_that_says(together, MEANING, *told)
    assert "target+dp-sgd one image there or not 3 as composed: epsilon 5.3, delta .00001 .00001 DP-SGD" in page.text
    assert "together one image replaced 2.23 .00002 squares added" in page.text
    assert "together one image replaced none 1 plain sum" in page.text
    assert ("a", {"href": "#composition"}) in page.tags


def test_a_report_without_such_encoders_says_nothing_of_them(short_report: dict[str, Any]) -> None:
    assert "composition" not in render_html(typed(short_report), {})


@pytest.mark.parametrize("name", ["encoders", "images", "delta", "basic", "method"])
def test_the_schema_misses_a_part(together: dict[str, Any], name: str) -> None:
    together["composition"] = [{part: value for part, value in TWO.items() if part != name}]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(together, schema())
