"""How often exchangeable groups are confounded, and how the rule by choice does where false_leaks.py did not try it.

``python -m docs.studies.by_choice RESULT.json`` takes CIFAR-10, published networks of ``shared``, digits, and small
encoders that are trained here. Scores, embeddings and features of a pool of images are computed once; a draw takes rows
of it. All draws of a pool share four references, each trained on half of it by
`mi_core.auditing.references.make_references`; of an image those count that did not see it. Nothing was tuned on these
draws.

- *Exchangeable*: candidates and controls are drawn at random from test images that no encoder saw. The target is dead
  (random weights), weak (two epochs) or good (a published ResNet-56).
- *Unused*: no target saw an image; candidates are drawn with weights exp(tau q), controls with exp(-tau q). Every leak
  is false. As in false_leaks.py, all checks are asked in the first draws, then where a leak is still possible.
- *Used*: candidates are images that the target was trained on, controls are others, chosen like that.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.datasets import load_digits

from docs.studies.false_leaks import AUCS, Rows, blind_features, made_references, small, verdict_of
from docs.studies.shared import WIDE, Result, Scores, cifar10, consistency, counted, published, trained, untrained
from mi_core.augmentations.simclr import SimCLRAugmentation
from mi_core.encoders.checkpoint import Encoder
from mi_core.querying.sanity import view_consistency
from mi_core.streams import pixel_streams
from mi_core.training.loop import PretrainingParameters
from mi_core.training.optimizers import OptimizerParameters
from mi_core.validity.verdict import Validity

CROPS = SimCLRAugmentation(crop_scale=(0.8, 1.0), jitter_probability=0, grayscale=0)
DIGITS = SimCLRAugmentation(
    crop_scale=(0.75, 1.0), rotation=8, flip=0, brightness=0.1, contrast=0, saturation=0, hue=0, grayscale=0,
    jitter_probability=1.0,
)  # fmt: skip
DRAWS, CELL, WHOLE = 400, 200, 50  # of exchangeable groups, of a cell, and those of a cell that are read in full


def draw_weighted(rng: np.random.Generator, rows: Rows, liked: Scores, n: int) -> Rows:
    """Some rows, with weights exp(liked)."""
    weights = np.exp(liked[rows])
    return rng.choice(rows, n, replace=False, p=weights / weights.sum())


def standard(values: npt.NDArray[Any]) -> Scores:
    return np.asarray((values - values.mean()) / values.std(), dtype=np.float64)


@dataclass
class Pool:
    """N images, their references, and what somebody chooses by: another encoder's taste, and brightness (N,)."""

    images: torch.Tensor
    references: Scores
    unseen: npt.NDArray[np.bool_]
    embeddings: npt.NDArray[np.float32]
    features: tuple[Scores, npt.NDArray[np.float32]]
    taste: Scores
    look: Scores

    @classmethod
    def with_references(
        cls, images: torch.Tensor, recipe: SimCLRAugmentation, stranger: Encoder, output: str = "backbone"
    ) -> Pool:
        """The pool of some images; its references are trained here.

        Args:
            images: of the pool.
            recipe: of the attack's views.
            stranger: whose taste somebody has.
            output: that the attack reads.
        """
        taste = standard(consistency(stranger, images, recipe, "somebody"))
        look = standard(np.asarray(images.double().mean(dim=(1, 2, 3))))
        return cls(images, *made_references(images, recipe, output), blind_features(images), taste, look)

    def checked(self, candidates: Rows, controls: Rows) -> Callable[[Scores, bool], Validity]:
        """The verdict on scores (N,) of candidates against controls; whether all checks are asked at any rate."""
        rows = np.concatenate([candidates, controls])
        verdict = verdict_of(
            self.references[:, rows],
            self.unseen[:, rows],
            self.embeddings[rows],
            [one[rows] for one in self.features],
            np.arange(len(rows)) < len(candidates),
        )
        return lambda scores, whole: verdict(scores[rows], whole)


def summed(name: str, draws: Sequence[Validity], whole: int, **told: Any) -> dict[str, Any]:
    """A row of the result; the first ``whole`` draws were read with all checks."""
    row: dict[str, Any] = {"case": name, **told, "draws": len(draws)}
    for verdict, some in (("leak", draws), ("confounded", draws[:whole]), ("undecided", draws[:whole])):
        count = sum(one.verdict == verdict for one in some)
        row[verdict] = {"of": len(some), "n": count, "ci95": counted(count, len(some))}
    return row | {
        field: round(float(np.mean([getattr(one, field).value for one in draws[:whole]])), 3) for field in AUCS
    }


