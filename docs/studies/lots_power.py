"""How many images a claim needs, by design, framework and age of the encoder, and what alterations leave of it.

``python -m docs.studies.lots_power RESULT.json`` trains small encoders on CIFAR-10 of ``shared``, under mild views, as
full ones take more epochs than two cores have to learn an image by heart. Published are 100 images, each with one of
six credit lines by a die; 100 are held back. An encoder is read early and late. Claims are
drawn from these images with replacement; a power is the share of 400 claims with p <= .01, so that its interval is .1
wide at most, beside that of the AUC, which tells how far these 200 images may be from others. n is the least number of
images of a lot, published and held back, with a power of .8 and more.

One training per framework: another training may differ by more than these intervals. Nothing was tuned on these images.
"""

from __future__ import annotations

import hashlib
import io
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageDraw

from docs.studies.shared import CLASSES, MILD, SMALL_TEXT, Result, Scores, cifar10, rounded_ends, trained
from mi_core.auditing.models import Preparation
from mi_core.auditing.questions import Question, Scorer
from mi_core.captions import CREDITS, captioned, credit_lines
from mi_core.encoders.checkpoint import Encoder
from mi_core.images import Decoder, decode, encode_jpeg
from mi_core.lots.designs import (
    any_time_p_value,
    chosen_p_value,
    held_back_bets,
    held_back_p_value,
    joined_p_value,
    wealth,
)
from mi_core.lots.draw import waves_of
from mi_core.metrics.delong import auc
from mi_core.objectives import OBJECTIVES
from mi_core.training.loop import PretrainingParameters
from mi_core.training.optimizers import OptimizerParameters
from mi_core.validity.verdict import judge

PUBLISHED, CLAIMS, DRAWS, LEVEL = 100, 400, 999, 0.01
EARLY, LATE = 100, 500  # epochs
SIZES = (20, 30, 40, 60, 80, 100, 140, 180, 240, 320, 450, 640)
KINDS: dict[str, dict[str, Any]] = {"simclr": {}, "moco-v3": {}, "clip": SMALL_TEXT}
_JPEG = 92  # of the published files


