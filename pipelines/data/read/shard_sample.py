"""Read some shards of a source in place of all: 1 % of the bytes, for an answer that holds for all of them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from mi_core.hashing import digests64
from pipelines.data.read.samples import Item


def sampled(items: Sequence[Item], source: str, wanted: float | None) -> list[Item]:
    """Some items of a source, in their order; a larger number keeps those of a smaller one.

    Args:
        items: of the source.
        source: its name.
        wanted: how many: a number, or a fraction below 1; None: all.

    Example:
        >>> items = [Item(f"{number:03d}") for number in range(10)]
        >>> few, more = (sampled(items, "mine", wanted) for wanted in (3, 0.5))
        >>> len(few), len(more), set(few) < set(more)
        (3, 5, True)
    """
    if wanted is None:
        return list(items)
    count = math.ceil(wanted * len(items)) if wanted < 1 else int(wanted)
    order = np.argsort(digests64(("shards", source), [item.name for item in items]), kind="stable")
    return [items[row] for row in sorted(order[:count].tolist())]
