"""How often exchangeable groups are confounded, and how the rule by choice does where false_leaks.py did not try it.

``python tests/by_choice.py RESULT.json`` takes CIFAR-10, published networks of ``shared``, digits, and small encoders
that are trained here. Scores, embeddings and features of a pool of images are computed once; a draw takes rows of it.
All draws of a pool share four references, each trained on half of it by `mi_core.auditing.references.make_references`;
of an image those count that did not see it. Nothing was tuned on these draws.

- *Exchangeable*: candidates and controls are drawn at random from test images that no encoder saw. The target is dead
  (random weights), weak (two epochs) or good (a published ResNet-56).
- *Unused*: no target saw an image; candidates are drawn with weights exp(tau q), controls with exp(-tau q). Every leak
  is false. As in false_leaks.py, all checks are asked in the first draws, then where a leak is still possible.
- *Used*: candidates are images that the target was trained on, controls are others, chosen like that.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from mi_core.auditing.references import make_references  # noqa: E402
from mi_core.augmentations.simclr import SimCLRAugmentation  # noqa: E402
from mi_core.augmentations.views import make_views  # noqa: E402
from mi_core.encoders.checkpoint import Encoder  # noqa: E402
from mi_core.metrics.delong import auc  # noqa: E402
from mi_core.metrics.intervals import clopper_pearson  # noqa: E402
from mi_core.objectives import OBJECTIVES  # noqa: E402
from mi_core.querying.sanity import view_consistency  # noqa: E402
from mi_core.streams import pixel_streams  # noqa: E402
from mi_core.training.data import ResidentImages, by_content  # noqa: E402
from mi_core.training.loop import Pretrainer, PretrainingParameters  # noqa: E402
from mi_core.training.optimizers import OptimizerParameters  # noqa: E402
from mi_core.validity.blind import blind_scores, semantic_scores  # noqa: E402
from mi_core.validity.bursts import find_bursts  # noqa: E402
from mi_core.validity.file_features import pixel_features, shrunken  # noqa: E402
from mi_core.validity.unseen import Scale, mean_of_unseen  # noqa: E402
from mi_core.validity.verdict import Validity, judge  # noqa: E402
from tests.encoder_works import cifar10, published, untrained  # noqa: E402
from tests.false_leaks import embedded, possible  # noqa: E402

Rows = npt.NDArray[np.intp]
Scores = npt.NDArray[np.float64]
WIDE = SimCLRAugmentation()
CROPS = SimCLRAugmentation(crop_scale=(0.8, 1.0), jitter_probability=0, grayscale=0)
DIGITS = SimCLRAugmentation(
    crop_scale=(0.75, 1.0), rotation=8, flip=0, brightness=0.1, contrast=0, saturation=0, hue=0, grayscale=0,
    jitter_probability=1.0,
)  # fmt: skip
DRAWS, CELL, WHOLE = 400, 200, 50  # of exchangeable groups, of a cell, and those of a cell that are read in full


@torch.inference_mode()
def consistency(encoder: Encoder, images: torch.Tensor, recipe: SimCLRAugmentation, nonce: str = "audit") -> Scores:
    """The mean cosine (N,) of ten views of each image."""
    found = []
    for some in images.split(250):
        views = make_views(some, pixel_streams(nonce, 0, "query", some), recipe, views=10)
        unit = F.normalize(encoder(views.flatten(0, 1))["backbone"].float(), dim=1).unflatten(0, (-1, 10))
        found.append(((unit @ unit.transpose(1, 2)).sum(dim=(1, 2)) - 10) / 90)
    return np.asarray(torch.cat(found).double())


def trained(
    how: PretrainingParameters, images: torch.Tensor, classes: torch.Tensor, recipe: SimCLRAugmentation
) -> Encoder:
    """An encoder of some images."""
    framework = OBJECTIVES[how.objective]
    names = [("train", str(row)) for row in range(len(images))]
    targets = (
        framework.encode_targets(framework.Parameters(), classes.tolist(), [""] * len(images))
        if framework.target
        else None
    )
    data = ResidentImages(images, names, targets, batch_size=how.batch_size, seed=0)
    worker = Pretrainer(data, recipe, how, seed=0)
    for _ in range(how.epochs):
        worker.train_epoch()
    return worker.encoder().eval()


def small(objective: str, epochs: int) -> PretrainingParameters:
    """A ResNet-8 for CIFAR-10."""
    optimizer = OptimizerParameters(learning_rate=2e-3, schedule="cosine")
    return PretrainingParameters("resnet8", objective, None, optimizer, epochs=epochs, batch_size=100)


def drawn(rng: np.random.Generator, rows: Rows, liked: Scores, n: int) -> Rows:
    """Some rows, with weights exp(liked)."""
    weights = np.exp(liked[rows])
    return rng.choice(rows, n, replace=False, p=weights / weights.sum())


def standard(values: npt.NDArray[Any]) -> Scores:
    return np.asarray((values - values.mean()) / values.std(), dtype=np.float64)


@dataclass
class Pool:
    """N images with all that draws from them need.

    Args:
        references: (K, N) scores of the attack on references; seen: (K, N) the images that each was trained on.
        embeddings: (N, D) of the references.
        summaries, pixels: what the blind classifier sees.
        taste, look: (N,) what somebody chooses by: how another encoder likes an image, and its brightness.
    """

    references: Scores
    seen: npt.NDArray[np.bool_]
    embeddings: npt.NDArray[np.float32]
    summaries: Scores
    pixels: npt.NDArray[np.float32]
    taste: Scores
    look: Scores

    @classmethod
    def of(cls, images: torch.Tensor, recipe: SimCLRAugmentation, stranger: Encoder) -> Pool:
        """Train the references; ``recipe``: of the attack's views; ``stranger``: whose taste somebody has."""
        order, names = by_content(images)
        hashes = [""] * len(images)
        for row, (_, sha) in zip(order.tolist(), names, strict=True):
            hashes[row] = sha
        own = make_references(images.numpy(), hashes, seed=0, nonce="audit", device=torch.device("cpu"))
        encoders = [one.model.encoder for one in own]
        return cls(
            np.stack([consistency(one, images, recipe) for one in encoders]),
            np.stack([one.seen for one in own]),
            np.concatenate([embedded(one, images) for one in encoders], axis=1),
            np.stack([pixel_features(one) for one in images.numpy()]),
            np.stack([shrunken(one) for one in images.numpy()]),
            standard(consistency(stranger, images, recipe, "somebody")),
            standard(np.asarray(images.double().mean(dim=(1, 2, 3)))),
        )

    def checked(self, candidates: Rows, controls: Rows) -> Callable[[Scores, bool], Validity]:
        """The verdict on scores (N,) of candidates against controls; whether all checks are asked at any rate."""
        rows = np.concatenate([candidates, controls])
        member, seen, own = np.arange(len(rows)) < len(candidates), self.seen[:, rows], self.references[:, rows]
        scales = [Scale.fit(row[~mine]) for row, mine in zip(own, seen, strict=True)]
        control, embeddings = mean_of_unseen(list(own), list(seen), scales), self.embeddings[rows]
        groups = find_bursts(embeddings, member)
        slow: list[Any] = []

        def verdict(scores: Scores, whole: bool) -> Validity:
            quick = judge(scores[rows], None, control, member, groups, trained=True)
            if not whole and not possible(quick):
                return quick
            if not slow:
                slow.append(blind_scores(self.summaries[rows], self.pixels[rows], member, seed=0))
                slow.append(auc(semantic_scores(embeddings, member, seed=0), member, groups))
            return judge(scores[rows], slow[0], control, member, groups, semantic_auc=slow[1], trained=True)

        return verdict


