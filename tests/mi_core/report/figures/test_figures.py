"""Figures: which there are, that they are images, and that the curve drawn is the curve measured."""

from __future__ import annotations

import copy
import io
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from mi_core import report as report_package
from mi_core.records import ALL_CALLED
from mi_core.report.figures.drawing import (
    AttackScores,
    Drawing,
    EmbeddingMap,
    FigureData,
    LossCurve,
    ViewGrid,
    blank,
    label_axes,
    log_scale,
    svg,
)
from mi_core.report.figures.figures import draw_figures, rate_at
from mi_core.report.model.report import report_from_json as typed
from mi_core.report.pooling import series_names

SVG = "{http://www.w3.org/2000/svg}"


def test_there_is_a_figure_for_everything_measured(drawings: dict[str, Drawing]) -> None:
    attacks = ("encodermi-t", "encodermi-v", "encodermi-s", "lpla")
    expected = {*(f"roc-{output}" for output in ("projection", "backbone")), "loss", "early-stopping"}
    expected |= {f"scores-{output}-{attack}" for output in ("projection", "backbone") for attack in attacks}
    assert set(drawings) == expected
    for drawing in drawings.values():
        root = ElementTree.fromstring(drawing.image)
        paths = [path for path in root.iter(f"{SVG}path") if len(path.get("d", "").split()) > 50]
        assert paths or len(list(root.iter(f"{SVG}path"))) > 40  # a curve, or bars
        assert any("".join(text.itertext()).strip() for text in root.iter(f"{SVG}text"))  # letters, not their outlines
        assert drawing.suffix == ".svg"
        assert drawing.title
        assert drawing.alt


def test_one_checkpoint_draws_no_early_stopping(short_report: dict[str, Any], figure_data: FigureData) -> None:
    assert "early-stopping" not in draw_figures(typed(short_report), figure_data)
    assert draw_figures(typed(short_report), FigureData()) == {}


@pytest.mark.parametrize("seed", [0, 1])
def test_rates_on_the_curve_match_counting(seed: int) -> None:
    generator = np.random.default_rng(seed)
    member = generator.random(60) < 0.5
    score = np.round(generator.normal(size=60) + member, 1)  # with ties
    run = AttackScores("a", "target", "backbone", "shadow", 0, score, member)
    grid = np.array([0.0, 0.03, 0.1, 0.5, 1.0])
    for allowed, found in zip(grid, rate_at(run, grid), strict=True):
        best = 0.0
        for threshold in [*score, np.inf]:
            said = score >= threshold
            if said[~member].mean() <= allowed + 1e-12:
                best = max(best, said[member].mean())
        assert found == pytest.approx(best)


def test_hostile_names_stay_inside_the_folder(short_report: dict[str, Any]) -> None:
    run = AttackScores("../up", "target", "backbone", "s", 0, np.array([0.0, 1.0]), np.array([False, True]))
    assert all("/" not in name for name in draw_figures(typed(short_report), FigureData((run,))))


