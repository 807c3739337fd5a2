"""Features of a batch of images on their way from the device to the host, and the checks that wait for them."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from mi_core.checks import NumericError


@dataclass
class Seconds:
    """Time of an extraction by its part: seconds of this process, on CUDA of the device.

    Views are drawn beside the encoder's work there; ``augment`` is what the encoder waited for.
    """

    augment: float = 0.0
    forward: float = 0.0
    features: float = 0.0


class Clock:
    """Times the parts of a batch; on CUDA by events, for which nobody waits."""

    def __init__(self, device: torch.device) -> None:
        self.cuda = device.type == "cuda"
        self.marks: list[tuple[str, Any]] = []
        self.mark("start")

    def mark(self, part: str) -> None:
        """End a part of the work, which began at the last mark."""
        if self.cuda:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self.marks.append((part, event))
        else:
            self.marks.append((part, time.perf_counter()))

    def add_to(self, seconds: Seconds) -> None:
        """Add the time of the parts, which the device has done."""
        for (_, before), (part, after) in pairwise(self.marks):
            took = before.elapsed_time(after) / 1000 if self.cuda else after - before
            setattr(seconds, part, getattr(seconds, part) + took)


@dataclass
class Work:
    """The work on one batch: features on their way to the host, and checks of embeddings that wait for it."""

    clock: Clock
    columns: dict[str, dict[str, torch.Tensor]] = field(default_factory=dict)
    checks: list[tuple[str, torch.Tensor, list[str]]] = field(default_factory=list)
    arrived: Any = None  # an event of CUDA; None: nothing to wait for

    def wait(self) -> None:
        """Wait until the features have come, and check the embeddings that they were computed from."""
        if self.arrived is not None:
            self.arrived.synchronize()
        while self.checks:
            check_finite(*self.checks.pop(0))


@dataclass
class Answers:
    """Features of some images, which a GPU may still be computing."""

    work: list[Work]
    seconds: Seconds

    def wait(self) -> None:
        """Wait until they are there. Raises NumericError as `Extractor` does."""
        for one in self.work:
            one.wait()

    def fetched(self) -> dict[str, dict[str, np.ndarray]]:
        """Features as `Extractor` returns them, once; raises NumericError as it does."""
        self.wait()
        parts: dict[str, dict[str, list[np.ndarray]]] = {}
        for one in self.work:
            one.clock.add_to(self.seconds)
            for name, columns in one.columns.items():
                for column, values in columns.items():
                    parts.setdefault(name, {}).setdefault(column, []).append(values.numpy())
        return {
            name: {column: np.concatenate(blocks) for column, blocks in columns.items()}
            for name, columns in parts.items()
        }


def check_finite(name: str, finite: torch.Tensor, ids: list[str]) -> None:
    """Raise NumericError, with the first ids, unless all of a mask (B,) on the host holds."""
    if not bool(finite.all()):
        bad = [ids[row] for row in torch.nonzero(~finite).flatten().tolist()]
        raise NumericError(f"{name}: embedding is NaN or infinite for {len(bad)} samples, first {', '.join(bad[:3])}")