def summed(name: str, draws: Sequence[Validity], whole: int, **told: Any) -> dict[str, Any]:
    """A row of the result; the first ``whole`` draws were read with all checks."""
    row: dict[str, Any] = {"case": name, **told, "draws": len(draws)}
    for verdict, some in (("leak", draws), ("confounded", draws[:whole]), ("undecided", draws[:whole])):
        count = sum(one.verdict == verdict for one in some)
        row[verdict] = {
            "of": len(some),
            "n": count,
            "ci95": [round(end, 4) for end in clopper_pearson(count, len(some))],
        }
    for field in ("attack_auc", "blind_auc", "semantic_auc", "control_auc"):
        row[field] = round(float(np.mean([getattr(one, field).value for one in draws[:whole]])), 3)
    return row


def main(path: str) -> None:
    torch.set_num_threads(1)
    began, rows = time.perf_counter(), list[dict[str, Any]]()

    def keep(row: dict[str, Any]) -> None:
        rows.append(row)
        spent = {"seconds": round(time.perf_counter() - began), "core_seconds": round(time.process_time())}
        print(row, spent, flush=True)  # noqa: T201
        Path(path).write_text(json.dumps({"rows": rows, **spent}, indent=1) + "\n")

    def cell(
        name: str, pool: Pool, scores: Scores, n: int, quality: str, tau: float, sides: list[Rows], target: str
    ) -> None:
        """Draws with weights exp(tau q) from the first side, exp(-tau q) from the second, which may be the same."""
        whole, found = CELL if name == "used" else WHOLE, []
        for number in range(CELL):
            rng = np.random.default_rng([11, number])
            liked = getattr(pool, quality)
            candidates = drawn(rng, sides[0], tau * liked, n)
            controls = drawn(rng, np.setdiff1d(sides[1], candidates), -tau * liked, n)
            found.append(pool.checked(candidates, controls)(scores, number < whole))
        keep(summed(name, found, whole, target=target, n=n, by=quality, tau=tau))

    test = torch.cat([cifar10("test", shard)[0] for shard in (0, 1)])[:1600]
    images, classes = cifar10("train", 2)
    good = published(56)
    weak = trained(small("simclr", 2), images[:2000], classes[:2000], WIDE)
    targets = {"dead": untrained(good, 0), "weak": weak, "good": good}
    pool, every = Pool.of(test, WIDE, published(20)), np.arange(len(test))
    scores = {name: consistency(one, test, WIDE) for name, one in targets.items()}
    streams = pixel_streams("audit", 0, "probe", test[:256])
    fresh = {"dead": untrained(good, 1), "weak": None, "good": untrained(good, 1)}
    works = {
        name: bool(view_consistency(one, fresh[name], test[:256], streams, WIDE)["works"])
        for name, one in targets.items()
    }
    for n in (100, 150, 500):
        found: dict[str, list[Validity]] = {name: [] for name in targets}
        for number in range(DRAWS):
            order = np.random.default_rng([13, n, number]).permutation(every)
            verdict = pool.checked(order[:n], order[n : 2 * n])
            for name, own in scores.items():
                found[name].append(replace(verdict(own, True), works=works[name]))
        for name, draws in found.items():
            differ = sum(bool(one.differing) for one in draws)
            keep(summed("exchangeable", draws, DRAWS, target=name, works=works[name], n=n, checks_differ=differ))
    for tau in (1.0, 1.5, 2.0):
        cell("unused", pool, scores["good"], 500, "taste", tau, [every, every], "ResNet-56")

    audited = torch.cat([images[:400], images[2000:2800]])
    own, strangers = Pool.of(audited, CROPS, published(20)), np.arange(400, 1200)
    target = trained(small("supervised", 100), images[:400], classes[:400], CROPS)
    of_supervised = consistency(target, audited, CROPS)
    for tau in (0.0, 0.25):
        cell("used", own, of_supervised, 300, "taste", tau, [np.arange(400), strangers], "ResNet-8, supervised")
    for tau in (1.0, 2.0):
        cell("unused", own, of_supervised, 300, "taste", tau, [strangers, strangers], "ResNet-8, supervised")

    sheets = torch.from_numpy((load_digits().images * 15.9375).round().astype(np.uint8))[:, None]
    sheets = sheets[torch.from_numpy(np.random.default_rng(0).permutation(len(sheets)))]
    optimizer = OptimizerParameters(learning_rate=0.005, weight_decay=1e-4, schedule="constant", warmup=0.03)
    how = PretrainingParameters("conv4", "simclr", None, optimizer, epochs=400, batch_size=220)
    labels = torch.zeros(440, dtype=torch.int64)
    target, stranger = (trained(how, sheets[start : start + 440], labels, DIGITS) for start in (0, 440))
    kept = torch.cat([sheets[:440], sheets[880:]])
    written, others = Pool.of(kept, DIGITS, stranger), np.arange(440, len(kept))
    of_digits = consistency(target, kept, DIGITS)
    for quality, tau in (("look", 0.0), ("look", 0.25), ("look", 0.5), ("look", 1.0), ("taste", 0.5)):
        cell("used", written, of_digits, 300, quality, tau, [np.arange(440), others], "digits, SimCLR")
    for quality, tau in (("look", 1.0), ("taste", 1.0), ("taste", 2.0)):
        cell("unused", written, of_digits, 300, quality, tau, [others, others], "digits, SimCLR")


if __name__ == "__main__":
    main(sys.argv[1])
