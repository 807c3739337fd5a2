"""Attribute inference in the report: means over seeds, tables, figures; and classifiers by their overfitting."""

from __future__ import annotations

import copy
from typing import Any

import jsonschema
import numpy as np
import pytest

from mi_core.report.contents import final_inferences, schema
from mi_core.report.figures.curves import attribute_figures, comparison_figures, plane, swept_inferences
from mi_core.report.figures.drawing import EmbeddingMap, FigureData
from mi_core.report.figures.figures import draw_figures
from mi_core.report.model.as_json import part_as_json, part_from_json
from mi_core.report.model.attacks import InferenceResult, InferenceRow, Sweep
from mi_core.report.model.report import report_from_json as typed
from mi_core.report.page.html import render_html
from mi_core.report.pooling import pool_inferences
from mi_core.report.words.numbers import rate
from tests.mi_core.report.conftest import BARE, estimate, pooled
from tests.mi_core.report.page.page import said


def entry(target: str, seed: int, accuracy: float, epoch: int = 100, **extra: Any) -> dict[str, Any]:
    return {
        "attribute": "race",
        "target": target,
        "output": "backbone",
        "epoch": epoch,
        "seed": seed,
        "values": 5,
        "n_auxiliary": 300,
        "accuracy": estimate(accuracy, 200),
        "majority": estimate(0.42, 200),
        **extra,
    }


def over_seeds(entries: list[dict[str, Any]]) -> tuple[InferenceRow, ...]:
    return pool_inferences(part_from_json(tuple[InferenceResult, ...], entries))


