"""Many owners of small lots claim together: what does it show, and can whoever collects the statements bend it?

``python -m docs.studies.lots_union RESULT.json``: scores of two normal groups, no encoder. Each owner has 50 images, of
which 10 are held back, and a mean of his own with the spread of the images. *Power* is the share of 500 claims with a
p-value at most .005: *joined* as the package does, or *pooled* as one lot, where what is absent counts as lost images
do. *Unused*: 1,000 unions of 20 owners of images that nobody used, at .01; chance exceeds .017 once
in 50 cases. Their collector leaves out the statements that speak most against a use, none to 19 of them, and keeps
the best p-value; or he has made 60 lists of half the owners known, and shows the best one. Nothing was tuned here.
"""

from __future__ import annotations

import math
import sys

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from docs.studies.shared import Result, Scores, counted
from mi_core.lots.designs import held_back_p_value, joined_p_value, normal_scores
from mi_core.records import BoolArray

CLAIMS, UNIONS, OWNERS, LISTS, DRAWS = 500, 1000, 20, 60, 9_999
EACH, HELD, LEVEL = 50, 10, 0.005


def answers(rng: np.random.Generator, owners: int, auc: float) -> tuple[Scores, BoolArray]:
    """Scores and coins, both (owners, EACH); where the AUC is .5 nobody used an image."""
    held = rng.permuted(np.tile(np.arange(EACH) < HELD, (owners, 1)), axis=1)
    own = rng.standard_normal((owners, 1))
    return rng.standard_normal(held.shape) + own + math.sqrt(2) * float(ndtri(auc)) * ~held, held


NORMAL = normal_scores(np.arange(EACH, dtype=np.float64))
NULL = np.sort(np.random.default_rng(3).permuted(np.tile(NORMAL, (DRAWS, 1)), axis=1)[:, :HELD].sum(axis=1))
"""The sums of `held_back_p_value` over random draws of one lot: the same of every lot without ties."""


def p_values(scores: Scores, held: BoolArray) -> npt.NDArray[np.float64]:
    """Of each owner alone: those of `held_back_p_value`."""
    ranks = scores.argsort(axis=1).argsort(axis=1)
    sums = (NORMAL[ranks] * held).sum(axis=1)
    return (1 + np.searchsorted(NULL, sums + 1e-9, "right")) / (1 + DRAWS)


def pooled(scores: Scores, held: BoolArray, absent: int, seed: int) -> float:
    """Of all owners as one lot; what is absent counts as cosines of 1 and -1 against the claim."""
    scores, strata = scores.copy(), np.repeat(np.arange(len(held)), EACH)
    scores[:absent] = np.where(held[:absent], scores.max() + 1, scores.min() - 1)
    return held_back_p_value(scores.ravel(), held.ravel(), strata, seed=seed, draws=999)


def power(owners: int, auc: float, absent: int) -> dict[str, list[float]]:
    joined, whole = 0, 0
    for number in range(CLAIMS):
        scores, held = answers(np.random.default_rng([owners, number]), owners, auc)
        own = p_values(scores[absent:], held[absent:])
        joined += joined_p_value([*own, *[1.0] * absent]) <= LEVEL
        whole += pooled(scores, held, absent, number) <= LEVEL
    counts = {"joined": joined, "pooled": whole}
    return {name: [round(count / CLAIMS, 3), *counted(count, CLAIMS)] for name, count in counts.items()}


def main() -> None:
    result = Result(sys.argv[1], claims=CLAIMS, unions=UNIONS, images=EACH, held_back=HELD)
    for auc in (0.51, 0.52, 0.55):
        for owners, absent in ((1, 0), (200, 0), (200, 10), (1000, 0)):
            result.keep({"auc": auc, "owners": owners, "absent": absent, **power(owners, auc, absent)})
    honest, left_out, best_list = 0, 0, 0
    for number in range(UNIONS):
        rng = np.random.default_rng([7, number])
        own = p_values(*answers(rng, OWNERS, 0.5))
        honest += joined_p_value(own.tolist()) <= 0.01
        order = np.sort(own)
        tried = [joined_p_value([*order[:count], *[1.0] * (OWNERS - count)]) for count in range(1, OWNERS + 1)]
        left_out += min(tried) <= 0.01
        lists = [rng.choice(own, OWNERS // 2, replace=False).tolist() for _ in range(LISTS)]
        best_list += min(map(joined_p_value, lists)) <= 0.01
    for name, false in (("honest", honest), ("leaves statements out", left_out), ("best of 60 lists", best_list)):
        result.keep({"unused": name, "p <= .01": [round(false / UNIONS, 4), *counted(false, UNIONS)]})


if __name__ == "__main__":
    main()
