"""Patches cut by hand, and their cosines in a loop."""

from __future__ import annotations

import pytest
import torch

from mi_core.checks import ConfigError, ShapeError
from mi_core.features.patch_similarity import CenterSimilarity, center_similarity, patches
from tests.raising import refused


def test_patches_are_disjoint_and_cover_the_image() -> None:
    images = torch.rand(2, 3, 9, 9, generator=torch.Generator().manual_seed(0))
    found = patches(images, (3, 3), size=3)  # at their own size nothing is interpolated
    assert found.shape == (2, 9, 3, 3, 3)
    for number in range(9):
        row, column = 3 * (number // 3), 3 * (number % 3)
        torch.testing.assert_close(found[:, number], images[:, :, row : row + 3, column : column + 3])
    assert patches(images, (3, 1)).shape == (2, 3, 3, 9, 9)
    uneven = patches(torch.rand(1, 1, 8, 8), (3, 5))
    assert uneven.shape == (1, 15, 1, 8, 8)


def test_the_middle_against_the_others() -> None:
    embeddings = torch.randn(4, 9, 5, generator=torch.Generator().manual_seed(1))
    found = center_similarity(embeddings)
    for sample in range(4):
        others = [patch for patch in range(9) if patch != 4]
        expected = [
            torch.cosine_similarity(embeddings[sample, 4], embeddings[sample, patch], dim=0) for patch in others
        ]
        torch.testing.assert_close(found[sample], torch.stack(expected))
    assert torch.equal(center_similarity(torch.zeros(1, 3, 2)), torch.zeros(1, 2))


@pytest.mark.parametrize(("rows", "columns"), [(2, 3), (1, 1), (3, 0), (3, -1), (-3, -1)])
def test_grids_without_a_middle(rows: int, columns: int) -> None:
    refused(ConfigError, f"grid = '{rows}x{columns}', allowed: odd numbers", CenterSimilarity, rows, columns)


def test_bad_images() -> None:
    refused(ShapeError, "images", patches, torch.zeros(3, 9, 9), (3, 3))
    with pytest.raises(ConfigError, match="grid = 3x3 for images of 2 x 2 pixels; a patch needs 1 pixel, so lower it"):
        patches(torch.zeros(1, 1, 2, 2), (3, 3))
