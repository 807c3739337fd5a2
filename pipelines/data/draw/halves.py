"""The samples that encoders have seen which are trained on halves of some roles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from mi_core.records import BoolArray
from pipelines.data.draw.splits import Splits

if TYPE_CHECKING:  # readers of shards evaluate roles without PyTorch, which the config of an encoder imports
    from pipelines.config.sections.encoders import EncoderConfig, TrainedConfig


def members_of(splits: Splits, config: TrainedConfig, seed: int, nonce: str | None) -> Splits:
    """The splits, narrowed to a half where an encoder is trained on a half of its roles; ``nonce``: of the queries."""
    return splits if config.half is None else splits.half(config.train_on, config.half, seed, nonce)


def seen_by(splits: Splits, config: EncoderConfig, seed: int, nonce: str | None, ids: Sequence[str]) -> BoolArray:
    """Mark the samples among N that an encoder was trained on, where that was on a half of them: (N,) bool."""
    half: TrainedConfig | None = config if getattr(config, "half", None) is not None else None  # type: ignore[assignment]
    if half is None:
        return np.zeros(len(ids), dtype=bool)
    return members_of(splits, half, seed, nonce).among(ids, half.train_on)
