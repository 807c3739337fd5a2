"""Images and their views side by side: what an encoder is asked with (ContrastiveLeaks, figure 4)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from mi_core.checks import check_shape
from mi_core.report.figures.drawing import DPI, WIDTH, Drawing, png


@dataclass(frozen=True)
class ViewGrid:
    """Some images with their views.

    Args:
        images: (N, C, H, W) uint8, C 1 or 3.
        views: (N, V, C, S, S) uint8.

    Raises:
        ShapeError: the arrays do not fit.
    """

    images: npt.NDArray[np.uint8]
    views: npt.NDArray[np.uint8]

    def __post_init__(self) -> None:
        count, channels, *_ = check_shape("images of the grid", self.images, "N C H W")
        check_shape("views of the grid", self.views, "N V C S S", N=count, C=channels)


def view_grid(grid: ViewGrid) -> Drawing:
    """One row per image: the image, a gap, its views."""
    count, views = grid.views.shape[:2]
    widths = [1.0, 0.15, *[1.0] * views]
    height = WIDTH / sum(widths) * count * 1.06
    figure = Figure(figsize=(WIDTH, height), dpi=DPI, facecolor="none")
    panels = figure.subplots(
        count, len(widths), squeeze=False, gridspec_kw={"width_ratios": widths, "wspace": 0.06, "hspace": 0.06}
    )
    figure.subplots_adjust(0, 0, 1, 1)
    for row, image, drawn in zip(panels, grid.images, grid.views, strict=True):
        for panel in row:
            panel.set_axis_off()
        for panel, shown in zip([row[0], *row[2:]], [image, *drawn], strict=True):
            pixels = shown.transpose(1, 2, 0)
            panel.imshow(pixels.repeat(3, axis=2) if pixels.shape[2] == 1 else pixels, interpolation="nearest")
    alt = f"{count} candidate images, one per row, and right of each {views} views of it."
    return Drawing(png(figure), "Images and the views that the encoder receives", alt, photographs=True)
