"""The verdict in words and in the terminal: the numbers said are those measured."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from rich.console import Console

from mi_core.report import terminal_table, wording


def said(report: dict[str, Any], width: int = 80) -> str:
    console = Console(width=width, color_system=None, record=True, file=None, force_terminal=False)
    with console.capture() as capture:
        console.print(terminal_table(report))
    return capture.get()


def with_verdict(report: dict[str, Any], verdict: str, **low: float) -> dict[str, Any]:
    changed = copy.deepcopy(report)
    changed["validity"]["verdict"] = verdict
    for name, value in low.items():
        changed["validity"][name]["ci95"][0] = value
    return changed


@pytest.mark.parametrize(
    ("verdict", "title", "words"),
    [
        ("leak", "Leak", "gives away which of these images"),
        ("no-evidence", "No evidence of a leak", "not proof that nothing leaks"),
        ("confounded", "Confounded", "must not be read as a leak"),
    ],
)
def test_each_verdict_has_its_sentence(verdict: str, title: str, words: str, report: dict[str, Any]) -> None:
    answer = wording.answer(with_verdict(report, verdict))
    assert answer.title == title
    assert words in answer.sentence
    assert "encodermi-v on the projection output" in answer.sentence
    assert f"{report['validity']['attack_auc']['value']:.3f}".removeprefix("0") in answer.sentence


def test_without_controls_nothing_is_claimed(report: dict[str, Any]) -> None:
    del report["validity"]
    answer = wording.answer(report)
    assert answer.verdict == "undecided"
    assert "says nothing about training" in answer.sentence
    assert answer.conditions == ()


def test_conditions_hold_when_the_lower_bound_is_above(report: dict[str, Any]) -> None:
    names = [condition.holds for condition in wording.answer(report).conditions]
    assert names == [True, True, False, False]
    flipped = with_verdict(report, "confounded", delta_auc=-0.01, blind_auc=0.51)
    assert [condition.holds for condition in wording.answer(flipped).conditions] == [False, True, True, False]


def test_far_needs_both_differences_far(report: dict[str, Any]) -> None:
    assert "far better" in wording.answer(report).sentence
    assert "far better" not in wording.answer(with_verdict(report, "leak", delta_control_auc=0.05)).sentence


def test_the_terminal_fits_and_holds_the_numbers(report: dict[str, Any]) -> None:
    text = said(report)
    assert all(len(line) <= 80 for line in text.splitlines())
    assert "Leak" in text
    for name in ("encodermi-t", "encodermi-v", "encodermi-s", "lpla", "Pre-training encoders"):
        assert name in text
    lead = next(row for row in report["pooled"] if row.get("primary") and row["epoch"] == 400)
    line = next(line for line in text.splitlines() if line.strip().startswith("encodermi-v  "))
    assert f"{lead['auc']['value']:.3f}".removeprefix("0") in line
    assert f"{lead['auc']['n']:,}" in line


def test_the_terminal_does_not_read_names_as_markup(short_report: dict[str, Any]) -> None:
    short_report["name"] = "[bold]x[/bold]"
    assert "[bold]x[/bold]" in said(short_report)
