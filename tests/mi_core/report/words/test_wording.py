"""The verdict in words and in the terminal: the numbers said are those measured."""

from __future__ import annotations

import copy
from typing import Any

from mi_core.report.model.report import report_from_json as typed
from mi_core.report.page.html import render_html
from mi_core.report.words import wording
from tests.mi_core.report.page.page import said


def with_verdict(report: dict[str, Any], verdict: str, reason: str = "", **low: float) -> dict[str, Any]:
    changed = copy.deepcopy(report)
    found = changed["validity"]
    reasons = {"leak": "robust", "confounded": "checks-differ", "no-evidence": "nothing-found"}
    found |= {"by": "choice", "verdict": verdict, "reason": reason or reasons.get(verdict, "no-checks")}
    for name, value in low.items():
        changed["validity"][name]["ci95"][0] = value
    return changed


def test_after_no_answer_no_auc_is_bold(report: dict[str, Any]) -> None:
    for verdict, bold in (("leak", True), ("no-evidence", True), ("confounded", False), ("undecided", False)):
        page = render_html(typed(with_verdict(report, verdict)), {})
        assert ("<strong>.9" in page) is bold
    assert ".confounded ~ * .point, .undecided ~ * .point { font-weight: 400; }" in page


def test_an_auc_is_told_as_what_it_is(report: dict[str, Any]) -> None:
    report = with_verdict(report, "leak")
    report["validity"]["attack_auc"]["value"] = 0.937
    answer = wording.answer(typed(report))
    assert any("tells which is which in 94 of 100 cases; guessing gives 50" in line for line in answer.lines)
    assert any("(right in 50 of 100)" in line and "found nothing" in line for line in answer.lines)
    report["validity"]["blind_auc"] |= {"value": 0.6, "ci95": [0.56, 0.64]}
    beyond = next(line for line in wording.answer(typed(report)).lines if "60 of 100" in line)
    assert "found nothing" not in beyond
    assert "The attack finds more." in beyond
    confounded = wording.answer(typed(with_verdict(report, "confounded")))
    assert not any("The attack finds more." in line for line in confounded.lines)


def test_nothing_is_called_trained_that_was_not(report: dict[str, Any]) -> None:
    assert wording.stages(typed(report))["pretrain"] == "Pre-training encoders"
    report["encoders"] = {"target": {"load": "open_clip:ViT-B-32", "layout": "x", "fingerprint": "0"}}
    report["encoders"]["target"] |= {"weights": "w", "preprocessing": "p", "consistency": "finds the other view."}
    for shown in (render_html(typed(report), {}), said(report)):
        assert "Pre-training" not in shown
        assert "Loading encoders" in shown


def test_the_terminal_does_not_read_names_as_markup(short_report: dict[str, Any]) -> None:
    short_report["name"] = "[bold]x[/bold]"
    assert "[bold]x[/bold]" in said(short_report)


def test_the_short_form_for_the_terminal(report: dict[str, Any]) -> None:
    """The verdict, its controls and the primary table; the names of everything else."""
    text = said(report, 100, whole=False)
    lead = next(row for row in report["pooled"] if row.get("primary"))
    assert f"Attacks on {lead['target']}, {lead['output']} output" in text
    assert text.count("Attacks on") == 1
    assert "What a leak takes" in text
    assert "In the report, and here with -v: other outputs" in " ".join(text.split())
    assert "Where the time went" not in text
    assert len(said(report, 100).splitlines()) > 1.5 * len(text.splitlines())


def test_a_check_that_saw_nothing_is_no_reason_for_confounded(report: dict[str, Any]) -> None:
    """Only checks whose intervals lie above .5 tell the groups apart."""
    found = with_verdict(report, "confounded", "checks-differ")
    found["validity"] |= {
        "blind_auc": {"value": 0.841, "ci95": [0.81, 0.87], "n": 749},
        "control_auc": {"value": 0.523, "ci95": [0.48, 0.56], "n": 749},
    }
    answer = wording.answer(typed(found))
    told = " ".join(answer.lines)
    assert "(right in 84 of 100) tells the two groups apart;" in told and "52 of 100" not in told
    assert "AUC .841" in answer.sentence and ".523" not in answer.sentence
    assert {
        one.name.partition(" of ")[2]: one.holds for one in answer.conditions if one.name.startswith("AUC of ")
    } == {
        "the classifier that never queries the encoder": False,
        "the same attack on reference encoders that did not see the image": True,
    }
