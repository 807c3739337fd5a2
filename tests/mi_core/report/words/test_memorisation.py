"""Memorisation on the page and in the terminal: the numbers of report.json, in words that claim no more."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from rich.console import Console

from mi_core.report.contents import schema
from mi_core.report.model.as_json import part_from_json
from mi_core.report.model.promises import Memorisation
from mi_core.report.model.report import report_from_json as typed
from mi_core.report.page.html import render_html
from mi_core.report.terminal import terminal_table
from mi_core.report.words.memorisation import MEANING, mean_sentence, measurement, single_sentence
from tests.mi_core.report.page.page import Page

SHOWN: dict[str, Any] = {
    "attack": "sslmem",
    "shadow": "half",
    "output": "projection",
    "epoch": 200,
    "seed": 0,
    "pairs": 4,
    "mean": {"value": 0.0213, "ci95": [0.0121, 0.0305], "n": 880},
    "memorised": 1,
    "fdr": 0.05,
    "top": [
        {"id": "digits/0007", "value": 0.31, "ci95": [0.22, 0.4], "q_value": 0.004},
        {"id": "digits/<b>9", "value": 0.29, "ci95": [-0.02, 0.6], "q_value": 0.2},
    ],
    "file": "seed-0/attacks/sslmem-0-projection-0200/memorisation.parquet",
}
NOTHING = SHOWN | {"output": "backbone", "memorised": 0, "mean": {"value": 0.0, "ci95": [-0.01, 0.01], "n": 880}}
REVERSED = SHOWN | {"mean": {"value": -0.1, "ci95": [-0.2, -0.05], "n": 880}}


def part(entry: dict[str, Any]) -> Memorisation:
    return part_from_json(Memorisation, entry)


@pytest.fixture
def measured(short_report: dict[str, Any]) -> dict[str, Any]:
    return short_report | {"memorisation": [SHOWN, NOTHING]}


def test_the_sentences_claim_what_the_intervals_show() -> None:
    assert "This training memorises images" in mean_sentence(part(SHOWN))
    assert "None is shown, since the interval contains 0" in mean_sentence(part(NOTHING))
    assert "below 0, the opposite of memorisation" in mean_sentence(part(REVERSED))
    assert "memorises images" not in mean_sentence(part(NOTHING)) + mean_sentence(part(REVERSED))
    assert single_sentence(part(NOTHING)).startswith(
        "None of the 880 images can be called memorised by itself. That does not"
    )
    assert "1 of 880 images" in single_sentence(part(SHOWN))
    assert measurement(part(SHOWN | {"settings": "shadows 4"})).startswith("sslmem (shadows 4), encoders “half”")


def test_the_page_and_the_terminal_say_it(measured: dict[str, Any]) -> None:
    jsonschema.validate(measured, schema())
    html = render_html(typed(measured), {})
    assert "<b>9" not in html
    text = Page(html).text
    for words in (MEANING, SHOWN["file"], "digits/0007", ".310 [.22, .40]"):
        assert words in text, words
    console = Console(width=400)
    with console.capture() as capture:
        console.print(terminal_table(typed(measured), whole=False))
    for entry in (SHOWN, NOTHING):
        assert (
            f"{measurement(part(entry))}: {mean_sentence(part(entry))} {single_sentence(part(entry))}" in capture.get()
        )


def test_a_row_counts_as_memorised_by_its_rank(measured: dict[str, Any]) -> None:
    rows = render_html(typed(measured | {"memorisation": [SHOWN]}), {}).split("digits/")
    assert [("yes" in row, "not shown" in row) for row in rows[1:3]] == [(True, False), (False, True)]
