"""A data set that augments at random."""

from __future__ import annotations

import numpy as np


class Restless:
    """Mirrors every other time at random, as torchvision's transforms in a data set for training do."""

    def __init__(self, images: np.ndarray) -> None:
        self.images, self.random = images, np.random.default_rng(0)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, row: int) -> tuple[np.ndarray, int]:
        return (self.images[row, :, ::-1] if self.random.random() < 0.5 else self.images[row]), 0
