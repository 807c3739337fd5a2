"""Curves over sweeps and comparisons of targets: drawn where something was compared, and nowhere else."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import jsonschema
import numpy as np
import pytest

from mi_core.report.contents import final_rows, pooled_rows, schema
from mi_core.report.figures.curves import comparison_figures, sweep_figures
from mi_core.report.figures.drawing import AttackScores, FigureData
from mi_core.report.figures.figures import draw_figures
from mi_core.report.model.as_json import part_as_json
from mi_core.report.model.attacks import Knowledge
from mi_core.report.model.report import report_from_json as typed
from mi_core.report.page.html import render_html, side_by_side
from mi_core.report.words.numbers import rate
from mi_core.report.words.sentences import say
from tests.mi_core.report.conftest import pooled
from tests.mi_core.report.page.page import Page, said


def moved(rows: list[dict[str, Any]], shift: float, queries: int) -> list[dict[str, Any]]:
    changed = copy.deepcopy(rows)
    for row in changed:
        row["accuracy"]["value"] = min(1.0, row["accuracy"]["value"] + shift)
        row["auc"]["value"] = min(1.0, row["auc"]["value"] + shift)
        row["queries"]["attack_training"] = queries * len(row["seeds"])
    return changed


@pytest.fixture
def swept(report: dict[str, Any]) -> dict[str, Any]:
    """The report with a sweep over views, in which only EncoderMI changes."""
    whole = copy.deepcopy(report)
    rows = part_as_json(final_rows(pooled_rows(typed(whole))))
    steady = [row for row in rows if row["attack"] == "lpla"]
    changing = [row for row in rows if row["attack"] != "lpla"]
    whole["sweeps"] = [
        {
            "name": "attacks.*.views",
            "points": [
                {
                    "label": str(views),
                    "value": float(views),
                    "rows": moved(changing, -0.2 / views, views * 880) + steady,
                }
                for views in (2, 4, 10)
            ],
        },
        {"name": "nothing", "points": [{"label": "a", "rows": rows}, {"label": "b", "rows": rows}]},
    ]
    return whole


def test_a_sweep_is_drawn_if_something_changed(swept: dict[str, Any]) -> None:
    jsonschema.validate(swept, schema())
    drawings = sweep_figures(typed(swept))
    assert set(drawings) == {"sweep-attacks._.views", "queries-attacks._.views"}
    alt = drawings["sweep-attacks._.views"].alt
    assert "lpla" not in alt  # it does not change
    first, last = (
        next(row for row in point["rows"] if row.get("primary"))
        for point in (swept["sweeps"][0]["points"][0], swept["sweeps"][0]["points"][-1])
    )
    ends = [f"{rate(row['accuracy']['value'])} and {rate(row['auc']['value'])}" for row in (first, last)]
    assert "Attack accuracy and AUC over views, first to last: encodermi-t from" in alt
    assert f"encodermi-v from {ends[0]} to {ends[1]}" in alt


def test_what_an_audited_image_cost_is_drawn_where_that_differs(swept: dict[str, Any]) -> None:
    """In the sweep as made, what it took to fit differs; then what the audited images cost."""
    assert "against queries spent to fit the attack" in sweep_figures(typed(swept))["queries-attacks._.views"].alt
    for number, point in enumerate(swept["sweeps"][0]["points"]):
        for row in point["rows"]:
            samples = row["n_member"] + row["n_nonmember"]
            row["queries"]["evaluation"] = samples * (3 + number)
    jsonschema.validate(swept, schema())
    alt = sweep_figures(typed(swept))["queries-attacks._.views"].alt
    assert "against queries per audited image, mean" in alt
    rows = [next(row for row in point["rows"] if row.get("primary")) for point in swept["sweeps"][0]["points"]]
    first, last = (rate(row["accuracy"]["value"]) for row in (rows[0], rows[-1]))
    assert f"encodermi-v from {first} at 3 to {last} at 5" in alt


def test_the_page_and_the_terminal_show_the_points(swept: dict[str, Any]) -> None:
    page = render_html(typed(swept), draw_figures(typed(swept), FigureData()))
    assert 'id="sweeps"' in page
    point = next(row for row in swept["sweeps"][0]["points"][1]["rows"] if row.get("primary"))
    assert rate(point["accuracy"]["value"]) in page
    shown = said(swept)
    assert "Sweep of attacks.*.views: encodermi-v" in shown
    assert "Sweep of nothing" not in shown
    assert max(len(line) for line in shown.splitlines()) <= 80


def several_targets(report: dict[str, Any]) -> dict[str, Any]:
    whole = copy.deepcopy(report)
    second = copy.deepcopy(whole["attacks"])
    for entry in second:
        entry["target"] = "other"
        entry.pop("primary", None)
        if "shadow" in entry:
            entry["shadow"] = "other-shadow"
            entry["knowledge"] = {"distribution": False, "architecture": True, "algorithm": False}
    whole["attacks"] += second
    whole["pooled"] = pooled(whole["attacks"])
    whole["encoders"]["other"] = copy.deepcopy(whole["encoders"]["target"])
    whole["encoders"]["other"]["utility"]["knn"] = 0.5
    return whole


def test_targets_are_compared(report: dict[str, Any]) -> None:
    assert comparison_figures(typed(report)) == {}
    whole = several_targets(report)
    jsonschema.validate(whole, schema())
    drawings = comparison_figures(typed(whole))
    assert set(drawings) == {"compare-targets", "compare-utility"}
    assert "target, other" in drawings["compare-targets"].alt


def test_attacks_stand_side_by_side(report: dict[str, Any]) -> None:
    whole = several_targets(report)
    columns, table = side_by_side(pooled_rows(typed(whole)), "projection")
    assert columns == ["encodermi-t", "encodermi-v", "encodermi-s", "lpla"]
    assert [(target, known) for target, known, _ in table] == [
        ("target", "shadow"),
        ("target", "known samples"),
        ("other", "other-shadow: all but distribution, algorithm"),
        ("other", "known samples"),
    ]
    lpla = next(row for row in final_rows(pooled_rows(typed(whole))) if (row.attack, row.target) == ("lpla", "other"))
    assert table[3][2] == {"lpla": lpla} or table[3][2]["lpla"].output == "projection"
    page = Page(render_html(typed(whole), {})).text
    assert "other-shadow: all but distribution, algorithm" in page
    compared = page.partition("Side by side: ")[2].partition("Side by side: ")[0]
    assert "Known encodermi-t encodermi-v encodermi-s lpla target shadow" in compared and "not run" in compared
    single = Page(render_html(typed(report), {})).text
    assert "Side by side" not in single  # each attack stands once: nothing to compare
    nothing = Knowledge(distribution=False, architecture=False, algorithm=False)
    assert say("known", replace(table[2][2]["encodermi-t"], knowledge=nothing)) == "other-shadow: none"


def test_entries_that_differ_by_settings_are_pooled_apart(report: dict[str, Any]) -> None:
    entries = [
        entry | {"settings": f"p = {p}"} for entry in report["attacks"] if entry["attack"] == "lpla" for p in (1, 2)
    ]
    assert len(pooled(entries)) == 2 * len(pooled([e for e in report["attacks"] if e["attack"] == "lpla"]))


def test_what_an_attack_reads_is_drawn_beside_its_score(report: dict[str, Any]) -> None:
    generator = np.random.default_rng(0)
    member = np.arange(40) % 2 == 0
    norms = generator.normal(10, 1, 40) + member
    runs = tuple(
        AttackScores("lpla", "target", "backbone", "known", seed, norms * 2, member, 20.0, norms) for seed in (0, 1)
    )
    assert "statistic-backbone-lpla" in draw_figures(typed(report), FigureData(scores=runs))
    same = tuple(AttackScores("a", "target", "backbone", "known", 0, norms, member, 1.0, norms) for _ in (0,))
    assert "statistic-backbone-a" not in draw_figures(
        typed(report), FigureData(scores=same)
    )  # its score says it already


def test_one_picture_is_drawn_once(report: dict[str, Any]) -> None:
    """Three attacks that read the same number, one of which scores by it: a single histogram that names them."""
    generator = np.random.default_rng(0)
    member = np.arange(40) % 2 == 0
    means = generator.random(40)
    order = np.arange(40)[::-1]
    runs = (
        AttackScores("t", "target", "backbone", "s", 0, means.astype(np.float32), member, 0.5, means),
        AttackScores("v", "target", "backbone", "s", 0, generator.random(40), member, 0.5, means),
        AttackScores("s", "target", "backbone", "s", 0, generator.random(40), member[order], 0.5, means[order]),
        AttackScores("u", "target", "backbone", "s", 0, means, ~member, 0.5),
    )
    drawn = draw_figures(typed(report), FigureData(scores=runs))
    histograms = {name for name in drawn if name.startswith(("scores", "statistic"))}
    assert histograms == {f"scores-backbone-{name}" for name in "tvsu"}
    assert drawn["scores-backbone-t"].alt.endswith("v reads the same; s reads the same.")


def test_many_curves_are_spread_over_figures(report: dict[str, Any]) -> None:
    member = np.arange(40) % 2 == 0
    score = np.random.default_rng(0).normal(size=40)
    runs = tuple(
        AttackScores(attack, "target", "backbone", reference, 0, score, member)
        for reference in ("one", "two", "three")
        for attack in ("a", "b", "c")
    )
    names = {name for name in draw_figures(typed(report), FigureData(scores=runs)) if name.startswith("roc")}
    assert names == {"roc-backbone-one", "roc-backbone-two", "roc-backbone-three"}