def exchangeable(result: Result, pool: Pool, scores: dict[str, Scores], works: dict[str, bool], draws: int) -> None:
    for n in (100, 150, 500):
        found: dict[str, list[Validity]] = {name: [] for name in scores}
        for number in range(draws):
            order = np.random.default_rng([13, n, number]).permutation(len(pool.images))
            verdict = pool.checked(order[:n], order[n : 2 * n])
            for name, own in scores.items():
                found[name].append(replace(verdict(own, True), works=works[name]))
        for name, some in found.items():
            differ = sum(bool(one.differing) for one in some)
            result.keep(summed("exchangeable", some, draws, target=name, works=works[name], n=n, checks_differ=differ))


def cells_of_cifar10(result: Result, cells: Callable[..., None], draws: int) -> None:
    """Published networks, and small ones that are trained here."""
    test, (images, classes) = cifar10("test", 0, 1)[0][:1600], cifar10("train", 2)
    good = published(56)
    weak = trained(small("simclr", 2), images[:2000], WIDE)[2]
    targets = {"dead": untrained(good, 0), "weak": weak, "good": good}
    pool, every = Pool.with_references(test, WIDE, published(20)), np.arange(len(test))
    scores = {name: consistency(one, test) for name, one in targets.items()}
    streams = pixel_streams("audit", 0, "probe", test[:256])
    fresh = {"dead": untrained(good, 1), "weak": None, "good": untrained(good, 1)}
    works = {
        name: bool(view_consistency(one, fresh[name], test[:256], streams, WIDE)["works"])
        for name, one in targets.items()
    }
    exchangeable(result, pool, scores, works, draws)
    tastes = [("taste", tau) for tau in (1.0, 1.5, 2.0)]
    cells("unused", "ResNet-56", pool, scores["good"], 500, [every, every], tastes)

    audited, name = torch.cat([images[:400], images[2000:2800]]), "ResNet-8, supervised"
    pool, strangers = Pool.with_references(audited, CROPS, published(20)), np.arange(400, 1200)
    target = trained(small("supervised", 100), images[:400], CROPS, classes=classes[:400].tolist())[100]
    found = consistency(target, audited, CROPS)
    cells("used", name, pool, found, 300, [np.arange(400), strangers], [("taste", 0.0), ("taste", 0.25)])
    cells("unused", name, pool, found, 300, [strangers, strangers], [("taste", 1.0), ("taste", 2.0)])


def main(path: str, draws: int = DRAWS, cell: int = CELL, part: str = "") -> None:
    """Make the rows; ``part``: ``strong`` for those of a strong leak alone."""
    torch.set_num_threads(1)
    result = Result(path)

    def cells(
        name: str, target: str, pool: Pool, scores: Scores, n: int, sides: list[Rows], chosen: list[tuple[str, float]]
    ) -> None:
        """Draws with weights exp(tau q) from the first side, exp(-tau q) from the second, which may be the same."""
        whole = cell if name == "used" else min(WHOLE, cell)
        for quality, tau in chosen:
            liked, found = getattr(pool, quality), []
            for number in range(cell):
                rng = np.random.default_rng([11, number])
                candidates = draw_weighted(rng, sides[0], tau * liked, n)
                controls = draw_weighted(rng, np.setdiff1d(sides[1], candidates), -tau * liked, n)
                found.append(pool.checked(candidates, controls)(scores, number < whole))
            result.keep(summed(name, found, whole, target=target, n=n, by=quality, tau=tau))

    if not part:
        cells_of_cifar10(result, cells, draws)
    sheets = torch.from_numpy((load_digits().images * 15.9375).round().astype(np.uint8))[:, None]
    sheets = sheets[torch.from_numpy(np.random.default_rng(0).permutation(len(sheets)))]
    optimizer = OptimizerParameters(learning_rate=0.005, weight_decay=1e-4, schedule="constant", warmup=0.03)
    how = PretrainingParameters("conv4", "simclr", None, optimizer, epochs=400, batch_size=220)
    target, stranger = (trained(how, sheets[start : start + 440], DIGITS)[400] for start in (0, 440))
    kept, others = torch.cat([sheets[:440], sheets[880:]]), np.arange(440, 1357)
    name, output = "digits, projection", "projection"
    pool, found = Pool.with_references(kept, DIGITS, stranger, output), consistency(target, kept, DIGITS, output=output)
    mild = [*(("look", tau) for tau in (0.0, 0.1, 0.25, 0.5)), ("taste", 0.25), ("taste", 0.5)]
    cells("used", name, pool, found, 300, [np.arange(440), others], mild)
    cells("unused", name, pool, found, 300, [others, others], [("look", 0.5), ("taste", 1.0), ("taste", 2.0)])
    if part:
        return

    name, pool = "digits, SimCLR", Pool.with_references(kept, DIGITS, stranger)
    found = consistency(target, kept, DIGITS)
    looks = [*(("look", tau) for tau in (0.0, 0.25, 0.5, 1.0)), ("taste", 0.5)]
    cells("used", name, pool, found, 300, [np.arange(440), others], looks)
    cells("unused", name, pool, found, 300, [others, others], [("look", 1.0), ("taste", 1.0), ("taste", 2.0)])


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:4]), *sys.argv[4:])
