"""Figures: which there are, that they are images, and that the curve drawn is the curve measured."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mi_core.checks import ShapeError
from mi_core.report import AttackScores, Drawing, FigureData, ViewGrid, draw_figures
from mi_core.report.figures import _rate_at


def test_there_is_a_figure_for_everything_measured(drawings: dict[str, Drawing]) -> None:
    attacks = ("encodermi-t", "encodermi-v", "encodermi-s", "lpla")
    outputs = ("projection", "backbone")
    expected = {f"{kind}-{output}" for kind in ("roc", "precision-recall") for output in outputs}
    expected |= {"loss", "early-stopping"}
    expected |= {f"scores-{output}-{attack}" for output in ("projection", "backbone") for attack in attacks}
    assert set(drawings) == expected
    for drawing in drawings.values():
        image = Image.open(io.BytesIO(drawing.png))
        assert image.width >= 800
        assert len(np.unique(np.asarray(image.convert("L")))) > 10  # not an empty sheet
        assert drawing.title
        assert drawing.alt


def test_one_checkpoint_draws_no_early_stopping(short_report: dict[str, Any], figure_data: FigureData) -> None:
    assert "early-stopping" not in draw_figures(short_report, figure_data)
    assert draw_figures(short_report, FigureData()) == {}


@pytest.mark.parametrize("seed", [0, 1])
def test_rates_on_the_curve_match_counting(seed: int) -> None:
    generator = np.random.default_rng(seed)
    member = generator.random(60) < 0.5
    score = np.round(generator.normal(size=60) + member, 1)  # with ties
    run = AttackScores("a", "target", "backbone", "shadow", 0, score, member)
    grid = np.array([0.0, 0.03, 0.1, 0.5, 1.0])
    for allowed, found in zip(grid, _rate_at(run, grid), strict=True):
        best = 0.0
        for threshold in [*score, np.inf]:
            said = score >= threshold
            if said[~member].mean() <= allowed + 1e-12:
                best = max(best, said[member].mean())
        assert found == pytest.approx(best)


def test_hostile_names_stay_inside_the_folder(short_report: dict[str, Any]) -> None:
    run = AttackScores("../up", "target", "backbone", "s", 0, np.array([0.0, 1.0]), np.array([False, True]))
    assert all("/" not in name for name in draw_figures(short_report, FigureData((run,))))


def test_a_grid_shows_each_image_left_of_its_views(short_report: dict[str, Any]) -> None:
    """Panels hold the pixels of their image: red, green and blue images with darker views."""
    images = np.zeros((3, 3, 8, 8), dtype=np.uint8)
    for row in range(3):
        images[row, row] = 255
    views = np.repeat(images[:, None] // 2, 2, axis=1)
    drawn = draw_figures(short_report, FigureData(views=ViewGrid(images, views)))
    drawing = drawn["views"]
    pixels = np.asarray(Image.open(io.BytesIO(drawing.png)).convert("RGB"))
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
    with pytest.raises(ShapeError, match="views of the grid"):
        ViewGrid(images, views[:2])
