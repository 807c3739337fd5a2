"""What two versions of an encoder tell of the images of an update, beside what the later one tells alone.

``python -m docs.studies.updates RESULT.json [SEEDS]`` trains small SimCLR encoders on CIFAR-10 of ``shared``: a
version 1, and later versions that go on from it, or that are trained anew. Images of the update (members) and images
that no version saw are drawn from one pool, by lot, and asked by the same views of both versions. No image serves two
seeds. Weights and lines of scores are fitted on known images, which are not judged. One encoder is updated with other
images: there nothing may tell the two sides apart. All settings were fixed before the first run; nothing was chosen on
the results.
"""

from __future__ import annotations

import sys

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from docs.studies.shared import Result, Scores, cifar10, rounded_ends, trained
from mi_core.augmentations.simclr import SimCLRAugmentation
from mi_core.augmentations.views import make_views
from mi_core.encoders.checkpoint import Encoder
from mi_core.features.pairwise_similarity import pairwise_similarity
from mi_core.metrics.delong import auc, auc_difference
from mi_core.metrics.pooled import pool
from mi_core.objectives.simclr import SimCLRParameters
from mi_core.records import BoolArray, Estimate
from mi_core.streams import sample_streams
from mi_core.training.loop import PretrainingParameters
from mi_core.training.optimizers import OptimizerParameters

JUDGED, KNOWN, VIEWS, NEAREST = 500, 100, 10, 10
SIDE = JUDGED + KNOWN
BASE, BATCH, SHARDS = 1500, 120, 3
UPDATES = (10, 30)  # epochs after which the later version is asked; of twice as many images two thirds
AUGMENTATION = SimCLRAugmentation(
    crop_scale=(0.4, 1.0), brightness=0.3, contrast=0.3, saturation=0.3, hue=0.05, grayscale=0.1
)
BESIDE = ("difference", "line", "line, three numbers", "drift", "less neighbours", "both, regression")


def versions(
    images: torch.Tensor, rows: list[int], epochs: tuple[int, ...], seed: int, start: Encoder | None
) -> dict[int, Encoder]:
    """Encoders by epoch, trained on some images of the pool."""
    optimizer = OptimizerParameters(name="adamw", learning_rate=0.002, weight_decay=1e-4, schedule="constant")
    objective = SimCLRParameters(temperature=0.2, projection_hidden=256, projection_width=128)
    how = PretrainingParameters("resnet8", "simclr", objective, optimizer, epochs=epochs[-1], batch_size=BATCH)
    names = [("pool", str(row)) for row in rows]
    return trained(how, images[rows], AUGMENTATION, names=names, seed=seed, epochs=epochs, start=start)


def projections_of(encoder: Encoder, views: torch.Tensor) -> torch.Tensor:
    """(N, V, D) projections of views (V, N, C, S, S)."""
    with torch.inference_mode():
        return torch.stack([torch.cat([encoder(part)["projection"] for part in one.split(300)]) for one in views], 1)


def numbers_of(answers: torch.Tensor) -> Scores:
    """(N, 3): -log(1 - mean cosine) of the views, the log of the spread of their cosines, the log of the norm."""
    cosines = pairwise_similarity(answers).double().numpy()
    norm = answers.double().norm(dim=2).mean(dim=1).numpy()
    columns = -np.log1p(-cosines.mean(axis=1)), np.log(cosines.std(axis=1)), np.log(norm)
    return np.stack(columns, axis=1)