def altered(data: bytes, kind: str) -> bytes:
    """A published file as a trainer may have it."""
    picture = Image.open(io.BytesIO(data)).convert("RGB")
    side = picture.width
    if kind == "jpeg 75":
        return encode_jpeg(np.asarray(picture).transpose(2, 0, 1), 75)
    if kind == "half the size":
        picture = picture.resize((side // 2, side // 2), Image.Resampling.BICUBIC).resize((side, side))
    if kind == "cropped by 5 %":
        edge = max(1, round(side * 0.05))
        picture = picture.crop((edge, edge, side - edge, side - edge)).resize((side, side), Image.Resampling.BICUBIC)
    if kind == "a strip across":
        ImageDraw.Draw(picture).rectangle((0, side - side // 6, side, side), fill=(240, 240, 240))
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return buffer.getvalue()


class Release:
    """The images of the experiment with their captions; all are functions of the seed."""

    def __init__(self, seed: int) -> None:
        images, classes = cifar10("train", 3)
        rng = np.random.default_rng(seed)
        rows = rng.permutation(len(images))[: 2 * PUBLISHED]
        self.caption = rng.integers(0, CREDITS, len(rows))
        self.files: list[bytes] = []
        self.texts: list[tuple[str, ...]] = []
        for row in rows.tolist():
            data = encode_jpeg(images[row].numpy(), _JPEG)
            key = int.from_bytes(hashlib.sha256(data).digest()[:8], "little")
            self.files.append(data)
            plain = f"a photo of a {CLASSES[int(classes[row])]}"
            self.texts.append(tuple(captioned(plain, line) for line in credit_lines(key)))
        self.published = np.arange(len(rows)) < PUBLISHED

    def pixels(self) -> torch.Tensor:
        return torch.from_numpy(np.stack([decode(data, Decoder(32)) for data in self.files]))

    def trained_on(self, kind: str) -> tuple[torch.Tensor, list[str]]:
        """The published images, altered or not, and their captions."""
        rows = np.flatnonzero(self.published)
        files = [self.files[row] for row in rows]
        made = [decode(altered(data, kind) if kind else data, Decoder(32)) for data in files]
        return torch.from_numpy(np.stack(made)), [self.texts[row][self.caption[row]] for row in rows]


def train(objective: str, images: torch.Tensor, captions: Sequence[str], seed: int) -> dict[int, Encoder]:
    """Encoders by epoch."""
    settings = OBJECTIVES[objective].Parameters(**KINDS[objective])
    rate = OptimizerParameters(learning_rate=2e-3, schedule="cosine", warmup=0.05)
    how = PretrainingParameters("resnet8", objective, settings, rate, epochs=LATE, batch_size=50)
    names = [("train", f"{row:04d}") for row in range(len(images))]
    return trained(how, images, MILD, captions=captions, names=names, seed=seed, epochs=(EARLY,))


def scores_of(encoder: Encoder, objective: str, release: Release) -> tuple[Scores, Scores | None]:
    """Scores (N,) of the images, and (N, 6) of all captions where the encoder reads them."""
    output = "projection" if objective == "clip" else "backbone"
    question = Question(objective, MILD, output, {}, Decoder(32), Preparation(32))
    device, names = torch.device("cpu"), [str(row) for row in range(2 * PUBLISHED)]
    ask = Scorer(encoder, question, 10, "power", device)
    views = ask.similarity(release.pixels(), names)
    return views, None if encoder.text is None else ask.caption_fit(release.pixels(), release.texts, names)


def power_of(claim: Callable[[np.random.Generator, int], float]) -> tuple[int | None, dict[str, float]]:
    """The least n with a power of .8, and the powers up to it; None: no n of `SIZES`."""
    powers: dict[str, float] = {}
    least = None
    for n in SIZES:
        found = [claim(np.random.default_rng([n, number]), n) for number in range(CLAIMS)]
        powers[str(n)] = float(np.mean([value <= LEVEL for value in found]))
        if powers[str(n)] >= 0.8:
            least = n
            break
    return least, powers


def designs_of(release: Release, views: Scores, captions: Scores | None) -> dict[str, Any]:
    """Claims of each design on one encoder: functions of a generator and n that give a p-value."""
    inside, outside = np.flatnonzero(release.published), np.flatnonzero(~release.published)

    def drawn(rng: np.random.Generator, n: int, share: float) -> tuple[Any, Any]:
        back = round(share * n)
        return rng.choice(inside, n - back), rng.choice(outside, back)

    def held_back(share: float) -> Callable[[np.random.Generator, int], float]:
        def claim(rng: np.random.Generator, n: int) -> float:
            both = drawn(rng, n, share)
            rows, held = np.concatenate(both), np.arange(n) >= len(both[0])
            return held_back_p_value(views[rows], held, np.zeros(n, dtype=np.int64), seed=n, draws=DRAWS)

        return claim

    def until_decided(rng: np.random.Generator, n: int) -> float:
        both = drawn(rng, n, 0.2)
        rows, held = np.concatenate(both), np.arange(n) >= len(both[0])
        order = rng.permutation(n)
        zero = np.zeros(n, dtype=np.int64)
        bets = held_back_bets(views[rows][order], held[order], zero, waves_of([n]), [n], [int(held.sum())])
        return any_time_p_value(wealth(bets))

    def chosen(scores: Scores, dice: npt.NDArray[np.int64]) -> Callable[[np.random.Generator, int], float]:
        def claim(rng: np.random.Generator, n: int) -> float:
            rows = rng.choice(inside, n)
            return chosen_p_value(scores[rows], dice[rows], seed=n, draws=DRAWS)

        return claim

    def together(rng: np.random.Generator, n: int) -> float:
        both = drawn(rng, n, 0.2)
        rows, held = np.concatenate(both), np.arange(n) >= len(both[0])
        found = [held_back_p_value(views[rows], held, np.zeros(n, dtype=np.int64), seed=n, draws=DRAWS)]
        if captions is not None:
            found.append(chosen_p_value(captions[both[0]], release.caption[both[0]], seed=n + 1, draws=DRAWS))
        return joined_p_value(found)

    def by_choice(rng: np.random.Generator, n: int) -> float:
        """The verdict by choice, at its best: checks that see nothing, and as many controls as candidates."""
        both = drawn(rng, n, 0.5)
        rows, member = np.concatenate(both), np.arange(n) < len(both[0])
        checks = rng.standard_normal((2, n))
        return 0.0 if judge(views[rows], *checks, member, trained=True).verdict == "leak" else 1.0

    made = {"held back, 20 %": held_back(0.2), "held back, 50 %": held_back(0.5), "until decided, 20 %": until_decided}
    made |= {} if captions is None else {"captions": chosen(captions, release.caption)}
    return made | {"all together, 20 %": together, "by choice, checks that see nothing": by_choice}


def main(path: str) -> None:
    torch.set_num_threads(1)
    result, release = Result(path, published=PUBLISHED, claims=CLAIMS), Release(0)

    def keep(objective: str, kind: str, epoch: int, encoder: Encoder, only: Sequence[str] = ()) -> None:
        views, captions = scores_of(encoder, objective, release)
        row: dict[str, Any] = {"framework": objective, "epoch": epoch, "altered": kind or None}
        row["auc"] = rounded_ends(auc(views, release.published))
        for name, claim in designs_of(release, views, captions).items():
            if not only or name in only:
                row[name] = dict(zip(("n", "power"), power_of(claim), strict=True))
        result.keep(row)

    for objective in KINDS:
        for epoch, encoder in train(objective, *release.trained_on(""), seed=1).items():
            keep(objective, "", epoch, encoder)
    for kind in ("jpeg 75", "half the size", "cropped by 5 %", "a strip across"):
        encoder = train("simclr", *release.trained_on(kind), seed=1)[LATE]
        keep("simclr", kind, LATE, encoder, ("held back, 20 %", "held back, 50 %"))


if __name__ == "__main__":
    main(sys.argv[1])
