"""How often the rule by choice says leak of images that no encoder saw, with networks that others trained.

``python -m docs.studies.false_leaks RESULT.json`` takes CIFAR-10's test images and two published networks of
``shared``. The target is ResNet-56, and somebody chooses candidates and controls by the taste of ResNet-20, by content,
in bursts, or by variants of the pixels. References are given (two small encoders trained on other images) or made here.
Every leak is false. Nothing was tuned on these draws.

A check more can only lower the robustness. So a draw that is no leak with fewer checks is none with all of them, and
the slow checks are asked only where the quick ones leave a leak possible. All checks are asked in the first draws of
each case (`read`), which also tell how often the verdict is *confounded*, and how often the attack was merely above
both the blind classifier and the references (`above_both`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from docs.studies.shared import WIDE, Result, Scores, cifar10, consistency, counted, embedded, published, trained
from mi_core.auditing.models import make_references
from mi_core.augmentations.simclr import SimCLRAugmentation
from mi_core.augmentations.views import clean
from mi_core.encoders.checkpoint import Encoder
from mi_core.metrics.delong import auc
from mi_core.training.data import by_content
from mi_core.training.loop import PretrainingParameters
from mi_core.training.optimizers import OptimizerParameters
from mi_core.validity.blind import blind_scores, semantic_scores
from mi_core.validity.bursts import find_bursts
from mi_core.validity.file_features import pixel_features, shrunken
from mi_core.validity.unseen import Scale, mean_of_unseen
from mi_core.validity.verdict import Validity, judge

Rows = npt.NDArray[np.intp]
AUCS = ("attack_auc", "blind_auc", "control_auc", "semantic_auc")
_POOL = 6000  # images
_DRAWS, _READ = 400, 12  # of each case, and those that are read with all checks


def small(objective: str, epochs: int) -> PretrainingParameters:
    """A ResNet-8 for CIFAR-10."""
    optimizer = OptimizerParameters(learning_rate=2e-3, schedule="cosine")
    return PretrainingParameters("resnet8", objective, None, optimizer, epochs=epochs, batch_size=100)


def made_references(
    images: torch.Tensor, recipe: SimCLRAugmentation = WIDE, output: str = "backbone"
) -> tuple[Scores, npt.NDArray[np.bool_], npt.NDArray[np.float32]]:
    """Of references that are made here: (K, N) scores of the attack, whom they did not see, and (N, D) embeddings.

    ``output``: that the attack reads.
    """
    order, names = by_content(images)
    hashes = [""] * len(images)
    for row, (_, sha) in zip(order.tolist(), names, strict=True):
        hashes[row] = sha
    made = make_references(images.numpy(), hashes, seed=0, nonce="audit", device=torch.device("cpu"))
    encoders = [one.model.encoder for one in made]
    return (
        np.stack([consistency(one, images, recipe, output=output) for one in encoders]),
        ~np.stack([one.seen for one in made]),
        np.concatenate([embedded(one, images) for one in encoders], axis=1),
    )


def blind_features(images: torch.Tensor) -> tuple[Scores, npt.NDArray[np.float32]]:
    """What the blind classifier sees."""
    return np.stack(list(map(pixel_features, images.numpy()))), np.stack(list(map(shrunken, images.numpy())))


def verdict_of(
    references: Scores, unseen: npt.NDArray[np.bool_], embeddings: Any, features: Sequence[Any], member: Any
) -> Callable[[Scores, bool], Validity]:
    """The verdict on scores (N,); True: all checks are asked, else a leak is the only verdict that counts."""
    scales = [Scale.fit(row[mine]) for row, mine in zip(references, unseen, strict=True)]
    control = mean_of_unseen(list(references), list(~unseen), scales)
    groups = find_bursts(embeddings, member)
    slow: list[Any] = []

    def verdict(scores: Scores, whole: bool) -> Validity:
        quick = judge(scores, None, control, member, groups, trained=True)
        if not whole and not possible(quick):
            return quick
        if not slow:
            slow.append(blind_scores(*features, member, seed=0))
            slow.append(auc(semantic_scores(embeddings, member, seed=0), member, groups))
        return judge(scores, slow[0], control, member, groups, semantic_auc=slow[1], trained=True)

    return verdict


def possible(found: Validity) -> bool:
    """Whether further checks could still leave a leak."""
    return found.robustness is not None and found.robustness.at_least >= found.factor


@dataclass
class Pool:
    """N images: (N,) scores of the attack, (K, N) on references, their embeddings, what the blind classifier sees."""

    images: torch.Tensor
    target: Scores
    references: Scores
    embeddings: npt.NDArray[np.float32]
    features: tuple[Scores, npt.NDArray[np.float32]]

    @classmethod
    def of(cls, images: torch.Tensor, target: Encoder, references: Sequence[Encoder], nonce: str = "audit") -> Pool:
        return cls(
            images,
            consistency(target, images, nonce=nonce),
            np.stack([consistency(one, images, nonce=nonce) for one in references]),
            np.concatenate([embedded(one, images) for one in references], axis=1),
            blind_features(images),
        )


def judged(inside: Pool, candidates: Rows, outside: Pool, controls: Rows, *, made: bool, whole: bool) -> Validity:
    """The verdict on candidates of one pool against controls of another; ``made``: references are made here."""

    def both(value: Callable[[Pool], Any], axis: int = 0) -> Any:
        sides = ((inside, candidates), (outside, controls))
        return np.concatenate([np.take(value(pool), rows, axis=axis) for pool, rows in sides], axis=axis)

    scores, member = both(lambda pool: pool.target), np.arange(len(candidates) + len(controls)) < len(candidates)
    if made:
        blank = judge(scores, None, np.random.default_rng(0).standard_normal(len(member)), member)
        if not whole and not possible(blank):
            return blank
        references, unseen, embeddings = made_references(torch.from_numpy(both(lambda pool: pool.images.numpy())))
    else:
        references, embeddings = both(lambda pool: pool.references, axis=1), both(lambda pool: pool.embeddings)
        unseen = np.ones(references.shape, dtype=bool)
    features = [both(lambda pool, part=part: pool.features[part]) for part in (0, 1)]
    return verdict_of(references, unseen, embeddings, features, member)(scores, whole)


def summed(name: str, draws: Sequence[Validity], n: int, read: int, **told: Any) -> dict[str, Any]:
    """A row of the result; the first draws were read with all checks."""
    leaks, whole = sum(one.verdict == "leak" for one in draws), draws[:read]
    row: dict[str, Any] = {"case": name, "n": n, **told, "draws": len(draws), "leak": leaks}
    row |= {"leak_at_most": counted(leaks, len(draws))[1], "read": read}
    row |= {key: sum(one.verdict == key for one in whole) for key in ("confounded", "no-evidence")}
    checks = [(one.delta_auc, one.delta_control_auc) for one in whole]
    row["above_both"] = sum(all(one is not None and one.low > 0 for one in both) for both in checks)
    return row | {field: round(float(np.mean([getattr(one, field).value for one in whole])), 3) for field in AUCS}


def trained_reference(objective: str, shard: int, epochs: int) -> Encoder:
    """A small encoder of other images."""
    images, classes = cifar10("train", shard)
    return trained(small(objective, epochs), images, WIDE, classes=classes.tolist(), seed=shard)[epochs]


def chosen(rng: np.random.Generator, quality: Scores, tau: float, n: int) -> tuple[Rows, Rows]:
    """Candidates with weights exp(tau q), controls exp(-tau q)."""
    weights = np.exp(tau * quality)
    candidates = rng.choice(len(quality), n, replace=False, p=weights / weights.sum())
    left = 1 / weights
    left[candidates] = 0
    return candidates, rng.choice(len(quality), n, replace=False, p=left / left.sum())


def varied(images: torch.Tensor, kind: str) -> torch.Tensor:
    """Another year of the same camera: blurred, another white balance; or subjects in the centre."""
    float_images = images.float()
    if kind == "blur":
        changed = 0.5 * float_images + 0.5 * F.avg_pool2d(F.pad(float_images, (1, 1, 1, 1), mode="replicate"), 3, 1)
    elif kind == "white balance":
        changed = float_images * torch.tensor([1.06, 1.0, 0.94])[None, :, None, None]
    else:
        changed = F.interpolate(float_images[:, :, 3:29, 3:29], size=32, mode="bilinear", antialias=True)
    return changed.round().clamp(0, 255).to(torch.uint8)


def frames(images: torch.Tensor, count: int) -> torch.Tensor:
    """Bursts: each image shifted by up to two pixels, in another brightness, with noise, ``count`` times."""
    generator = torch.Generator().manual_seed(0)
    padded = F.pad(images.float(), (2, 2, 2, 2), mode="replicate")
    made = []
    for _ in range(count):
        x, y = torch.randint(0, 5, (2,), generator=generator).tolist()
        light = 1 + 0.1 * torch.randn(len(images), 1, 1, 1, generator=generator)
        made.append(padded[:, :, y : y + 32, x : x + 32] * light + 2 * torch.randn(images.shape, generator=generator))
    return torch.stack(made, dim=1).flatten(0, 1).round().clamp(0, 255).to(torch.uint8)


@dataclass
class Choices:
    """The published networks, references, and images of which somebody chooses.

    Args:
        images, classes: (N, C, 32, 32) uint8 and (N,).
        target, taste: networks that are audited and chosen by.
        references: given.
        pool: the images as the target and the references see them.
        standard: what somebody chooses by, (N,) each, standardised.
    """

    images: torch.Tensor
    classes: torch.Tensor
    target: Encoder
    taste: Encoder
    references: list[Encoder]
    pool: Pool
    standard: dict[str, Scores]

    @classmethod
    def of(cls, count: int) -> Choices:
        target, taste, opinion = published(56), published(20), published(20, logits=True)
        references = [trained_reference("simclr", 0, 12), trained_reference("supervised", 1, 6)]
        images, classes = (part[:count] for part in cifar10("test", 0, 1))
        pool = Pool.of(images, target, references)
        with torch.inference_mode():
            answers = [opinion(clean(some))["backbone"] for some in images.split(500)]
            sure = torch.cat([one.softmax(dim=1).max(dim=1).values for one in answers])
        liked = consistency(taste, images, nonce="somebody")
        known = np.column_stack([np.ones(count), *pool.references])
        rest = liked - known @ np.linalg.lstsq(known, liked, rcond=None)[0]
        border = images[:, :, [0, 1, -2, -1]].float().mean(dim=(1, 2, 3))
        qualities = {
            "taste": liked,
            "unsure": -np.asarray(sure.double()),
            "background": np.asarray(border.double()),
            "against the checks": rest,
        }
        standard = {name: (values - values.mean()) / values.std() for name, values in qualities.items()}
        return cls(images, classes, target, taste, references, pool, standard)

    def by(self, quality: str, tau: float, n: int, made: bool = False) -> Callable[..., Validity]:
        """The verdict on n images a side that are chosen by a quality: a function of generator and ``whole``."""

        def draw(rng: np.random.Generator, whole: bool) -> Validity:
            candidates, controls = chosen(rng, self.standard[quality], tau, n)
            return judged(self.pool, candidates, self.pool, controls, made=made, whole=whole)

        return draw


def looks(rng: np.random.Generator) -> bool:
    """Whether one of 20 looks at a growing sample of normal scores says leak."""
    scores = rng.standard_normal((4, 4000))
    for n in range(100, 2001, 100):
        rows = np.concatenate([np.arange(n), 2000 + np.arange(n)])
        member = np.arange(2 * n) < n
        attack, blind, control, semantic = scores[:, rows]
        if judge(attack, blind, control, member, semantic_auc=auc(semantic, member), trained=True).verdict == "leak":
            return True
    return False


def main(path: str, pool_size: int = _POOL, most: int = _DRAWS) -> None:
    torch.set_num_threads(1)
    result = Result(path, images="CIFAR-10 test", target="ResNet-56")

    def repeat(
        name: str, draw: Callable[[np.random.Generator, bool], Validity], n: int = 500, draws: int = most, **told: Any
    ) -> None:
        read = min(told.pop("read", _READ), draws)
        found = [draw(np.random.default_rng([7, number]), number < read) for number in range(draws)]
        result.keep(summed(name, found, n, read, **told))

    found = sum(looks(np.random.default_rng([5, number])) for number in range(most))
    result.keep({"case": "20 looks", "n": 2000, "draws": most, "leak": found, "leak_at_most": counted(found, most)[1]})
    chosen_from = Choices.of(pool_size)
    pool, images, by = chosen_from.pool, chosen_from.images, chosen_from.by
    target, references, taste = chosen_from.target, chosen_from.references, chosen_from.taste

    repeat("none", by("taste", 0.0, 500))
    for tau in (0.25, 0.5, 1.0):
        for n in (500, 1500):
            repeat("taste", by("taste", tau, n), n, tau=tau, references="given")
    repeat("unsure", by("unsure", 1.0, 500), tau=1.0)
    repeat("background", by("background", 1.0, 500), tau=1.0)
    for tau in (1.0, 2.0):
        repeat("against the checks", by("against the checks", tau, 500), tau=tau)
    first, second = (np.flatnonzero(np.asarray(chosen_from.classes < 5) == side) for side in (True, False))

    def two_sets(
        one: Rows, other: Rows, inside: Pool, outside: Pool
    ) -> Callable[[np.random.Generator, bool], Validity]:
        def draw(rng: np.random.Generator, whole: bool) -> Validity:
            rows = [rng.choice(some, 500, replace=False) for some in (one, other)]
            return judged(inside, rows[0], outside, rows[1], made=False, whole=whole)

        return draw

    repeat("classes", two_sets(first, second, pool, pool))
    some, others = images[:1500], np.arange(1500, pool_size)
    for kind in ("blur", "white balance", "centred"):
        repeat(kind, two_sets(np.arange(1500), others, Pool.of(varied(some, kind), target, references), pool))
    for size in (5, 20, 50):
        scenes = 500 // size
        bursts = Pool.of(frames(images[: 2 * scenes], size), target, references)

        def burst(
            rng: np.random.Generator, whole: bool, size: int = size, scenes: int = scenes, bursts: Pool = bursts
        ) -> Validity:
            which = rng.choice(2 * scenes, scenes, replace=False)
            candidates = (which[:, None] * size + np.arange(size)).ravel()
            return judged(bursts, candidates, pool, rng.choice(others, 500, replace=False), made=False, whole=whole)

        repeat("bursts", burst, size=size)
    variants = torch.stack(
        [some ^ (torch.arange(some[0].numel()).reshape(some[0].shape) == bit).to(torch.uint8) for bit in range(4)]
    )
    guessed = np.stack([consistency(taste, one, nonce="guessed") for one in variants])
    best, worst = guessed.argmax(axis=0), guessed.argmin(axis=0)
    picked = [variants[torch.from_numpy(which), torch.arange(len(some))] for which in (best, worst)]
    for nonce, told_of in (("audit", "drawn afterwards"), ("guessed", "known beforehand")):
        high, low = (Pool.of(one, target, references, nonce) for one in picked)
        repeat("variants of pixels", two_sets(np.arange(750), np.arange(750, 1500), high, low), nonce=told_of)
    for tau, draws in ((0.0, most), (0.5, 30), (1.0, 6)):  # at 1 four encoders are trained for every draw
        draw = by("taste", tau, 500, True)
        repeat("taste", draw, draws=min(draws, most), read=2, tau=tau, references="made here")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