def scores_of(before: torch.Tensor, after: torch.Tensor, member: BoolArray, known: BoolArray) -> dict[str, Scores]:
    """Scores by name, higher = more likely an image of the update; what is learned is learned on known images."""
    first, second = numbers_of(before), numbers_of(after)
    outside, change = known & ~member, second[:, 0] - first[:, 0]
    drift = 1 - F.cosine_similarity(before, after, dim=2).double().mean(dim=1).numpy()

    def beyond(columns: Scores) -> Scores:
        """How far the later number lies above the line through known non-members."""
        design = np.column_stack([np.ones(len(columns)), columns])
        line = np.linalg.lstsq(design[outside], second[outside, 0], rcond=None)[0]
        return np.asarray(second[:, 0] - design @ line)

    def regression(columns: Scores) -> Scores:
        standard = StandardScaler().fit(columns[known]).transform(columns)
        learned = LogisticRegression(C=0.1).fit(standard[known], member[known])
        return np.asarray(learned.decision_function(standard))

    centre = F.normalize(F.normalize(before, dim=2).mean(dim=1), dim=1).double().numpy()
    near = centre @ centre[outside].T
    near[outside, np.arange(outside.sum())] = -2  # not its own neighbour
    neighbours = np.argsort(-near, axis=1)[:, :NEAREST]
    return {
        "after alone": second[:, 0],
        "before alone": first[:, 0],
        "difference": change,
        "line": beyond(first[:, :1]),
        "line, three numbers": beyond(first),
        "drift": drift,
        "less neighbours": change - change[outside][neighbours].mean(axis=1),
        "after, regression": regression(second),
        "both, regression": regression(np.column_stack([second, first, drift])),
    }


def rows_of(seed: int, pool_: torch.Tensor) -> list[tuple[str, int, str, Estimate]]:
    """(update, epoch, score, AUC or difference) of one seed."""
    images = pool_[seed * (4 * SIDE + BASE) :][: 4 * SIDE + BASE]
    a, b, _, others, base = (
        list(range(at, at + count)) for at, count in [(SIDE * part, SIDE) for part in range(4)] + [(4 * SIDE, BASE)]
    )
    asking = slice(SIDE, 3 * SIDE)
    streams = sample_streams(seed, "train", [("asked", str(row)) for row in range(SIDE, 3 * SIDE)])
    views = make_views(images[asking], streams, AUGMENTATION, views=VIEWS).transpose(0, 1)
    member = np.arange(2 * SIDE) < SIDE
    known = np.arange(2 * SIDE) % SIDE >= JUDGED
    one = versions(images, a, (20,), seed, None)[20]
    public = versions(images, base, (10,), seed, None)[10]
    updates = {
        "by the images": (one, one, b),
        "by earlier and new images": (one, one, a + b),
        "anew on the images": (one, None, b),
        "of a public base": (public, public, b),
        "by others": (one, one, others),
    }
    found, earlier = [], {id(which): projections_of(which, views) for which in (one, public)}
    for name, (before, start, rows) in updates.items():
        epochs = UPDATES if len(rows) == SIDE else (UPDATES[0], UPDATES[1] * 2 // 3)
        for epoch, after in versions(images, rows, epochs, seed + 100, start).items():
            scores = scores_of(earlier[id(before)], projections_of(after, views), member, known)
            judged = {score: values[~known] for score, values in scores.items()}
            found += [(name, epoch, score, auc(values, member[~known])) for score, values in judged.items()]
            pairs = [(score, "after alone") for score in BESIDE] + [("both, regression", "after, regression")]
            for more, less in pairs:
                paired = auc_difference(judged[more], judged[less], member[~known])
                found.append((name, epoch, f"{more}, less {less}", paired))
    return found


def main(path: str, most: int = 3) -> None:
    torch.set_num_threads(1)
    result, found = Result(path), dict[tuple[str, int, str], list[Estimate]]()
    images, _ = cifar10("train", *range(SHARDS))
    pool_ = images[np.random.default_rng(0).permutation(len(images))]
    for seed in range(most):
        for *key, estimate in rows_of(seed, pool_):
            found.setdefault(tuple(key), []).append(estimate)  # type: ignore[arg-type]
        result.rows = []
        for (update, epoch, score), estimates in found.items():
            pooled, seeds = pool(estimates), [round(each.value, 3) for each in estimates]
            row = {"update": update, "epoch": epoch, "score": score}
            result.rows.append(row | {"value": rounded_ends(pooled), "seeds": seeds, "n": pooled.n})
        result.write()


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
