"""The mean over runs: its interval covers, narrows with the number of runs, and keeps the marks."""

from __future__ import annotations

import numpy as np
import pytest

from mi_core.checks import ShapeError
from mi_core.metrics.intervals import rate
from mi_core.metrics.pooled import pool
from mi_core.records import Estimate


def test_interval_of_the_mean_covers() -> None:
    generator = np.random.default_rng(0)
    truth = [0.6, 0.7, 0.8]
    covered = 0
    for _ in range(500):
        pooled = pool([rate(int(generator.binomial(200, p)), 200) for p in truth])
        covered += pooled.low <= 0.7 <= pooled.high
    assert covered / 500 >= 0.93  # Clopper-Pearson is a little wide
    assert pooled.high - pooled.low < 0.65 * (rate(140, 200).high - rate(140, 200).low)


def test_counts_add_up_and_marks_stay() -> None:
    runs = [Estimate(0.2, 0.1, 0.3, 50, False, 1), Estimate(0.4, 0.3, 0.5, 70, True, 2)]
    pooled = pool(runs)
    assert (pooled.n, pooled.false_positives, pooled.supported) == (120, 3, False)
    assert pool(runs[:1]) == runs[0]
    assert pool([Estimate(0.2, 0.1, 0.3, 5)] * 2).false_positives is None
    with pytest.raises(ShapeError, match="0 runs"):
        pool([])
