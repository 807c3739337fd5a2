"""Images whose truth nobody knows are called nothing else, and nothing is measured by that truth."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from mi_core.report.contents import schema
from mi_core.report.defenses import compare_defenses
from mi_core.report.figures.drawing import FigureData
from mi_core.report.figures.figures import draw_figures
from mi_core.report.model.as_json import part_as_json
from mi_core.report.model.defenses import DefendedEncoder
from mi_core.report.model.report import report_from_json as typed
from mi_core.report.page.html import render_html
from tests.mi_core.report.page.page import Page, said

UNKNOWN = ("member", "Accuracy", "accuracy", "Precision", "precision", "Recall", "recall", "true-positive")


def shown(report: dict[str, Any], data: FigureData) -> dict[str, str]:
    """Every text that a reader gets, by where it stands."""
    figures = draw_figures(typed(report), data)
    drawn = {name: f"{name} {drawing.title} {drawing.alt}" for name, drawing in figures.items()}
    return {"page": Page(render_html(typed(report), figures)).text, "terminal": said(report), **drawn}


def unrelated(text: str) -> str:
    """Without what speaks of other things: utility, and the fixture's threat models and caveats."""
    for words in (
        "Downstream accuracy of the encoders", "downstream accuracy", "an own encoder", "some known members",
        "Few members, mild augmentation", "member attacks",
    ):  # fmt: skip
        text = text.replace(words, "")
    return text


def test_candidates_are_never_called_members(asked: dict[str, Any], figure_data: FigureData) -> None:
    asked["methods"] = {}
    asked["caveats"] = []
    asked["encoders"]["target"]["train_on"] = asked["encoders"]["shadow"]["train_on"] = "unknown"
    asked["queries"]["entries"] = []
    for row in (*asked["attacks"], *asked["pooled"]):
        row["reference"] = "shadow"
        row["shadow"] = "shadow"
    for place, text in (told := shown(asked, figure_data)).items():
        for word in UNKNOWN:
            assert word not in unrelated(text), (place, word)
    page = told["page"]
    assert "Were your 440 images used to train this encoder?" in page
    assert "your 440 images, 440 control images" in page
    assert "300 of your 440 images are flagged" in page
    assert "AUC" in page


def test_the_schema_holds_the_rates_back(asked: dict[str, Any], short_report: dict[str, Any]) -> None:
    valid = Draft202012Validator(schema()).is_valid
    assert valid(asked)
    assert valid(short_report)
    assert valid(short_report | {"membership": "known"})
    assert not valid(short_report | {"membership": "asked"})
    assert not valid(asked | {"membership": "known"})
    del asked["membership"]
    assert not valid(asked)


@pytest.mark.parametrize("fixture", ["asked", "short_report"])
def test_sweeps_targets_and_defenses_are_compared_by_what_there_is(
    fixture: str, request: pytest.FixtureRequest
) -> None:
    report = request.getfixturevalue(fixture)
    measured = "AUC" if fixture == "asked" else "accuracy"
    other = [copy.deepcopy(row) | {"target": "other"} for row in report["pooled"]]
    for row in other:
        row["auc"]["value"] -= 0.05
        row["auc"]["ci95"] = [row["auc"]["value"] - 0.01, row["auc"]["value"] + 0.01]
    points = [("a", report["pooled"]), ("b", [row | {"target": "target"} for row in other])]
    sweep = {"name": "x", "points": [{"label": label, "rows": rows} for label, rows in points]}
    both = report | {"pooled": [*report["pooled"], *other], "sweeps": [sweep]}
    both["encoders"] = report["encoders"] | {"other": report["encoders"]["shadow"]}
    served: dict[str, Any] = {
        "defense": "noise",
        "label": "noise",
        "target": "target",
        "served": "other",
        "parameters": {},
    }
    defended = DefendedEncoder(**served, numbers={"epsilon": 1.0, "gamma": 0.077})
    both["defenses"] = part_as_json(compare_defenses(typed(both), [defended]))
    drawn = draw_figures(typed(both), FigureData())
    for name in ("compare-targets", "compare-utility", "sweep-x", "defenses-attacks-target"):
        assert drawn[name].alt.lower().startswith(f"attack {measured}".lower()), name
    assert f"{measured} of the strongest attack" in drawn["defenses-tradeoff-target"].alt
    assert Draft202012Validator(schema()).is_valid(both)
    page, text = Page(render_html(typed(both), drawn)).text, said(both)
    assert ("Its accuracy" in page) == ("attack accuracy" in page) == (fixture != "asked")
    assert "Sweep of x" in page and "counts only if the scale of the noise was chosen without them" in page
    assert "Sweep of x" in text or fixture != "asked"  # no accuracy has changed here
