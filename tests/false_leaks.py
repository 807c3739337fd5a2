"""How often the rule by choice says leak of images that no encoder saw, with networks that others trained.

``python tests/false_leaks.py RESULT.json`` takes CIFAR-10's test images and two published networks of ``shared``. The
target is ResNet-56, and somebody chooses candidates and controls by the taste of ResNet-20, by content, in bursts, or
by variants of the pixels. References are given (two small encoders trained on other images) or made here. Every leak is
false. Nothing was tuned on these draws.

A check more can only lower the robustness. So a draw that is no leak with fewer checks is none with all of them, and
the slow checks are asked only where the quick ones leave a leak possible. All checks are asked in the first draws of
each case (`read`), which also tell how often the verdict is *confounded*, and how often the attack was merely above
both the blind classifier and the references (`above_both`).
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from mi_core.auditing.references import make_references  # noqa: E402
from mi_core.augmentations.simclr import SimCLRAugmentation  # noqa: E402
from mi_core.augmentations.views import clean, make_views  # noqa: E402
from mi_core.encoders.checkpoint import Encoder  # noqa: E402
from mi_core.metrics.delong import auc  # noqa: E402
from mi_core.metrics.intervals import clopper_pearson  # noqa: E402
from mi_core.objectives import OBJECTIVES  # noqa: E402
from mi_core.streams import pixel_streams  # noqa: E402
from mi_core.training.data import ResidentImages, by_content  # noqa: E402
from mi_core.training.loop import Pretrainer, PretrainingParameters  # noqa: E402
from mi_core.training.optimizers import OptimizerParameters  # noqa: E402
from mi_core.validity.blind import blind_scores, semantic_scores  # noqa: E402
from mi_core.validity.bursts import find_bursts  # noqa: E402
from mi_core.validity.file_features import pixel_features, shrunken  # noqa: E402
from mi_core.validity.unseen import Scale, mean_of_unseen  # noqa: E402
from mi_core.validity.verdict import Validity, judge  # noqa: E402
from tests.encoder_works import cifar10, published  # noqa: E402

VIEWS = SimCLRAugmentation()
Rows = npt.NDArray[np.intp]
Scores = npt.NDArray[np.float64]
_POOL = 6000  # images
_DRAWS, _READ = 400, 12  # of each case, and those that are read with all checks


@torch.inference_mode()
def consistency(encoder: Encoder, images: torch.Tensor, nonce: str) -> Scores:
    """The mean cosine (N,) of ten views of each image."""
    found = []
    for some in images.split(250):
        views = make_views(some, pixel_streams(nonce, 0, "query", some), VIEWS, views=10)
        unit = F.normalize(encoder(views.flatten(0, 1))["backbone"].float(), dim=1).unflatten(0, (-1, 10))
        cosines = unit @ unit.transpose(1, 2)
        found.append((cosines.sum(dim=(1, 2)) - 10) / 90)
    return np.asarray(torch.cat(found).double())


@torch.inference_mode()
def embedded(encoder: Encoder, images: torch.Tensor) -> npt.NDArray[np.float32]:
    return np.asarray(torch.cat([encoder(clean(some))["backbone"].float() for some in images.split(500)]))


@dataclass
class Pool:
    """N images with all that draws from them need.

    Args:
        images: (N, C, S, S) uint8.
        target: (N,) scores of the attack.
        references: (K, N) the same on the references.
        embeddings: (N, D) of the references.
        summaries, pixels: what the blind classifier sees.
    """

    images: torch.Tensor
    target: Scores
    references: Scores
    embeddings: npt.NDArray[np.float32]
    summaries: Scores
    pixels: npt.NDArray[np.float32]

    @classmethod
    def of(cls, images: torch.Tensor, target: Encoder, references: Sequence[Encoder], nonce: str = "audit") -> Pool:
        return cls(
            images,
            consistency(target, images, nonce),
            np.stack([consistency(one, images, nonce) for one in references]),
            np.concatenate([embedded(one, images) for one in references], axis=1),
            np.stack([pixel_features(one) for one in images.numpy()]),
            np.stack([shrunken(one) for one in images.numpy()]),
        )


def judged(inside: Pool, candidates: Rows, outside: Pool, controls: Rows, *, made: bool, whole: bool) -> Validity:
    """The verdict on candidates of one pool against controls of another.

    Args:
        inside, candidates, outside, controls: the images.
        made: whether references are made here.
        whole: ask all checks; else a leak is the only verdict that counts.
    """

    def both(name: str) -> Any:
        return np.concatenate([getattr(inside, name)[..., candidates], getattr(outside, name)[..., controls]], axis=-1)

    def stacked(name: str) -> Any:
        return np.concatenate([getattr(inside, name)[candidates], getattr(outside, name)[controls]])

    member = np.arange(len(candidates) + len(controls)) < len(candidates)
    if made:
        blank = judge(both("target"), None, np.random.default_rng(0).standard_normal(len(member)), member)
        if not whole and not possible(blank):
            return blank
        images = torch.cat([inside.images[torch.from_numpy(candidates)], outside.images[torch.from_numpy(controls)]])
        order, names = by_content(images)
        hashes = [""] * len(images)
        for row, (_, sha) in zip(order.tolist(), names, strict=True):
            hashes[row] = sha
        own = make_references(images.numpy(), hashes, seed=0, nonce="audit", device=torch.device("cpu"))
        scores = np.stack([consistency(one.model.encoder, images, "audit") for one in own])
        unseen = ~np.stack([one.seen for one in own])
        embeddings = np.concatenate([embedded(one.model.encoder, images) for one in own], axis=1)
    else:
        scores, embeddings = both("references"), stacked("embeddings")
        unseen = np.ones(scores.shape, dtype=bool)
    scales = [Scale.fit(row[mine]) for row, mine in zip(scores, unseen, strict=True)]
    control = mean_of_unseen(list(scores), list(~unseen), scales)
    groups = find_bursts(embeddings, member)
    quick = judge(both("target"), None, control, member, groups, trained=True)
    if not whole and not possible(quick):
        return quick
    return judge(
        both("target"),
        blind_scores(stacked("summaries"), stacked("pixels"), member, seed=0),
        control,
        member,
        groups,
        semantic_auc=auc(semantic_scores(embeddings, member, seed=0), member, groups),
        trained=True,
    )


def possible(found: Validity) -> bool:
    """Whether further checks could still leave a leak."""
    return found.robustness is not None and found.robustness.at_least >= found.factor


def summed(name: str, draws: Sequence[Validity], n: int, read: int, **told: Any) -> dict[str, Any]:
    """A row of the result; the first draws were read with all checks."""
    leaks = sum(one.verdict == "leak" for one in draws)
    row: dict[str, Any] = {"case": name, "n": n, **told, "draws": len(draws), "leak": leaks}
    row |= {"leak_at_most": round(clopper_pearson(leaks, len(draws))[1], 4), "read": read}
    whole = draws[:read]
    row |= {key: sum(one.verdict == key for one in whole) for key in ("confounded", "no-evidence")}
    row["above_both"] = sum(
        one.delta_auc is not None
        and one.delta_control_auc is not None
        and min(one.delta_auc.low, one.delta_control_auc.low) > 0
        for one in whole
    )
    aucs = {
        field: [getattr(one, field).value for one in whole]
        for field in ("attack_auc", "blind_auc", "control_auc", "semantic_auc")
    }
    return row | {field: round(float(np.mean(values)), 3) for field, values in aucs.items()}


def trained_reference(objective: str, shard: int, epochs: int) -> Encoder:
    """A small encoder of other images."""
    images, classes = cifar10("train", shard)
    framework = OBJECTIVES[objective]
    targets = (
        framework.encode_targets(framework.Parameters(), classes.tolist(), [""] * len(images))
        if framework.target
        else None
    )
    names = [("train", str(row)) for row in range(len(images))]
    data = ResidentImages(images, names, targets, batch_size=100, seed=shard)
    how = PretrainingParameters(
        "resnet8",
        objective,
        None,
        OptimizerParameters(learning_rate=2e-3, schedule="cosine"),
        epochs=epochs,
        batch_size=100,
    )
    worker = Pretrainer(data, VIEWS, how, seed=shard)
    for _ in range(epochs):
        worker.train_epoch()
    return worker.encoder().eval()


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
        images, classes = (
            torch.cat(parts)[:count] for parts in zip(cifar10("test", 0), cifar10("test", 1), strict=True)
        )
        pool = Pool.of(images, target, references)
        with torch.inference_mode():
            sure = torch.cat(
                [opinion(clean(some))["backbone"].softmax(dim=1).max(dim=1).values for some in images.split(500)]
            )
        liked = consistency(taste, images, "somebody")
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


def main(path: str) -> None:
    torch.set_num_threads(1)
    began, rows = time.perf_counter(), list[dict[str, Any]]()

    def keep(row: dict[str, Any]) -> None:
        rows.append(row)
        print(row, f"{time.perf_counter() - began:.0f} s", flush=True)  # noqa: T201
        told = {
            "rows": rows,
            "seconds": round(time.perf_counter() - began),
            "images": "CIFAR-10 test",
            "target": "ResNet-56",
        }
        Path(path).write_text(json.dumps(told, indent=1) + "\n")

    def repeat(
        name: str,
        draw: Callable[[np.random.Generator, bool], Validity],
        n: int = 500,
        draws: int = _DRAWS,
        read: int = _READ,
        **told: Any,
    ) -> None:
        found = [draw(np.random.default_rng([7, number]), number < read) for number in range(draws)]
        keep(summed(name, found, n, read, **told))

    found = sum(looks(np.random.default_rng([5, number])) for number in range(400))
    told = {"case": "20 looks", "n": 2000, "draws": 400, "leak": found}
    keep(told | {"leak_at_most": round(clopper_pearson(found, 400)[1], 4)})
    chosen_from = Choices.of(_POOL)
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
    some, others = images[:1500], np.arange(1500, _POOL)
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
    guessed = np.stack([consistency(taste, one, "guessed") for one in variants])
    best, worst = guessed.argmax(axis=0), guessed.argmin(axis=0)
    picked = [variants[torch.from_numpy(which), torch.arange(len(some))] for which in (best, worst)]
    for nonce, told_of in (("audit", "drawn afterwards"), ("guessed", "known beforehand")):
        high, low = (Pool.of(one, target, references, nonce) for one in picked)
        repeat("variants of pixels", two_sets(np.arange(750), np.arange(750, 1500), high, low), nonce=told_of)
    for tau, draws in ((0.0, _DRAWS), (0.5, 30), (1.0, 6)):  # at 1 four encoders are trained for every draw
        repeat("taste", by("taste", tau, 500, True), draws=draws, read=2, tau=tau, references="made here")


if __name__ == "__main__":
    main(sys.argv[1])
