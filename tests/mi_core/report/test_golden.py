"""What a reader is told, whole: one text per verdict, of the page and of the terminal, compared word by word.

After a change of words that is meant run it with ``UPDATE_GOLDEN=1``, and read the diff.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from mi_core.report.contents import schema
from mi_core.report.model.report import report_from_json as typed
from mi_core.report.page.html import render_html
from mi_core.report.words import wording
from tests.mi_core.report.conftest import make_asked, make_full, make_report
from tests.mi_core.report.page.page import Page, flat, said
from tests.mi_core.validity.test_verdict import REASONS

GOLDEN = Path(__file__).parent / "golden"
QUIET = {"value": 0.56, "ci95": [0.54, 0.618], "n": 749}


def with_verdict(report: dict[str, Any], verdict: str, reason: str) -> dict[str, Any]:
    """A report with another verdict by choice, and what belongs to its reason."""
    found = report["validity"]
    found |= {"by": "choice", "verdict": verdict, "reason": reason}
    if verdict == "confounded":
        found |= {"blind_auc": QUIET | {"ci95": [0.502, 0.618] if reason == "close" else QUIET["ci95"]}}
        found |= {"reason": "checks-differ", "attack_auc": {"value": 0.443, "ci95": [0.4, 0.48], "n": 749}}
        report["evidence"] |= {"exchangeable": False, "telling": [{"feature": "bytes", "auc": 0.99}]}
    if reason == "no-checks":
        del found["control_auc"], found["delta_control_auc"]
    if reason == "untrained-references":
        found["trained"] = False
    if reason == "another-attack":
        found |= {"other_attack": "lpla on the backbone output", "other_p": 0.0004}
    if reason == "encoder-broken":
        found["warning"] = "The encoder target recognises images no better than an untrained one."
    if verdict != "leak" and "evidence" in report:
        report["evidence"]["withheld_because"] = "groups-differ" if verdict == "confounded" else "no-leak"
        del report["evidence"]["tests"], report["evidence"]["samples"]
    return report


def compared(name: str, text: str) -> None:
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text)
    assert text.splitlines() == path.read_text().splitlines()


def registered(report: dict[str, Any]) -> dict[str, Any]:
    report["validity"]["registered"] = True
    report["data"] |= {"near_duplicates_removed": 2}
    report["data"]["roles"]["known-nonmember"] = {"n": 80, "sha256": "0" * 64}
    return report


VERDICTS = {
    "leak-by-lot": make_full,
    "leak-by-choice": lambda: registered(make_asked()),
    "confounded": lambda: with_verdict(make_asked(), "confounded", "checks-differ"),
    "no-evidence": lambda: with_verdict(make_report((0,), (400,)), "no-evidence", "nothing-found"),
    "undecided": lambda: with_verdict(make_asked(), "undecided", "no-checks"),
}


@pytest.mark.parametrize("verdict", VERDICTS)
def test_a_verdict_is_told_in_these_words(verdict: str) -> None:
    report = VERDICTS[verdict]()
    jsonschema.validate(report, schema())
    words = (word.strip() for word in Page(render_html(typed(report), {})).words)
    terminal = "\n".join(line.rstrip() for line in said(report).splitlines())
    compared(verdict, "\n".join([*filter(None, words), "", "In the terminal:", terminal, ""]))
    assert all(len(line) <= 80 for line in terminal.splitlines())


def test_every_reason_is_told_in_these_words() -> None:
    told = []
    for known in (True, False):
        for verdict, reasons in REASONS.items():
            for reason in (*reasons, *(["close"] if verdict == "confounded" else [])):
                report = with_verdict(make_report((0,), (400,)) if known else make_asked(), verdict, reason)
                if reason == "by-lot":
                    report["validity"]["by"] = "lot"
                found = wording.answer(typed(report))
                lot = [f"{one.name}: {one.measured} ({one.needed}), {one.holds}" for one in found.conditions]
                told += [f"{'known' if known else 'asked'}, {verdict}, {reason}", found.title, found.question]
                told += [found.headline, found.warning, *found.lines, found.sentence, *lot, ""]
    compared("reasons", "\n".join(told))


def test_a_reason_that_is_none_is_not_told() -> None:
    report = with_verdict(make_asked(), "undecided", "no-checks")
    report["validity"]["reason"] = "made-up"
    with pytest.raises(ValueError, match="'made-up' is no reason of a verdict"):
        wording.answer(typed(report))


def test_without_a_verdict_nothing_is_claimed() -> None:
    report = make_report((0,), (400,))
    del report["validity"]
    found = wording.answer(typed(report))
    assert (found.verdict, found.conditions) == ("undecided", ())
    assert found.sentence.endswith("images), beside no check.")


def test_an_answer_comes_before_its_numbers() -> None:
    report = registered(make_asked())
    for shown in (Page(render_html(typed(report), {})).text, flat(said(report))):
        found = wording.answer(typed(report))
        places = [shown.index(text) for text in (found.question, found.headline, "Shown one of your", "How sure")]
        assert places == sorted(places) and places[-2] < shown.index("AUC")
