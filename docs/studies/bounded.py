"""How often a bound is said to be met, not met or neither: binormal scores of several attacks on the same images.

``python -m docs.studies.bounded FILE`` writes `configs/results/bound.json`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import ndtri

from mi_core.metrics.pooled import pool
from mi_core.validity.bound import OUTCOMES, auc_limits, outcome

AT = 0.55
SETTINGS: dict[str, dict[str, Any]] = {  # every true AUC at the bound, or one of them
    "one attack": {"truths": [AT]},
    "one attack, 40 a side": {"truths": [AT], "side": 40},
    "one attack, 1,000 a side": {"truths": [AT], "side": 1000},
    "one attack, three seeds": {"truths": [AT], "seeds": 3},
    "one attack, images in groups of five": {"truths": [AT], "grouped": True, "group": 5},
    "four attacks": {"truths": [AT] * 4},
    "four attacks that agree": {"truths": [AT] * 4, "alike": 0.95},
    "four attacks, one at the bound": {"truths": [0.5, 0.5, 0.5, AT]},
}
PLANTED: dict[str, dict[str, Any]] = {
    "four attacks that guess, 420 a side": {"truths": [0.5] * 4, "side": 420},
    "four attacks that guess, 710 a side": {"truths": [0.5] * 4, "side": 710},
    "four attacks that guess, 1,500 a side": {"truths": [0.5] * 4, "side": 1500},
    "one of two attacks at .7": {"truths": [0.5, 0.7]},
}


def drawn(
    truths: list[float], generator: np.random.Generator, *, side: int = 150, alike: float = 0.0, group: int = 1
) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    """Scores of an attack for each AUC, members, and groups of images whose scores correlate by .5."""
    member = np.arange(2 * side) < side
    groups = np.arange(2 * side) // group
    shared = generator.normal(size=2 * side)

    def noise() -> np.ndarray:
        own = generator.normal(size=2 * side)
        if group > 1:
            own = (own + generator.normal(size=groups[-1] + 1)[groups]) / np.sqrt(2)
        return np.sqrt(alike) * shared + np.sqrt(1 - alike) * own

    return [noise() + np.sqrt(2) * ndtri(truth) * member for truth in truths], member, groups


def outcomes(
    truths: list[float], *, draws: int = 1000, seed: int = 7, seeds: int = 1, grouped: bool = False, **how: Any
) -> dict[str, int]:
    """How often each outcome comes."""
    generator, found = np.random.default_rng(seed), dict.fromkeys(OUTCOMES, 0)
    for _ in range(draws):
        of_seeds = []
        for _ in range(seeds):
            scores, member, groups = drawn(truths, generator, **how)
            of_seeds.append([auc_limits(row, member, groups if grouped else None) for row in scores])
        limits = [pool(attack) for attack in zip(*of_seeds, strict=True)]
        found[outcome([(row.low, row.high) for row in limits], AT)] += 1
    return found


def figures(draws: int) -> dict[str, Any]:
    """The content of the file."""
    shares = {
        name: {said: count / draws for said, count in outcomes(draws=draws, seed=0, **how).items()}
        for name, how in (SETTINGS | PLANTED).items()
    }
    return {"bound": AT, "draws": draws, "side": 150, "shares": shares}


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(figures(10_000), indent=1) + "\n")
