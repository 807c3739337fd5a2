"""The batch that a GPU takes, found on made-up costs and a made-up memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from mi_core.querying.extractor import best_batch


def trial(
    seconds: Callable[[int], float], memory: int = 10**9, tried: list[int] | None = None
) -> Callable[[int], float]:
    def timed(size: int) -> float:
        if tried is not None:
            tried.append(size)
        if size > memory:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return seconds(size)

    return timed


@pytest.mark.parametrize(
    ("launch", "memory", "expected"),
    [
        (0.0, 10**9, 64),  # every query costs the same: nothing is gained
        (1e9, 10**9, 1024),  # a call costs the same whatever it holds: up to the bound
        (100.0, 10**9, 512),  # (100 + 512) / 512 = 1.2 a query, 1.1 with twice as many, and above the bound 4 % less
        (1e9, 300, 128),  # 256 fit, 512 do not: half of what fitted
        (1e9, 64, 64),  # what was asked for fits, no more does
        (1e9, 63, 16),  # 32 fit
        (1e9, 1, 1),
    ],
)
def test_the_batch_grows_while_that_pays_and_fits(launch: float, memory: int, expected: int) -> None:
    most = 1024 if launch != 100.0 else 1023
    assert best_batch(64, most, trial(lambda size: launch + size, memory)) == expected


def test_a_gain_too_small_for_its_memory_ends_the_search() -> None:
    tried: list[int] = []
    assert best_batch(64, 10**6, trial(lambda size: 100.0 + size, tried=tried)) == 1024
    assert tried == [64, 128, 256, 512, 1024, 2048]  # each once; 2,048 save 4.4 % of a query's 1.098


def test_nothing_above_the_bound_is_tried() -> None:
    tried: list[int] = []
    assert best_batch(48, 100, trial(lambda size: 1.0, tried=tried)) == 96
    assert tried == [48, 96]


def test_an_image_that_does_not_fit_and_other_faults_are_told() -> None:
    with pytest.raises(torch.OutOfMemoryError):
        best_batch(64, 64, trial(lambda size: 1.0, memory=0))

    def broken(size: int) -> float:
        raise RuntimeError("the encoder is broken")

    with pytest.raises(RuntimeError, match="broken"):
        best_batch(64, 64, broken)
