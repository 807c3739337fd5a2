"""How numbers are written: one way for one kind of quantity, and none as a power of ten."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable

import pytest

from mi_core.records import Estimate
from mi_core.report.figures.drawing import FigureData
from mi_core.report.figures.figures import draw_figures
from mi_core.report.model.report import report_from_json as typed
from mi_core.report.page.html import render_html
from mi_core.report.words.numbers import chance, count, percent, plain, rate, settings, share, small, times
from mi_core.report.words.sentences import rate_or_share, sides_of
from tests.mi_core.report.conftest import MEMORISED, REFUTED, make_asked, make_report, search
from tests.mi_core.report.page.page import Page, said

POWER = re.compile(r"\d[eE][+-−]?\d|×\s*10")
WAYS: tuple[Callable[[float], str], ...] = (
    rate,
    percent,
    plain,
    chance,
    small,
    count,
    times,
    lambda value: settings({"noise": value}),
)


@pytest.mark.parametrize("way", WAYS)
def test_no_number_is_a_power_of_ten(way: Callable[[float], str]) -> None:
    for exponent in range(-12, 13):
        for lead in (1.0, 1.234567, 9.9999):
            assert not POWER.search(way(lead * 10.0**exponent)), (lead, exponent)


def test_digits_that_count_are_kept() -> None:
    assert [plain(value) for value in (0.0, 1e-9, 123456.0, -0.0371)] == ["0", "0.000000001", "123,000", "−0.0371"]
    assert plain(float("inf")) == "inf"
    assert chance(3.2e-12) == ".0000000000032"
    assert percent(-0.021) == "−2.1 %"


@pytest.mark.parametrize("size", [1e-7, 1e-5, 3e-4, 0.2, 41.0, 2.5e5, 1e7])
def test_a_page_a_figure_and_a_terminal_say_no_power_of_ten(size: float, figure_data: FigureData) -> None:
    """Over sizes of what has no scale of its own: deltas, epsilons, scores, settings and p-values."""
    whole = size == 41.0  # other figures have no such size in them
    report = make_report() if whole else make_report(epochs=(400,))
    low = min(size, 1.0)
    report["dp_audit"] = [copy.deepcopy(REFUTED) | {"epsilon": size, "delta": low, "p_value": low}]
    report["memorisation"] = [MEMORISED]
    report["evidence"]["tests"][0] |= {"p": low, "holm_p": low, "welch_p": low, "least_share": low}
    report["evidence"]["fpr_floor"] = low
    report["tuning"] = search(0.62)
    for row in report["tuning"]["rows"]:
        row |= {"winner": False, "parameters": {"defenses.0.settings.scale": size}, "strongest": "lpla"}
        row["utility_loss"] = low
    report["tuning"]["winner"]["parameters"] = {"defenses.0.settings.scale": size}
    scaled = tuple(
        type(one)(one.attack, one.target, one.output, one.reference, one.seed, one.score * size, one.member)
        for one in figure_data.scores[:3]
    )
    figures = draw_figures(typed(report), FigureData(scaled, figure_data.losses[:whole]))
    readable = re.sub(r"<(style|code)\b.*?</\1>", "", render_html(typed(report), figures), flags=re.DOTALL)
    told = [*Page(readable).words, *(one.alt for one in figures.values())]
    shown = said(report, 200)
    assert [text for text in (*told, *shown.splitlines()) if POWER.search(text)] == []


def test_shares_of_images_are_percentages_wherever_they_stand() -> None:
    """The share used with its interval, and of the user's images those above the control images."""
    entry = {"value": 0.62, "ci95": [0.5, 0.7], "n": 400}
    assert share(Estimate.from_json(entry)) == "62 % [50 %, 70 %]"
    asked = make_asked()
    for row in asked["evidence"]["tests"]:
        row["share"] = entry
    text = Page(render_html(typed(asked), {})).text
    assert "62 % [50 %, 70 %] n 400" in text and ".620 [" not in text
    (row,) = (row for row in asked["pooled"] if row.get("primary"))
    above = rate_or_share(Estimate.from_json(row["tpr_at_fpr"]["0.1"]), sides_of(typed(asked)))
    assert above.count("%") == 3 and f"{above} n 440" in text
    shown = said(asked, 200)
    assert "share of your images used: 62 % [50 %, 70 %]" in shown.lower()
    known = make_report((0,), (400,))
    rated = Estimate.from_json(known["pooled"][0]["tpr_at_fpr"]["0.1"])
    assert "%" not in rate_or_share(rated, sides_of(typed(known)))
