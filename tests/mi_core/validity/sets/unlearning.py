"""How often images of which a share is kept in full are called forgotten, on simulated scores.

Controls score N(0, 1) on every encoder, and so do the images on one that never saw them. An image that an encoder knows
scores higher by the gap that gives the attack its AUC on the encoder before. Two encoders' scores of a sample correlate
by .51. After, a fixed number of images is kept in full, and scores like before; the others score like unseen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
from scipy.stats import norm

from mi_core.hashing import digest64
from mi_core.metrics.intervals import clopper_pearson
from mi_core.validity.sets.forgetting import Forgetting, forgetting
from mi_core.validity.sets.kept import Scored

DRAWS = 1000
KEPT, SIZES, AREAS = (0.05, 0.1, 0.2), (300, 1000), (0.92, 0.75)
RETRAINED = {0.92: (300, 500, 700, 1000), 0.75: (300, 1000, 3000, 6000)}
_ALIKE = 0.51


def drawn(generator: np.random.Generator, n: int, area: float, kept: float) -> Scored:
    """Scores of n images, of which the share ``kept`` is known after, and of n controls; ``area``: the AUC before."""
    member = np.arange(2 * n) < n
    gap = np.sqrt(2) * norm.ppf(area)
    level = generator.normal(0, np.sqrt(_ALIKE), 2 * n)
    before, after, unseen = (level + generator.normal(0, np.sqrt(1 - _ALIKE), 2 * n) for _ in range(3))
    known = np.arange(2 * n) < round(kept * n)
    return Scored(before + gap * member, after + gap * known, unseen, generator.normal(0, 1, 2 * n), member)


def cell(n: int, area: float, kept: float, draws: int, seed: int) -> dict[str, Any]:
    """How often each answer is given, with the interval of the share of ``forgotten``."""
    generator = np.random.default_rng(digest64(seed, "unlearning", n, str(area), str(kept)))
    found: list[Forgetting] = [forgetting([drawn(generator, n, area, kept)]) for _ in range(draws)]
    verdicts = Counter(one.verdict for one in found)
    low, high = clopper_pearson(verdicts["forgotten"], draws)
    tests = Counter("-".join((one.verdict, one.decided[0])) for one in found)
    return {
        "n": n,
        "auc_before": area,
        "kept": kept,
        "draws": draws,
        "forgotten": verdicts["forgotten"],
        "not_forgotten": verdicts["not-forgotten"],
        "ci95": [low, high],
        "decided": dict(sorted(tests.items())),
        "mean_rule": sum(_by_mean(one) for one in found),
    }


def every_cell(draws: int = DRAWS, seed: int = 0) -> Iterator[dict[str, Any]]:
    """All cells: images of which some are kept, then encoders that were trained anew."""
    for kept, n, area in product(KEPT, SIZES, AREAS):
        yield cell(n, area, kept, draws, seed)
    for area, sizes in RETRAINED.items():
        for n in sizes:
            yield cell(n, area, 0.0, draws, seed)


def _by_mean(found: Forgetting) -> bool:
    """Whether the AUCs alone say forgotten."""
    leaks = found.left.low > 0 and found.left_blind.low > 0
    most = found.left_at_most
    return not leaks and found.known.low > 0 and most is not None and most <= found.tolerance