def test_a_grid_shows_each_image_left_of_its_views(short_report: dict[str, Any]) -> None:
    """Panels hold the pixels of their image: red, green and blue images with darker views."""
    images = np.zeros((3, 3, 8, 8), dtype=np.uint8)
    for row in range(3):
        images[row, row] = 255
    views = np.repeat(images[:, None] // 2, 2, axis=1)
    drawing = draw_figures(typed(short_report), FigureData(views=ViewGrid(images, views)))["views"]
    pixels = np.asarray(Image.open(io.BytesIO(drawing.image)).convert("RGB"))
    height, width, _ = pixels.shape
    for row in range(3):
        shown = pixels[int((row + 0.5) * height / 3)]
        assert [int(column[row]) for column in (shown[width // 8], shown[width // 2], shown[-width // 8])] == [
            255,
            127,
            127,
        ]
        assert shown[width // 8].sum() == 255
    assert "3 candidate images" in drawing.alt


def test_text_in_figures_is_never_a_formula(short_report: dict[str, Any]) -> None:
    """Names of encoders, attacks and attributes are the user's: none ends the report or is set as mathematics."""
    name = r"a$b$c $\frac"  # mathematics that no parser accepts
    score, member = np.linspace(0, 1, 40), np.arange(40) % 2 == 1
    run = AttackScores(name, name, "backbone", name, 0, score, member, statistic=score + 1)
    points, values = np.random.default_rng(0).random((40, 2)), np.arange(40) % 2
    shown = EmbeddingMap(name, "backbone", name, points, values, values, (name, f"{name} too"))
    rows = [row | {"target": target} for row in short_report["pooled"] for target in ("target", name)]
    swept = [copy.deepcopy(row) for row in short_report["pooled"]]
    for row in swept:
        row["auc"]["value"] -= 0.1
        row["queries"]["attack_training"] *= 100
    labels = zip((f"{name} a", name), (short_report["pooled"], swept), strict=True)
    short_report["sweeps"] = [
        {"name": name, "points": [{"label": label, "rows": rows_of_point} for label, rows_of_point in labels]}
    ]
    data = FigureData((run,), (LossCurve(name, 0, np.ones(1), np.ones(1)),), (shown,))
    drawn = draw_figures(typed(short_report | {"pooled": rows}), data)
    assert all(figure.image and list(figure.points()) for figure in drawn.values())
    assert {title.split("-")[0] for title in drawn} >= {"roc", "scores", "loss", "compare", "sweep", "queries"}


def test_a_name_is_drawn_as_it_is_written() -> None:
    """Set as mathematics the dollar signs would be gone: a narrower text."""
    widths = []
    for name in ("a$b$c", "a b c"):
        figure, (panel,) = blank()
        panel.plot([0, 1], [0, 1], label=name)
        label_axes(panel, "", "")
        svg(figure)
        widths.append(panel.get_legend().get_texts()[0].get_window_extent().width)
    assert widths[0] > 1.2 * widths[1]


def test_a_legend_with_long_names_leaves_the_panel() -> None:
    for name, inside in (
        ("encodermi-t (n 1,500 + 1,500)", True),
        ("combined, neighbours = 128 (n 1,500 + 1,500)", False),
    ):
        figure, (panel,) = blank()
        panel.plot([0, 1], [0, 1], label=name)
        label_axes(panel, "", "", legend_inside=True)
        svg(figure)
        legend, axes = panel.get_legend().get_window_extent(), panel.get_window_extent()
        assert (axes.y0 <= legend.y0 and legend.y1 <= axes.y1) == inside
        assert not inside or legend.x0 >= axes.x0


def test_curves_of_one_attack_are_called_by_what_tells_them_apart() -> None:
    keys = [("combined", "shadow, keys = own"), ("combined", "shadow, keys = other")]
    assert list(series_names([*keys, ("lpla", "known")]).values()) == [
        "combined, keys = own",
        "combined, keys = other",
        "lpla",
    ]
    both = [("combined", "shadow"), ("combined", "shadow, grid = 3x3"), ("combined", "known, grid = 3x3")]
    names = list(series_names(both).values())
    assert names == ["combined, shadow", "combined, shadow, grid = 3x3", "combined, known, grid = 3x3"]


def test_all_figures_become_images_in_one_place() -> None:
    """Where text is not parsed; a second way would forget that."""
    folder = Path(report_package.__file__).parent
    assert [path.name for path in folder.rglob("*.py") if "savefig" in path.read_text()] == ["drawing.py"]


def test_a_logarithmic_axis_has_plain_numbers() -> None:
    figure, (panel,) = blank()
    panel.plot([10, 100_000], [1, 2])
    log_scale(panel.xaxis)
    svg(figure)
    told = [text.get_text() for text in panel.get_xticklabels()]
    assert "1,000" in told
    assert not any("$" in text for text in told)


def test_a_threshold_that_calls_every_image_is_not_drawn(short_report: dict[str, Any]) -> None:
    member = np.arange(40) % 2 == 1
    drawn = []
    for threshold in (ALL_CALLED, None):
        run = AttackScores("a", "t", "backbone", "s", 0, np.linspace(0, 1, 40), member, threshold)
        figures = draw_figures(typed(short_report), FigureData((run,)))
        drawn.append({name: figure.image for name, figure in figures.items()})
    assert drawn[0] == drawn[1]


def test_the_same_figure_is_the_same_file() -> None:
    files = []
    for _ in range(2):
        figure, (panel,) = blank()
        panel.plot([0, 1], [0, 1], marker="o", label="x")
        files.append(svg(figure))
    assert files[0] == files[1]
    assert b"<style" not in files[0] and b"<metadata" not in files[0]


def test_a_figure_grows_with_its_legend() -> None:
    heights, panels = [], []
    for lines in (4, 12):
        figure, (panel,) = blank()
        for number in range(lines):
            panel.plot([0, 1], [number, 0], label=f"an attack with settings that are long, {number}")
        label_axes(panel, "x", "y")
        svg(figure)
        heights.append(figure.get_figheight())
        panels.append(panel.get_window_extent().height)
    assert heights[1] > heights[0]
    assert panels[1] > 0.8 * panels[0]
