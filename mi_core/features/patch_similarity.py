"""The membership feature of EncoderMI's Baseline-E (Liu et al., CCS 2021, section 5.1): patches of one image.

The image is cut into R x C disjoint patches, each is queried as an image of its own, and the patch in the middle is
compared with the others: an encoder that knows the image maps its parts closer together.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F

from mi_core.augmentations.views import clean
from mi_core.checks import ConfigError, check_shape
from mi_core.features.measure import Batch, Measure, ViewMaker


@dataclass(frozen=True)
class CenterSimilarity(Measure):
    """How alike the patch in the middle of an image and each other patch are.

    Args:
        rows, columns: of the grid of patches, both odd, so that one is in the middle.

    Raises ConfigError: a number is even, or there is one patch alone.
    """

    rows: int = 3
    columns: int = 3

    kind = "patches"
    consumes = "crops"

    def __post_init__(self) -> None:
        even = self.rows % 2 == 0 or self.columns % 2 == 0
        if even or min(self.rows, self.columns) < 1 or self.rows * self.columns < 3:
            raise ConfigError(
                f"grid = '{self.rows}x{self.columns}', allowed: odd numbers, at least 3 of them, such as 3x3 or 3x1"
            )

    @property
    def name(self) -> str:
        """The grid as it is written in a config."""
        return f"{self.kind}:{self.rows}x{self.columns}"

    def query_count(self, views: int) -> int:
        """A query per patch."""
        return self.rows * self.columns

    def shape(self, views: int, width: int) -> tuple[int, ...]:
        """All patches but the middle one."""
        return (self.rows * self.columns - 1,)

    def sent(self, batch: Batch, views: ViewMaker) -> torch.Tensor:
        """The patches."""
        return patches(clean(batch.images), (self.rows, self.columns), size=views.size)

    def values(self, answer: torch.Tensor, texts: torch.Tensor | None = None) -> torch.Tensor:
        """Cosines, see `center_similarity`."""
        return center_similarity(answer)


def patches(images: torch.Tensor, grid: tuple[int, int], *, size: int | None = None) -> torch.Tensor:
    """The patches of N images, row by row, each enlarged to the size of an image.

    Args:
        images: (N, C, H, W) float32 in [0, 1].
        grid: rows R and columns C' of patches; a side that R does not divide gives patches that differ by a pixel.
        size: side of the result; default: those of the images.

    Returns (N, R C', C, S, S) float32 in [0, 1].
    Raises ShapeError: images is not (N, C, H, W); ConfigError: there are more patches than pixels along a side.
    """
    _, _, height, width = check_shape("images", images, "N C H W")
    if grid[0] > height or grid[1] > width:
        raise ConfigError(
            f"grid = {grid[0]}x{grid[1]} for images of {height} x {width} pixels; a patch needs 1 pixel, so lower it"
        )
    target = (height, width) if size is None else (size, size)
    rows = [round(row * height / grid[0]) for row in range(grid[0] + 1)]
    columns = [round(column * width / grid[1]) for column in range(grid[1] + 1)]
    cut = [
        F.interpolate(images[:, :, top:bottom, left:right], target, mode="bilinear", align_corners=False)
        for top, bottom in pairwise(rows)
        for left, right in pairwise(columns)
    ]
    return torch.stack(cut, dim=1)


def center_similarity(embeddings: torch.Tensor) -> torch.Tensor:
    """Cosine of the middle patch with each of the others.

    Takes (N, P, D) of the patches in order, P odd; returns (N, P - 1) in [-1, 1]; with an embedding of length 0 it
    is 0.
    Raises ShapeError: embeddings is not (N, P, D).

    Example:
        >>> center_similarity(torch.tensor([[[1.0, 0.0], [2.0, 0.0], [0.0, 1.0]]]))
        tensor([[1., 0.]])
    """
    _, count, _ = check_shape("embeddings", embeddings, "N P D")
    unit = F.normalize(embeddings, dim=2)
    middle = count // 2
    cosines = (unit * unit[:, middle : middle + 1]).sum(dim=2).clamp(-1, 1)
    return torch.cat([cosines[:, :middle], cosines[:, middle + 1 :]], dim=1)
