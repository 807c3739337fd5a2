"""How AUC falls with the number of members, at equal steps and at equal epochs, and the law that fits it.

``python -m docs.studies.dilution RESULT.json CACHE`` trains small encoders (resnet8, mild views, constant learning
rate) on 500 to 32,000 images of CIFAR-10 of ``shared``. A lot orders the images: each set of members holds the smaller
ones, and all are judged against the same 4,000 non-members. Judged are the first 4,000 members at most; the 500 of the
smallest set are in all. Checkpoints make one training answer for several numbers of steps and epochs. CACHE keeps their
scores.

An attack sends ten views of an image. One is from answers alone; the other takes from it what an encoder that saw 8,000
other images says of the same views, times a factor from 744 known non-members. Both were chosen on trainings of another
lot. With 4,000 a side an AUC has a standard error of .0065 at .5, with 500 members one of .014: what is less than .513
and .527 is not told from .5. One training for each size: another one may differ by more than these intervals.
"""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from scipy.special import ndtr, ndtri

from docs.studies.shared import MILD, cifar10, rounded_ends
from mi_core.augmentations.views import make_views
from mi_core.encoders.batch_norm import for_queries
from mi_core.encoders.checkpoint import Encoder
from mi_core.features.pairwise_similarity import pairwise_similarity
from mi_core.metrics.delong import auc, auc_difference, placements
from mi_core.objectives import OBJECTIVES
from mi_core.streams import pixel_streams
from mi_core.training.data import ResidentImages
from mi_core.training.loop import Pretrainer, PretrainingParameters
from mi_core.training.optimizers import OptimizerParameters
from mi_core.validity.power import needed_images

_Float64 = npt.NDArray[np.float64]
Scores = dict[str, _Float64]  # by name, higher = more likely a member
BATCH, VIEWS, TEMPERATURE, DRAWS, MOST = 50, 10, 0.2, 2000, 4000  # at most so many members are judged
NONMEMBERS, BANK, KNOWN, OTHERS = range(32000, 36000), range(36000, 36256), range(36256, 37000), range(37000, 45000)
KINDS: Any = {"simclr": {}, "moco-v3": {"temperature": 0.2, "projection_hidden": 256, "projection_width": 128}}
CHOSEN = {"simclr": "projection, log, less reference", "moco-v3": "prediction, log, less reference"}
PLAN = (  # name, images, steps at which they are read, seed; of MoCo v3 fewer, for want of time
    ("simclr", "reference", OTHERS, (70, 280, 1120), 1),
    ("simclr", "500", range(500), (70, 280, 1120), 0),
    ("simclr", "2000", range(2000), (280, 1120), 0),
    ("simclr", "8000", range(8000), (1120, 4480), 0),
    ("simclr", "32000", range(32000), (1120, 4480), 0),
    ("moco-v3", "reference", OTHERS, (70, 280, 1120), 1),
    ("moco-v3", "500", range(500), (70, 280, 1120), 0),
    ("moco-v3", "2000", range(2000), (280, 1120), 0),
    ("moco-v3", "8000", range(8000), (1120,), 0),
)
SETTINGS = (("steps", 1120), ("steps", 4480), ("epochs", 7), ("epochs", 28))
SHARED, SAME = np.arange(500 + MOST) < 500, np.r_[:500, -MOST:0]  # members of all sets, and the non-members


def scores_of(encoder: Encoder, images: torch.Tensor, bank: torch.Tensor) -> Scores:
    """Mean cosine and mean -log(1 - cosine) of an image's views by output, and minus their loss against the bank."""
    encoder = for_queries(copy.deepcopy(encoder), "cpu")
    query = "prediction" if "prediction" in encoder.heads else "projection"
    found: dict[str, list[torch.Tensor]] = {}
    with torch.inference_mode():
        negatives = torch.cat([encoder(part.float() / 255)["projection"] for part in bank.split(64)])
        for part in images.split(25):
            views = make_views(part, pixel_streams("dilution", 0, "query", part), MILD, views=VIEWS)
            answers = {name: each.unflatten(0, (-1, VIEWS)) for name, each in encoder(views.flatten(0, 1)).items()}
            for name, each in answers.items():
                for word, metric in (("cosine", "cosine"), ("log", "log-distance")):
                    pairs = pairwise_similarity(each, metric)
                    found.setdefault(f"{name}, {word}", []).append(pairs.double().mean(dim=1))
            both = zip(answers[query], answers["projection"], strict=True)
            losses = [-info_nce(one, key, negatives) for one, key in both]
            found.setdefault("loss", []).append(torch.stack(losses).double())
    return {name: torch.cat(parts).numpy() for name, parts in found.items()}


