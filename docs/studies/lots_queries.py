"""How many queries a claim until it is decided saves, at equal power: scores of two normal groups, no encoder.

``python -m docs.studies.lots_queries RESULT.json``: for an AUC between used and unused images and a share that is held
back, the least n at which the exact test of all n images has a power of .8 at level .01; and the least n at which the
bets have that power, with the mean number of images that they ask about. 500 claims each; nothing was tuned on them.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
from scipy.special import ndtri

from docs.studies.shared import Result
from mi_core.lots.designs import held_back_bets, held_back_p_value, wealth
from mi_core.lots.draw import waves_of

CLAIMS, POWER, LEVEL = 500, 0.8, 0.01


def draw(rng: np.random.Generator, n: int, auc: float, share: float) -> tuple[np.ndarray, np.ndarray]:
    held = np.zeros(n, dtype=bool)
    held[rng.choice(n, round(share * n), replace=False)] = True
    return rng.standard_normal(n) + math.sqrt(2) * float(ndtri(auc)) * ~held, held


def exact(n: int, auc: float, share: float) -> float:
    found = []
    for number in range(CLAIMS):
        scores, held = draw(np.random.default_rng([n, number]), n, auc, share)
        found.append(held_back_p_value(scores, held, np.zeros(n, dtype=np.int64), seed=number, draws=999) <= LEVEL)
    return float(np.mean(found))


def simulate_claims(n: int, auc: float, share: float) -> tuple[float, float]:
    """The power and the mean number of images that are asked about, which are whole waves."""
    waves = waves_of([n])
    ends = np.append(np.flatnonzero(np.diff(waves)), n - 1)
    stops, decided = [], []
    for number in range(CLAIMS):
        scores, held = draw(np.random.default_rng([n, number]), n, auc, share)
        zero = np.zeros(n, dtype=np.int64)
        path = wealth(held_back_bets(scores, held, zero, waves, [n], [int(held.sum())]))[ends]
        over = np.flatnonzero(np.maximum.accumulate(path) >= -math.log(LEVEL))
        decided.append(len(over) > 0)
        stops.append(int(ends[over[0]]) + 1 if len(over) else n)
    return float(np.mean(decided)), float(np.mean(stops))


def least(power: Any) -> int:
    """The least n of a grid with steps of a tenth that has the power."""
    n = 20.0
    while power(round(n)) < POWER:
        n *= 1.1
    return round(n)


def main(path: str) -> None:
    result = Result(path, claims=CLAIMS)
    for share in (0.2, 0.5):
        for auc in (0.6, 0.7, 0.8, 0.9):
            fixed = least(lambda n, auc=auc, share=share: exact(n, auc, share))
            most = least(lambda n, auc=auc, share=share: simulate_claims(n, auc, share)[0])
            row = {
                "share": share,
                "auc": auc,
                "all": fixed,
                "most": most,
                "mean": round(simulate_claims(most, auc, share)[1]),
            }
            power, mean = simulate_claims(6 * fixed, auc, share)
            row |= {"large lot": {"power": power, "mean": round(mean)}}
            row["large lot"]["all at this power"] = least(lambda n, a=auc, s=share, p=power: exact(n, a, s) / p * POWER)
            result.keep(row)


if __name__ == "__main__":
    main(sys.argv[1])
