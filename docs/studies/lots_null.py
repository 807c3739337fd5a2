"""How often a claim says ``used`` of images that no encoder saw, however bad the groups are: it may in 1 % of lots.

``python -m docs.studies.lots_null RESULT.json [CASE ...]`` takes CIFAR-10's test images and a published ResNet-56 of
``shared``, which saw none of them. Every case is drawn 1,000 times: p-values at most .01, and any-time p-values at most
.01 at any of the looks, are counted. At a true rate of 1 % more than 1.7 % of 1,000 come once in 50 cases. Nothing was
tuned here.
"""

from __future__ import annotations

import io
import sys
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageFilter

from docs.studies.shared import Result, Scores, cifar10, consistency, counted, published
from mi_core.captions import CREDITS
from mi_core.lots.commitment import UNTIL_DECIDED
from mi_core.lots.draw import Design, asking_order, counted_against, draw, joined_draws, waves_of
from mi_core.lots.verdict import judge_claim

LOTS, DRAWS, LEVEL = 1000, 1999, 0.01


@dataclass(frozen=True)
class Case:
    """One kind of lot, and what its owner does.

    Args:
        scores: (N,) of the images; captions: (N, K) of the captions of each, or None.
        albums: (N,) numbers, ascending.
        share: of each release that is held back.
        loses: share of the published images, those with the lowest scores, that the owner loses before the claim.
        keeps: how many lots the owner draws alone, to keep the luckiest.
    """

    scores: Scores
    albums: npt.NDArray[np.int64]
    share: float = 0.2
    captions: Scores | None = None
    releases: int = 1
    loses: float = 0.0
    lots_drawn: int = 1


def varied(images: torch.Tensor, kind: str) -> torch.Tensor:
    """Images after a strong JPEG compression, or blurred."""
    changed = []
    for pixels in images.numpy():
        picture = Image.fromarray(pixels.transpose(1, 2, 0))
        if kind == "jpeg":
            buffer = io.BytesIO()
            picture.save(buffer, "JPEG", quality=20)
            picture = Image.open(buffer)
        else:
            picture = picture.filter(ImageFilter.GaussianBlur(1))
        changed.append(np.asarray(picture).transpose(2, 0, 1))
    return torch.from_numpy(np.stack(changed))


def claim(case: Case, number: int) -> tuple[float, float]:
    """The p-value and the any-time p-value of one lot; of several that the owner draws, the luckiest one's."""
    found = [_claim(case, f"{number}-{one}") for one in range(case.lots_drawn)]
    return min(one[0] for one in found), min(one[1] for one in found)


def _claim(case: Case, name: str) -> tuple[float, float]:
    parts = np.array_split(np.arange(len(case.scores)), case.releases)
    designs, draws, albums = [], [], []
    for release, rows in enumerate(parts):
        sizes = np.unique(case.albums[rows], return_counts=True)[1]
        design = Design(tuple(sizes.tolist()), case.share, case.captions is not None)
        designs.append(design)
        draws.append(draw(design, f"{name}-{release}".zfill(32)))
        albums.append([str(one) for one in range(len(sizes))])
    drawn = joined_draws(designs, albums, draws)
    order = asking_order([f"{name}-{release}" for release in range(case.releases)], [len(rows) for rows in parts])
    scores = case.scores.copy()
    if case.loses:
        shown = np.flatnonzero(~drawn.held_back)
        scores[shown[np.argsort(scores[shown])[: int(case.loses * len(shown))]]] = np.nan
    texts = np.full((len(scores), CREDITS), np.nan) if case.captions is None else case.captions
    own, captions = counted_against(np.column_stack([scores, texts])[order], drawn, order)
    result = judge_claim(
        drawn,
        order,
        waves_of([len(rows) for rows in parts]),
        own,
        captions,
        counted=UNTIL_DECIDED,
        seed=name,
        draws=DRAWS,
    )
    return result.p_value, result.any_time_p_value


def cases() -> dict[str, Case]:
    """The lots, worst first seen: chosen, sorted by class, compressed, of bursts, of many releases."""
    target, taste = published(56), published(20)
    images, classes = (part[:2000] for part in cifar10("test", 0))

    def scored(some: torch.Tensor) -> Scores:
        return consistency(target, some, nonce="null")

    plain = scored(images)
    liked = np.argsort(consistency(taste, images, nonce="taste"))
    extremes = np.concatenate([liked[:300], liked[-300:]])
    by_class = np.argsort(np.asarray(classes), kind="stable")
    numbers = np.asarray(classes)[by_class]
    effects = images[by_class]
    for kind, mine in (("jpeg", numbers % 3 == 0), ("blur", numbers % 3 == 1)):
        rows = torch.from_numpy(np.flatnonzero(mine))
        effects[rows] = varied(effects[rows], kind)
    uneven = scored(effects)
    scenes = np.repeat(np.arange(30), 20)
    frames = images[:30].repeat_interleave(20, dim=0).to(torch.int16)
    frames = (frames + torch.from_numpy(np.random.default_rng(1).integers(-3, 4, frames.shape)).short()).clamp(0, 255)
    bursts = scored(frames.to(torch.uint8))
    one = np.zeros(600, dtype=np.int64)
    texts = np.random.default_rng(2).standard_cauchy((600, CREDITS))
    texts[:, 1] += np.where(np.arange(600) % 2, 0.5, -0.5)
    usual = Case(plain[:600], one)
    small = np.sort(np.random.default_rng(3).choice(len(numbers), 600, replace=False))
    return {
        "held back": usual,
        "held back, half": replace(usual, share=0.5),
        "chosen by the taste of another network": Case(plain[extremes], one),
        "albums by class, compressed and blurred": Case(uneven[small], numbers[small]),
        "bursts of 20": Case(bursts, one),
        "bursts of 20, as albums": Case(bursts, scenes),
        "the worst published images are lost": replace(usual, loses=0.2),
        "captions": replace(usual, share=0.0, captions=texts),
        "held back and captions": replace(usual, captions=texts),
        "held back and captions, uneven albums": Case(uneven[small], numbers[small], captions=texts),
        "20 releases": Case(plain, np.zeros(2000, dtype=np.int64), releases=20),
    }


LUCKIEST = "an owner draws 1,000 lots alone and keeps the luckiest"


def main(path: str, *chosen: str) -> None:
    torch.set_num_threads(1)
    result, made = Result(path, draws_of_a_p_value=DRAWS), cases()
    for name in chosen or [*made, LUCKIEST]:
        lots, case = LOTS, made.get(name)
        if case is None:  # the luckiest
            lots, case = 3, replace(made["held back"], lots_drawn=1000)
        found = np.array([claim(case, number) for number in range(lots)])
        row = {"case": name, "images": len(case.scores), "lots": lots}
        for kind, values in zip(("p_value", "any_time_p_value"), found.T, strict=True):
            count = int((values <= LEVEL).sum())
            row[kind] = {"at_most_.01": count / lots, "ci95": counted(count, lots)}
        result.keep(row)


if __name__ == "__main__":
    main(*sys.argv[1:])