def info_nce(queries: torch.Tensor, keys: torch.Tensor, bank: torch.Tensor) -> torch.Tensor:
    """InfoNCE of the views (V, D) of one image against a bank (A, D): the mean over ordered pairs of two views."""
    queries, keys, bank = (F.normalize(one, dim=1) for one in (queries, keys, bank))
    drawn, away = queries @ keys.T / TEMPERATURE, queries @ bank.T / TEMPERATURE
    losses = torch.logaddexp(drawn, away.logsumexp(dim=1, keepdim=True)) - drawn
    return losses[~torch.eye(len(losses), dtype=torch.bool)].mean()


def read(kind: str, pool: torch.Tensor, rows: range, steps: Sequence[int], seed: int) -> Iterator[tuple[int, Scores]]:
    """Steps, and the scores there of the judged images: members, non-members and known non-members."""
    judged = [*range(MOST if rows == OTHERS else min(len(rows), MOST)), *NONMEMBERS, *KNOWN]
    rate = OptimizerParameters(learning_rate=2e-3, schedule="constant", warmup=0)
    settings = OBJECTIVES[kind].Parameters(**KINDS[kind])
    # the momentum of MoCo v3 rises with progress: so many epochs leave it where it is
    how = PretrainingParameters("resnet8", kind, settings, rate, epochs=10**6, batch_size=BATCH)
    data = ResidentImages(pool[rows], [("pool", str(row)) for row in rows], batch_size=BATCH, seed=seed)
    worker = Pretrainer(data, MILD, how, seed=seed)
    worker.trained.train()
    for step in range(steps[-1]):
        if step % data.steps == 0:
            worker.epoch = step // data.steps
            batches = worker.view_batches()
        worker.train_views(*next(batches), step)
        if step + 1 in steps:
            yield step + 1, scores_of(worker.encoder(), pool[judged], pool[BANK])


def less_reference(target: Scores, reference: Scores, members: int) -> Scores:
    """The scores without what the reference predicts of them, as known non-members show it."""
    found = {}
    for name, own in target.items():
        theirs = np.concatenate([reference[name][:members], reference[name][MOST:]])
        slope, _ = np.polyfit(theirs[-len(KNOWN) :], own[-len(KNOWN) :], 1)
        found[f"{name}, less reference"] = own - slope * theirs
    return found


def fitted(sizes: _Float64, primes: _Float64, errors: _Float64) -> tuple[_Float64, _Float64]:
    """a and b (D,) of d' = a (N / 2000) ** -b, by weighted least squares in each row of (D, S)."""
    exponents = np.linspace(-2, 3, 1001)
    shapes, scaled = (sizes / 2000) ** -exponents[:, None] / errors, primes / errors
    factors = scaled @ shapes.T / (shapes**2).sum(axis=1)
    best = (factors**2 * (shapes**2).sum(axis=1)).argmax(axis=1)  # what is explained of the squares
    return factors[np.arange(len(primes)), best], exponents[best]


