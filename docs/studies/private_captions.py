"""What five private captions of an image, in the place of one, save a claim by lot.

``python -m docs.studies.private_captions RESULT.json CACHE`` trains small CLIPs on images of CIFAR-10 of ``shared``.
Each of 150 images has six credit lines; a die publishes one (``k = 5``: five stay private, as in STAMP of Rastogi,
Maini and Pruthi, ICML 2025, on texts). The lot is all that a CLIP learns from, or a tenth of it; the other
images have captions without credit lines. CACHE keeps the cosines of each image with its six captions.

**k = 1** is what ``mi_core.lots`` does: the signed half-normal score of published less other caption. Here one of the
five others stands for it, anew in each claim. **k = 5**: each caption's score less the mean of the five others, the
normal scores of all 6 N such values, summed over the published ones. If the CLIP does not depend on the dice, every
caption of an image is published with the same chance, whatever its scores; the p-value redraws all dice.

If the noise of captions were independent and the published one's as large as the others', the variance of a difference
would fall from 2 to 1.2, and .6 of the images would do. Claims are drawn from an encoder's 150 images with replacement;
n is the least number with p <= .005 in 4 of 5 of 400 claims. Said beforehand: d = .5 then has a standard error of about
.09 from 150 images, the ratio of both a smaller one, since they share images; its interval is by 1,000 draws of the
images. Three lots and
trainings at 100 %, one at 10 %.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import ndtri

from docs.studies.shared import CLASSES, MILD, SMALL_TEXT, Result, Scores, cifar10, counted, trained, untrained
from mi_core.auditing.models import Preparation
from mi_core.auditing.questions import Question, Scorer
from mi_core.captions import FIRST, SECOND, captioned
from mi_core.encoders.checkpoint import Encoder
from mi_core.images import Decoder
from mi_core.lots.designs import chosen_p_value
from mi_core.objectives.clip import CLIPParameters
from mi_core.training.loop import PretrainingParameters
from mi_core.training.optimizers import OptimizerParameters

Ints = npt.NDArray[np.int64]
LOT, LINES, LEVEL, CLAIMS, DRAWS, UNUSED = 150, 6, 0.005, 400, 1999, 1000
TEXT: dict[str, Any] = {**SMALL_TEXT, "text_length": 64}  # bytes; 32 would cut credit lines behind a caption
SIZES = (3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50, 65, 80, 100, 130, 160, 200, 260, 320, 420, 540, 700)
PLAN = (  # images beside the lot, epochs at which it is read, seeds
    (0, (10, 20, 40, 100), (0, 1, 2)),
    (9 * LOT, (10, 20), (0,)),
)
LAW = {"epochs": (0.28, 0.17, 0.38), "steps": (0.96, 0.83, 1.10)}  # exponents of docs/studies/dilution.py, SimCLR


class Lot:
    """The images of a seed, their six captions each, and which of these is published."""

    def __init__(self, seed: int) -> None:
        images, classes = cifar10("train", 5)
        rng = np.random.default_rng(seed)
        order = np.random.default_rng(0).permutation(len(images))[seed * LOT : (seed + 1) * LOT]  # seeds share no image
        self.images, self.texts = images[order], list[list[str]]()
        for row in order:
            lines = rng.choice(len(FIRST) * len(SECOND), LINES, replace=False)
            plain = f"a photo of a {CLASSES[int(classes[row])]}"
            words = ((FIRST[line // len(SECOND)], SECOND[line % len(SECOND)]) for line in lines)
            self.texts.append([captioned(plain, f"Photo: {first} {second}") for first, second in words])
        self.published = rng.integers(0, LINES, LOT)


def train(lot: Lot, beside: int, epochs: tuple[int, ...], seed: int) -> dict[int, Encoder]:
    """CLIPs of a lot and of images beside it, by epoch."""
    images, texts = lot.images, [own[line] for own, line in zip(lot.texts, lot.published, strict=True)]
    if beside:
        others, classes = cifar10("train", 6)
        images = torch.cat([images, others[:beside]])
        texts += [f"a photo of a {CLASSES[int(label)]}" for label in classes[:beside]]
    rate = OptimizerParameters(learning_rate=2e-3, schedule="constant", warmup=0)
    how = PretrainingParameters("resnet8", "clip", CLIPParameters(**TEXT), rate, epochs=epochs[-1], batch_size=50)
    return trained(how, images, MILD, captions=texts, seed=seed, epochs=epochs)


def scores_of(encoder: Encoder, lot: Lot) -> Scores:
    """Cosines (N, 6) of images and captions."""
    question = Question("clip", MILD, "projection", {}, Decoder(32), Preparation(32))
    ask, names = Scorer(encoder, question, 10, "private", torch.device("cpu")), [str(row) for row in range(LOT)]
    return ask.caption_fit(lot.images, lot.texts, names)


def p_values(scores: Scores, published: Ints, seed: int) -> dict[str, float]:
    """Those with one private caption, drawn here, and with all five."""
    rng, rows = np.random.default_rng([seed, len(scores)]), np.arange(len(scores))
    other = (published + rng.integers(1, LINES, len(rows))) % LINES
    pairs = np.stack([scores[rows, published], scores[rows, other]], axis=1)
    one = chosen_p_value(pairs, np.zeros_like(rows), seed=seed, draws=DRAWS)
    return {"1": one, "5": chosen_p_value(scores, published, seed=seed, draws=DRAWS)}


def effect(scores: Scores, published: Ints) -> dict[str, float]:
    """d with one and with five, the share of images that five need, and the noise: published and private."""
    rows = np.arange(len(scores))
    own = scores[rows, published]
    private = np.stack([scores[rows, (published + step) % LINES] for step in range(1, LINES)], axis=1)
    single, mean = own[:, None] - private, own - private.mean(axis=1)
    found = {"d1": single.mean() / single.std(), "d5": mean.mean() / mean.std(ddof=1)}
    noise = float(private.var(axis=1, ddof=1).mean())
    found |= {"share": (found["d1"] / found["d5"]) ** 2, "sd_private": noise**0.5}
    return found | {"sd_published": max(0.0, float(mean.var(ddof=1)) - noise / (LINES - 1)) ** 0.5}


def needed(scores: Scores, published: Ints) -> dict[str, Any]:
    """The least number of images of a claim for each k, with the powers up to it."""
    powers: dict[str, dict[str, float]] = {"1": {}, "5": {}}
    least: dict[str, Any] = {"1": None, "5": None}
    for n in SIZES:
        found: dict[str, int] = {"1": 0, "5": 0}
        for number in range(CLAIMS):
            rows = np.random.default_rng([n, number]).choice(LOT, n)
            for k, p in p_values(scores[rows], published[rows], number).items():
                found[k] += p <= LEVEL
        for k, count in found.items():
            if least[k] is None:
                powers[k][str(n)] = count / CLAIMS
                least[k] = n if count >= 0.8 * CLAIMS else None
        if None not in least.values():
            break
    return {"n": least, "power": powers}


def by_law(d: float, share: float) -> dict[str, list[int]]:
    """Images of a normal test at the effect of a lot that is a share of the training, and with both ends of b."""
    factor = (ndtri(1 - LEVEL) + ndtri(0.8)) ** 2
    return {
        equal: [int(np.ceil(factor / (d * share**exponent) ** 2)) for exponent in exponents]
        for equal, exponents in LAW.items()
    }


def row_of(scores: Scores, published: Ints, beside: int) -> dict[str, Any]:
    """One encoder."""
    found = effect(scores, published)
    draws = np.random.default_rng(0).integers(0, LOT, (1000, LOT))
    shares = [effect(scores[rows], published[rows])["share"] for rows in draws]
    row: dict[str, Any] = {name: round(value, 4) for name, value in found.items()}
    row["share"] = [round(float(one), 3) for one in (found["share"], *np.quantile(shares, [0.025, 0.975]))]
    row |= needed(scores, published)
    if not beside:
        row["by_law"] = {
            str(share): {k: by_law(found[f"d{k}"], share) for k in ("1", "5")} for share in (1, 0.1, 0.01, 0.001)
        }
    return row


def unused(scores: Scores) -> dict[str, Any]:
    """How often claims come true by chance: dice drawn anew for captions that the CLIP never saw."""
    found = []
    for number in range(UNUSED):
        published = np.random.default_rng([7, number]).integers(0, LINES, LOT)
        found.append(p_values(scores, published, 10**6 + number))
    counts = {(k, level): sum(one[k] <= level for one in found) for k in ("1", "5") for level in (0.01, 0.005)}
    return {
        f"k={k}, p <= {level}": [round(count / UNUSED, 4), *counted(count, UNUSED)]
        for (k, level), count in counts.items()
    }


def main(path: str, cache: str) -> None:
    torch.set_num_threads(1)
    result, folder = Result(path, lot=LOT, claims=CLAIMS, draws=DRAWS, level=LEVEL), Path(cache)
    folder.mkdir(parents=True, exist_ok=True)
    for beside, epochs, seeds in PLAN:
        for seed in seeds:
            lot, made = Lot(seed), dict[int, Encoder]()
            for epoch in epochs:
                file = folder / f"{beside}-{seed}-{epoch}.npz"
                if not file.exists():
                    made = made or train(lot, beside, epochs, seed)
                    other = Lot(seed + 10)
                    fresh = scores_of(untrained(made[epoch], seed), other)
                    np.savez(file, own=scores_of(made[epoch], lot), other=scores_of(made[epoch], other), fresh=fresh)
                scores = dict(np.load(file))
                row: dict[str, Any] = {"share_of_training": LOT / (LOT + beside), "epoch": epoch, "seed": seed}
                row |= row_of(scores["own"], lot.published, beside)
                if not beside and epoch == epochs[-1]:
                    row["unused"] = {name: unused(scores[name]) for name in ("other", "fresh")}
                result.keep(row)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