def as_json(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = part_as_json(over_seeds(entries))
    return rows


ENTRIES = [
    entry("contrastive", 0, 0.4, epoch=50),
    entry("contrastive", 1, 0.5, epoch=50),
    entry("contrastive", 0, 0.7),
    entry("contrastive", 1, 0.6),
    entry("supervised", 0, 0.45),
    entry("supervised", 1, 0.45),
]


@pytest.fixture
def inferred(report: dict[str, Any]) -> dict[str, Any]:
    whole = copy.deepcopy(report)
    whole["attribute_inference"] = as_json(ENTRIES)
    points = [
        {
            "label": f"{share:g}",
            "value": share,
            "rows": whole["pooled"][:1],
            "attribute_inference": as_json([entry("contrastive", 0, 0.5 + 0.2 * share)]),
        }
        for share in (0.9, 0.1)
    ]
    whole["sweeps"] = [{"name": "attribute_inference.*.share", "points": points}]
    return whole


def test_seeds_are_pooled_and_the_last_epoch_stands_for_the_encoder() -> None:
    rows = over_seeds(ENTRIES)
    assert [(row.target, row.epoch, row.seeds) for row in rows] == [
        ("contrastive", 50, (0, 1)), ("contrastive", 100, (0, 1)), ("supervised", 100, (0, 1)),
    ]  # fmt: skip
    assert rows[1].accuracy.value == pytest.approx(0.65)
    assert rows[1].accuracy.n == 400
    assert rows[1].accuracy.sd == pytest.approx(0.1 / 2**0.5)
    assert rows[1].n_auxiliary == 600
    assert [row.epoch for row in final_inferences(rows)] == [100, 100]


def test_attacked_samples_that_recur_count_once() -> None:
    extra = {"auxiliary_accuracy": estimate(0.9, 300), "overlap": 1.0, "auxiliary_overlap": 0.5}
    (row,) = over_seeds([entry("contrastive", seed, 0.6, **extra) for seed in (0, 1)])
    assert row.accuracy.n == row.majority.n == 200
    assert row.accuracy.ci95 == pytest.approx(estimate(0.6, 200)["ci95"])
    assert row.auxiliary_accuracy is not None and row.auxiliary_accuracy.n == 400


def test_settings_keep_rows_apart() -> None:
    rows = over_seeds([entry("t", 0, 0.5, settings="layers = 3"), entry("t", 0, 0.6, settings="layers = 5")])
    assert [row.settings for row in rows] == ["layers = 3", "layers = 5"]


def test_the_page_the_terminal_and_the_figures_show_it(inferred: dict[str, Any]) -> None:
    jsonschema.validate(inferred, schema())
    generator = np.random.default_rng(0)
    one = EmbeddingMap(
        "contrastive", "backbone", "race", generator.normal(size=(30, 2)), np.arange(30) % 2 - 1, np.arange(30) % 3,
        ("a", "b", "c"),
    )  # fmt: skip
    drawings = draw_figures(typed(inferred), FigureData(maps=(one,)))
    names = {
        "attributes-accuracy", "attributes-sweep-attribute_inference._.share",
        "attributes-map-contrastive-backbone-race",
    }  # fmt: skip
    assert names <= set(drawings)
    assert "race from contrastive, backbone .650, guessing .420" in drawings["attributes-accuracy"].alt
    # points stand in the order of their values
    assert f"from {rate(0.52)} to {rate(0.68)}" in drawings["attributes-sweep-attribute_inference._.share"].alt
    page = render_html(typed(inferred), drawings)
    assert 'id="attributes"' in page
    assert "Attribute inference, sweep of attribute_inference.*.share" in page
    shown = said(inferred)
    assert "Attribute inference" in shown
    assert max(len(line) for line in shown.splitlines()) <= 80


def test_a_sweep_keeps_adversaries_apart_and_leaves_out_what_it_changes(inferred: dict[str, Any]) -> None:
    def point(layers: int) -> dict[str, Any]:
        words = [f"layers = {layers}, variant = paper", "layers = 3, variant = linear"]
        entries = [entry("t", 0, 0.1 * layers, settings=words[0]), entry("t", 0, 0.05 * layers, settings=words[1])]
        return {"label": str(layers), "value": layers, "rows": [], "attribute_inference": as_json(entries)}

    sweep = {"name": "attribute_inference.*.layers", "points": [point(3), point(6)]}
    names, found = swept_inferences(part_from_json(Sweep, sweep))
    assert names == ["race from t, backbone, variant = paper", "race from t, backbone, variant = linear"]
    assert [round(rows[name].accuracy.value, 2) for name in names for _, rows in found] == [0.3, 0.6, 0.15, 0.3]
    (drawing,) = attribute_figures(typed(BARE | {"sweeps": [sweep]}), ()).values()
    assert "variant = paper from .300 to .600; race from t, backbone, variant = linear from .150 to .300" in drawing.alt


def test_long_settings_leave_room_for_the_marks() -> None:
    """A figure whose words take its whole width warns that its axes have collapsed, which fails a test."""
    words = "layers = 3, hidden = 64, learning_rate = 0.01, batch_size = 512, variant = linear"
    rows = as_json([entry(name, 0, 0.5, settings=words) for name in ("target-classifier", "target-supervised")])
    drawn = attribute_figures(typed(BARE | {"attribute_inference": rows}), ())["attributes-accuracy"]
    assert drawn.image.count(b"learning_rate") == 2


def test_nothing_is_drawn_where_nothing_was_inferred(report: dict[str, Any], inferred: dict[str, Any]) -> None:
    assert attribute_figures(typed(report), ()) == {}
    assert 'id="attributes"' not in render_html(typed(report), {})
    steady = copy.deepcopy(inferred["sweeps"][0])
    for point in steady["points"]:
        point["attribute_inference"] = as_json([entry("contrastive", 0, 0.5)])
    assert swept_inferences(part_from_json(Sweep, steady))[0] == []


def test_the_plane_keeps_groups_apart_and_is_a_function_of_the_seed() -> None:
    generator = np.random.default_rng(0)
    groups = np.repeat([0.0, 50.0], 40)[:, None] + generator.normal(size=(80, 5))
    points = plane(groups, seed=3)
    assert points.shape == (80, 2)
    np.testing.assert_array_equal(points, plane(groups, seed=3))
    centres = points[:40].mean(axis=0), points[40:].mean(axis=0)
    nearest = [np.linalg.norm(points - centre, axis=1) for centre in centres]
    assert ((nearest[0] < nearest[1]) == (np.arange(80) < 40)).all()


def test_classifiers_are_compared_by_how_much_they_overfit(report: dict[str, Any]) -> None:
    whole = copy.deepcopy(report)
    second = copy.deepcopy(whole["attacks"])
    for row in second:
        row["target"] = "other"
        row.pop("primary", None)
    whole["attacks"] += second
    whole["pooled"] = pooled(whole["attacks"])
    whole["encoders"]["other"] = copy.deepcopy(whole["encoders"]["target"])
    for name, level in (("target", 0.4), ("other", 0.1)):
        whole["encoders"][name]["classifier"] = {
            "train_accuracy": estimate(0.9, 100), "test_accuracy": estimate(0.9 - level, 100),
            "overfitting": {"value": level, "ci95": [level - 0.1, level + 0.1], "n": 100},
        }  # fmt: skip
    jsonschema.validate(whole, schema())
    drawings = comparison_figures(typed(whole))
    assert "compare-overfitting" in drawings
    assert "in the order of the overfitting level" in drawings["compare-overfitting"].alt
    assert "early-stopping-other" in draw_figures(typed(whole), FigureData())
