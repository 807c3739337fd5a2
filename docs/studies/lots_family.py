"""Does it help an owner to ask several encoders of one family about one lot, and to add up what they say?

``python -m docs.studies.lots_family RESULT.json``: three lots of 150 images of CIFAR-10, 100 of them published, and on
each three SimCLR trainings (resnet8, 200 epochs, mild views) with other seeds. Scores become normal scores within the
lot and encoder, and are added: over three checkpoints of one training, and over three trainings. All are tested on
one draw, so only a larger effect d helps: (d of one / d of the sum) squared is the share of the images that a claim
then needs. The interval is from 2,000 draws of images within each lot and group. A share of .8 is told from 1 if the
interval is .4 wide.
"""

from __future__ import annotations

import sys

import numpy as np

from docs.studies.shared import MILD, Result, Scores, cifar10, consistency, trained
from mi_core.lots.designs import normal_scores
from mi_core.objectives import OBJECTIVES
from mi_core.training.loop import PretrainingParameters
from mi_core.training.optimizers import OptimizerParameters

LOTS, IMAGES, PUBLISHED, SEEDS, EPOCHS, DRAWS = 3, 150, 100, 3, (160, 180, 200), 2_000
HOW = PretrainingParameters(
    "resnet8",
    "simclr",
    OBJECTIVES["simclr"].Parameters(),
    OptimizerParameters(learning_rate=2e-3, schedule="cosine", warmup=0.05),
    epochs=EPOCHS[-1],
    batch_size=50,
)


def effect(scores: Scores) -> float:
    """The mean over lots of d; scores (LOTS, IMAGES), the published ones first."""
    shown, held = scores[:, :PUBLISHED], scores[:, PUBLISHED:]
    spread = np.sqrt((shown.var(axis=1, ddof=1) + held.var(axis=1, ddof=1)) / 2)
    return float(((shown.mean(axis=1) - held.mean(axis=1)) / spread).mean())


def main() -> None:
    images, _ = cifar10("train", 4)
    found = np.empty((LOTS, SEEDS, len(EPOCHS), IMAGES))
    for lot in range(LOTS):
        mine = images[lot * IMAGES : (lot + 1) * IMAGES]
        for seed in range(SEEDS):
            made = trained(HOW, mine[:PUBLISHED], MILD, seed=seed, epochs=EPOCHS)
            for place, epoch in enumerate(EPOCHS):
                found[lot, seed, place] = normal_scores(consistency(made[epoch], mine, MILD))
    ways = {
        "one": found[:, 0, -1],
        "three checkpoints": found[:, 0].mean(axis=1),
        "three trainings": found[:, :, -1].mean(axis=1),
        "nine": found.mean(axis=(1, 2)),
    }
    rng, draws = np.random.default_rng(0), {name: np.empty(DRAWS) for name in ways}
    for draw in range(DRAWS):
        shown = rng.integers(PUBLISHED, size=(LOTS, PUBLISHED))
        held = PUBLISHED + rng.integers(IMAGES - PUBLISHED, size=(LOTS, IMAGES - PUBLISHED))
        rows = np.concatenate([shown, held], axis=1)
        for name, scores in ways.items():
            draws[name][draw] = effect(np.take_along_axis(scores, rows, axis=1))
    result = Result(sys.argv[1], lots=LOTS, images=IMAGES, published=PUBLISHED, epochs=EPOCHS)
    for name, scores in ways.items():
        d, share = effect(scores), (draws["one"] / draws[name]) ** 2
        ends = np.quantile(share, [0.025, 0.975])
        whole = round((effect(ways["one"]) / d) ** 2, 3)
        result.keep({"asked": name, "d": round(d, 3), "images needed": [whole, *map(float, ends.round(3))]})


if __name__ == "__main__":
    main()
