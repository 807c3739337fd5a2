"""The verdict in words and in the terminal: the numbers said are those measured."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from rich.console import Console

from mi_core.report.model.report import report_from_json as typed
from mi_core.report.page.html import render_html
from mi_core.report.terminal import terminal_table
from mi_core.report.words import answers, wording
from tests.mi_core.report.page.page import Page
from tests.mi_core.validity.test_verdict import REASONS


def said(report: dict[str, Any], width: int = 80) -> str:
    console = Console(width=width, color_system=None, record=True, file=None, force_terminal=False)
    with console.capture() as capture:
        console.print(terminal_table(typed(report)))
    return capture.get()


def flat(text: str) -> str:
    """The words in one line, without the frame around them."""
    return " ".join(text.replace("│", " ").split())


def with_verdict(report: dict[str, Any], verdict: str, reason: str = "", **low: float) -> dict[str, Any]:
    changed = copy.deepcopy(report)
    found = changed["validity"]
    reasons = {"leak": "robust", "confounded": "checks-differ", "no-evidence": "nothing-found"}
    found |= {"by": "choice", "verdict": verdict, "reason": reason or reasons.get(verdict, "no-checks")}
    for name, value in low.items():
        changed["validity"][name]["ci95"][0] = value
    return changed


@pytest.mark.parametrize(
    ("verdict", "reason", "title", "words"),
    [
        ("leak", "robust", "Leak", "would have to be at least"),
        ("no-evidence", "nothing-found", "No evidence of a leak", "This does not prove that it reveals nothing."),
        ("confounded", "checks-differ", "Confounded", "may come from how the groups differ, not from training"),
        ("undecided", "no-checks", "Undecided", "a check was not made without which nothing may be called a leak"),
        ("undecided", "untrained-references", "Undecided", "compared with untrained encoders only"),
        ("undecided", "after-looking", "Undecided", "chosen after looking"),
        ("undecided", "encoder-broken", "Undecided", "does not recognise images"),
    ],
)
def test_each_verdict_has_its_sentence(
    verdict: str, reason: str, title: str, words: str, report: dict[str, Any]
) -> None:
    answer = wording.answer(typed(with_verdict(report, verdict, reason)))
    assert answer.title == title
    plain = " ".join((answer.headline, *answer.lines))
    assert words in plain
    assert "By choice: somebody chose the two groups" in plain and "SaTML 2025" in plain
    assert not any(term in plain for term in ("AUC", "n 2,640", "encodermi", "interval", "["))
    assert "encodermi-v on the projection output" in answer.sentence
    assert f"{report['validity']['attack_auc']['value']:.3f}".removeprefix("0") in answer.sentence


def test_every_reason_has_words() -> None:
    said = {reason for verdict, reasons in REASONS.items() for reason in reasons if verdict in ("leak", "undecided")}
    said |= {"no-evidence", "confounded"}
    for words in (*answers.HEADLINES.values(), answers.SENTENCES):
        assert set(words) == said | {"close"}
    assert set(answers.PARTS) == said


def test_another_attack_is_named(report: dict[str, Any]) -> None:
    found = with_verdict(report, "undecided", "another-attack")
    found["validity"] |= {"other_attack": "lpla on the backbone output", "other_p": 0.0004}
    answer = wording.answer(typed(found))
    assert answer.headline.endswith("but lpla on the backbone output found something.")
    assert "lpla on the backbone output, finds more than chance explains" in " ".join(answer.lines)
    assert "Register lpla on the backbone output as the attack of the verdict" in " ".join(answer.lines)
    assert "0004" not in said(found)  # by choice there is no p-value beside another verdict than leak


def test_after_no_answer_no_auc_is_bold(report: dict[str, Any]) -> None:
    for verdict, bold in (("leak", True), ("no-evidence", True), ("confounded", False), ("undecided", False)):
        page = render_html(typed(with_verdict(report, verdict)), {})
        assert ("<strong>.9" in page) is bold
    assert ".confounded ~ * .point, .undecided ~ * .point { font-weight: 400; }" in page


def test_a_close_call_does_not_say_that_the_groups_differ(report: dict[str, Any]) -> None:
    for low, said in ((0.502, "could not be told apart from groups that differ"), (0.54, "differ by themselves")):
        found = with_verdict(report, "confounded")
        found["validity"]["blind_auc"] = {"value": 0.56, "ci95": [low, 0.618], "n": 749}
        answer = wording.answer(typed(found))
        assert answer.headline.startswith("No answer: ") and said in answer.headline


@pytest.mark.parametrize("membership", ["known", "asked"])
def test_a_leak_says_how_sure_on_what_and_what_not(membership: str, report: dict[str, Any]) -> None:
    """The four parts, in this order, in the page and in the terminal."""
    report["membership"] = membership
    report["validity"]["registered"] = True
    answer = wording.answer(typed(report))
    labels = ["How the groups came about", "", "How sure", "What it rests on", "What it does not say"]
    assert [label for label, _ in answer.parts] == labels
    rests = dict(answer.parts)["What it rests on"]
    assert "1,320" in rests and "in 3 repetitions" in rests and "chosen before the encoder was queried" in rests
    for shown in (Page(render_html(typed(report), {})).text, flat(said(report))):
        places = [shown.index(label) for label in (answer.headline, *filter(None, labels), "In numbers")]
        assert places == sorted(places)
    del report["pooled"], report["attacks"][:]
    assert "What it rests on" not in dict(wording.answer(typed(report)).parts)


def test_without_controls_nothing_is_claimed(report: dict[str, Any]) -> None:
    del report["validity"]
    answer = wording.answer(typed(report))
    assert answer.verdict == "undecided"
    assert answer.sentence.endswith("images), beside no check.")
    assert answer.conditions == ()


def test_an_auc_is_told_as_what_it_is(report: dict[str, Any]) -> None:
    report = with_verdict(report, "leak")
    report["validity"]["attack_auc"]["value"] = 0.937
    answer = wording.answer(typed(report))
    assert any("tells which is which in 94 of 100 cases; guessing gives 50" in line for line in answer.lines)
    assert any("(50 of 100)" in line and "found nothing" in line for line in answer.lines)
    report["validity"]["blind_auc"] |= {"value": 0.6, "ci95": [0.56, 0.64]}
    beyond = next(line for line in wording.answer(typed(report)).lines if "60 of 100" in line)
    assert "found nothing" not in beyond
    assert "The attack finds more." in beyond
    confounded = wording.answer(typed(with_verdict(report, "confounded")))
    assert not any("The attack finds more." in line for line in confounded.lines)


def test_a_leak_says_what_it_does_not_mean(report: dict[str, Any]) -> None:
    def limits(report: dict[str, Any]) -> str:
        return " ".join(wording.answer(typed(report)).lines)

    assert "does not say: That anybody copied, stored or published" in limits(report)
    assert "the use was not allowed" not in limits(report)
    report["membership"] = "asked"
    assert "or that the use was not allowed" in limits(report)
    assert "holds only if the control images come from the same source as yours" in limits(report)
    assert "copied" not in limits(with_verdict(report, "no-evidence"))
    assert "neither that your images were used nor that they were not" in limits(with_verdict(report, "confounded"))


def test_one_report_names_one_sensitivity(report: dict[str, Any]) -> None:
    """What could have been missed is the same number in the head and further down."""
    quiet = with_verdict(report, "no-evidence")
    quiet["evidence"]["power"][0]["auc"] = 0.588
    answer = wording.answer(typed(quiet))
    sure = dict(answer.parts)["How sure"]
    assert "a leak is usually found if the attack is right 59 times in 100 and all images were used" in sure
    for shown in (render_html(typed(quiet), {}), said(quiet)):
        assert "the AUC of those used is .588 or more if 100 % of the candidates were used" in flat(shown)
        assert "could go unseen" not in shown
        assert "above the blind classifier" not in shown


def test_an_encoder_that_does_not_work_is_told_first(report: dict[str, Any]) -> None:
    fault = "The encoder target: this encoder recognises images no better than an untrained one. Wrong weights file?"
    quiet = with_verdict(report, "undecided", "encoder-broken")
    quiet["validity"]["warning"] = fault
    answer = wording.answer(typed(quiet))
    assert answer.headline == "No answer: with these views the encoder does not recognise images."
    assert "says nothing about the encoder you meant" in answer.lines[1]
    for shown in (Page(render_html(typed(quiet), {})).text, flat(said(quiet))):
        assert shown.index("Undecided") < shown.index(fault) < shown.index("AUC")
        assert "No evidence" not in shown
    del quiet["validity"]
    assert wording.answer(typed(quiet)).headline != answer.headline
    leak = with_verdict(report, "leak")
    leak["validity"]["warning"] = fault
    assert fault in render_html(typed(leak), {})
    assert "treats the members differently" in wording.answer(typed(leak)).headline


def test_nothing_is_called_trained_that_was_not(report: dict[str, Any]) -> None:
    assert wording.stages(typed(report))["pretrain"] == "Pre-training encoders"
    report["encoders"] = {"target": {"load": "open_clip:ViT-B-32", "layout": "x", "fingerprint": "0"}}
    report["encoders"]["target"] |= {"weights": "w", "preprocessing": "p", "consistency": "finds the other view."}
    for shown in (render_html(typed(report), {}), said(report)):
        assert "Pre-training" not in shown
        assert "Loading encoders" in shown


def test_of_every_condition_a_yes_speaks_for_a_leak(report: dict[str, Any]) -> None:
    (lot,) = wording.answer(typed(report)).conditions
    assert (lot.measured, lot.needed, lot.holds) == (".0001 or less", "at most .01", True)
    chosen = wording.answer(typed(with_verdict(report, "leak"))).conditions
    assert [condition.holds for condition in chosen] == [True] * 6
    flipped = with_verdict(report, "confounded", delta_auc=-0.01, blind_auc=0.51)
    flipped["validity"]["blind_auc"]["ci95"][1] = 0.9
    assert [one.holds for one in wording.answer(typed(flipped)).conditions] == [
        False,
        False,
        True,
        True,
        False,
        True,
    ]


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


def test_the_short_form_for_the_terminal(report: dict[str, Any]) -> None:
    """The verdict, its controls and the primary table; the names of everything else."""
    console = Console(width=100)
    with console.capture() as capture:
        console.print(terminal_table(typed(report), whole=False))
    text = capture.get()
    lead = next(row for row in report["pooled"] if row.get("primary"))
    assert f"Attacks on {lead['target']}, {lead['output']} output" in text
    assert text.count("Attacks on") == 1
    assert "What a leak takes" in text
    assert "In the report, and here with -v: other outputs" in " ".join(text.split())
    assert "Where the time went" not in text
    with console.capture() as capture:
        console.print(terminal_table(typed(report)))
    assert len(capture.get().splitlines()) > 1.5 * len(text.splitlines())


def test_a_check_that_saw_nothing_is_no_reason_for_confounded(report: dict[str, Any]) -> None:
    """Only checks whose intervals lie above .5 tell the groups apart."""
    found = with_verdict(report, "confounded", "checks-differ")
    found["validity"] |= {
        "blind_auc": {"value": 0.841, "ci95": [0.81, 0.87], "n": 749},
        "control_auc": {"value": 0.523, "ci95": [0.48, 0.56], "n": 749},
    }
    answer = wording.answer(typed(found))
    told = " ".join(answer.lines)
    assert "(84 of 100) tells the two groups apart that often" in told and "52 of 100" not in told
    assert "AUC .841" in answer.sentence and ".523" not in answer.sentence
    assert {
        one.name.partition(" of ")[2]: one.holds for one in answer.conditions if one.name.startswith("AUC of ")
    } == {
        "the classifier that never queries the encoder": False,
        "the same attack on reference encoders that did not see the image": True,
    }


def test_an_attack_below_guessing_is_explained(report: dict[str, Any]) -> None:
    found = with_verdict(report, "confounded", "checks-differ")
    found["validity"]["attack_auc"] = {"value": 0.443, "ci95": [0.4, 0.48], "n": 749}
    assert "that is no sign of use, nor of the opposite" in " ".join(wording.answer(typed(found)).lines)
    found["validity"]["attack_auc"] = {"value": 0.49, "ci95": [0.4, 0.58], "n": 749}
    assert "nor of the opposite" not in " ".join(wording.answer(typed(found)).lines)