def law_of(points: dict[int, _Float64]) -> dict[str, Any]:
    """The law of scores by size, its misses (a size less what the others say), and what it says of larger sets."""
    rng, columns = np.random.default_rng(0), []
    ours, theirs = (rng.multinomial(MOST, np.full(MOST, 1 / MOST), DRAWS).astype(float) for _ in range(2))
    for values in points.values():
        members = len(values) - MOST
        inside, outside = placements(values, np.arange(len(values)) < members)
        drawn = ours[:, :members] @ inside / ours[:, :members].sum(axis=1) + theirs @ outside / MOST - inside.mean()
        columns.append(np.sqrt(2) * ndtri(np.append(inside.mean(), drawn).clip(1e-6, 1 - 1e-6)))
    sizes, primes = np.array(list(points), dtype=float), np.stack(columns, axis=1)
    errors = primes[1:].std(axis=0)  # the first row is as measured, the others are draws of the images

    def ends(values: _Float64) -> list[float]:
        return [round(float(one), 6) for one in (values[0], *np.quantile(values[1:], [0.025, 0.975]))]

    def predicted(rows: npt.NDArray[np.bool_], size: float) -> _Float64:
        factor, exponent = fitted(sizes[rows], primes[:, rows], errors[rows])
        return np.asarray(ndtr(factor * (size / 2000) ** -exponent / np.sqrt(2)))

    found: dict[str, Any] = {"sizes": list(points), "d_prime": [ends(column) for column in primes.T]}
    found |= dict(zip(("at_2000", "exponent"), map(ends, fitted(sizes, primes, errors)), strict=True))
    if len(sizes) > 2:
        aucs = ndtr(primes.T / np.sqrt(2))
        found["misses"] = [ends(one - predicted(sizes != size, size)) for one, size in zip(aucs, sizes, strict=True)]
    for size in (1_300_000, 400_000_000):
        three = ends(predicted(sizes > 0, size))
        lots = [needed_images(one, by="lot") if one > 0.5 else None for one in three]
        found[f"at_{size}"] = {"auc": three, "by_lot": lots}
    return found


def summary(kept: dict[tuple[str, str, int], Scores]) -> dict[str, list[dict[str, Any]]]:
    """The laws of the chosen scores, with paired differences of neighbouring sizes; every AUC in rows."""
    rows, laws, series = list[dict[str, Any]](), list[dict[str, Any]](), dict[tuple[str, str], dict[Any, Any]]()
    for (framework, training, step), scores in kept.items():
        members = len(scores["loss"]) - MOST - len(KNOWN)
        beside = less_reference(scores, kept[framework, "reference", min(step, 1120)], members)
        for name, values in (scores if training == "reference" else scores | beside).items():
            used = values[: members + MOST]
            row = {"framework": framework, "training": training, "steps": step, "score": name}
            all_judged, same = auc(used, np.arange(len(used)) < members), auc(used[SAME], SHARED)
            rows.append(row | {"auc": rounded_ends(all_judged, 4), "auc_of_same_500": rounded_ends(same, 4)})
            if training.isdigit() and name in ("loss", CHOSEN[framework]):
                series.setdefault((framework, name), {})[int(training), step] = used
    for ((framework, name), every), (kind, number) in product(series.items(), SETTINGS):
        at = {(step if kind == "steps" else step * BATCH / size, size): used for (size, step), used in every.items()}
        points = {size: used for (this, size), used in sorted(at.items()) if this == number}
        if len(points) > 1:
            law = {"framework": framework, "score": name, "equal": kind, "number": number, **law_of(points)}
            pairs = pairwise(used[SAME] for used in points.values())
            laws.append(
                law | {"next_less_this_of_same_500": [rounded_ends(auc_difference(b, a, SHARED), 4) for a, b in pairs]}
            )
    return {"laws": laws, "rows": rows}


def main(path: str, cache: str) -> None:
    torch.set_num_threads(1)
    kept: dict[tuple[str, str, int], Scores] = {}
    pool = cifar10("train", *range(10))[0][np.random.default_rng(0).permutation(50000)]
    for framework, training, rows, steps, seed in PLAN:
        files = {step: Path(cache) / f"{framework}-{training}-{step}.npz" for step in steps}
        if not files[steps[-1]].exists():
            for step, scores in read(framework, pool, rows, steps, seed):
                np.savez_compressed(files[step], **scores)  # type: ignore[arg-type]
        kept |= {(framework, training, step): dict(np.load(file)) for step, file in files.items()}
        parts = {key: ",\n".join(json.dumps(row) for row in part) for key, part in summary(kept).items()}
        Path(path).write_text("{" + ", ".join(f'"{key}": [\n{text}\n]' for key, text in parts.items()) + "}\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
