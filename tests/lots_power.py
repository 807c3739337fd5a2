"""How many images a claim needs, by design, framework and age of the encoder, and what alterations leave of it.

``python tests/lots_power.py RESULT.json`` trains small encoders on CIFAR-10 of ``shared``, under mild views, as full
ones take more epochs than two cores have to learn an image by heart. Published are 100 images, each in one of two
versions and with one of two credit lines by a coin; 100 are held back. An encoder is read early and late. Claims are
drawn from these images with replacement; a power is the share of 400 claims with p <= .01, so that its interval is .1
wide at most, beside that of the AUC, which tells how far these 200 images may be from others. n is the least number of
images of a lot, published and held back, with a power of .8 and more.

One training per framework: another training may differ by more than these intervals. Nothing was tuned on these images.
"""

from __future__ import annotations

import copy
import hashlib
import io
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageDraw

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from mi_core.lots.marks import twins  # noqa: E402

from mi_core.auditing.models import Preparation  # noqa: E402
from mi_core.auditing.questions import Question, Scorer  # noqa: E402
from mi_core.encoders.checkpoint import Encoder  # noqa: E402
from mi_core.images import Decoder, decode, encode_jpeg  # noqa: E402
from mi_core.lots.designs import (  # noqa: E402
    any_time_p_value,
    held_back_bets,
    held_back_p_value,
    joined_p_value,
    paired_p_value,
    wealth,
)
from mi_core.lots.draw import waves_of  # noqa: E402
from mi_core.lots.phrases import captioned, credit_lines  # noqa: E402
from mi_core.metrics.delong import auc  # noqa: E402
from mi_core.objectives import OBJECTIVES  # noqa: E402
from mi_core.training.data import ResidentImages  # noqa: E402
from mi_core.training.loop import Pretrainer, PretrainingParameters  # noqa: E402
from mi_core.training.optimizers import OptimizerParameters  # noqa: E402
from mi_core.validity.verdict import judge  # noqa: E402
from tests.encoder_works import CLASSES, MILD, SMALL_TEXT, cifar10  # noqa: E402

PUBLISHED, CLAIMS, DRAWS, LEVEL = 100, 400, 999, 0.01
EARLY, LATE = 100, 500  # epochs
SIZES = (20, 30, 40, 60, 80, 100, 140, 180, 240, 320, 450, 640)
KINDS: dict[str, dict[str, Any]] = {
    "simclr": {},
    "moco-v3": {},
    "clip": SMALL_TEXT,
}
Scores = npt.NDArray[np.float64]
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
    """The images of the experiment with their versions and captions; all are functions of the seed."""

    def __init__(self, seed: int) -> None:
        images, classes = cifar10("train", 3)
        rng = np.random.default_rng(seed)
        rows = rng.permutation(len(images))[: 2 * PUBLISHED]
        self.version, self.caption = rng.integers(0, 2, (2, len(rows)))
        self.files: list[tuple[bytes, bytes]] = []
        self.texts: list[tuple[str, str]] = []
        for row in rows.tolist():
            data = encode_jpeg(images[row].numpy(), _JPEG)
            key = int.from_bytes(hashlib.sha256(data).digest()[:8], "little")
            self.files.append(twins(data, key) or (data, data))
            first, second = credit_lines(key)
            plain = f"a photo of a {CLASSES[int(classes[row])]}"
            self.texts.append((captioned(plain, first), captioned(plain, second)))
        self.published = np.arange(len(rows)) < PUBLISHED

    def pixels(self, version: int) -> torch.Tensor:
        return torch.from_numpy(np.stack([decode(both[version], Decoder(32)) for both in self.files]))

    def trained_on(self, kind: str) -> tuple[torch.Tensor, list[str]]:
        """The published versions, altered or not, and their captions."""
        rows = np.flatnonzero(self.published)
        files = [self.files[row][self.version[row]] for row in rows]
        made = [decode(altered(data, kind) if kind else data, Decoder(32)) for data in files]
        return torch.from_numpy(np.stack(made)), [self.texts[row][self.caption[row]] for row in rows]


def train(objective: str, images: torch.Tensor, captions: Sequence[str], seed: int) -> dict[int, Encoder]:
    """Encoders by epoch."""
    framework = OBJECTIVES[objective]
    settings = framework.Parameters(**KINDS[objective])
    targets = framework.encode_targets(settings, [0] * len(images), list(captions)) if framework.target else None
    names = [("train", f"{row:04d}") for row in range(len(images))]
    data = ResidentImages(images, names, targets, batch_size=50, seed=seed)
    rate = OptimizerParameters(learning_rate=2e-3, schedule="cosine", warmup=0.05)
    how = PretrainingParameters("resnet8", objective, settings, rate, epochs=LATE, batch_size=50)
    worker, found = Pretrainer(data, MILD, how, seed=seed), {}
    for epoch in range(1, LATE + 1):
        worker.train_epoch()
        if epoch in (EARLY, LATE):
            found[epoch] = copy.deepcopy(worker.encoder()).eval()
    return found


def scores_of(encoder: Encoder, objective: str, release: Release) -> tuple[Scores, Scores | None]:
    """Scores (N, 2) of both versions, and of both captions where the encoder reads them."""
    output = "projection" if objective == "clip" else "backbone"
    question = Question(objective, MILD, output, {}, Decoder(32), Preparation(32))
    device, names = torch.device("cpu"), [str(row) for row in range(2 * PUBLISHED)]
    ask = Scorer(encoder, question, 10, "power", device)
    views = np.stack([ask.similarity(release.pixels(version), names) for version in (0, 1)], axis=1)
    if encoder.text is None:
        return views, None
    shown = release.pixels(0)
    shown[release.version == 1] = release.pixels(1)[release.version == 1]
    texts = [[both[line] for both in release.texts] for line in (0, 1)]
    return views, np.stack([ask.caption_fit(shown, one, names) for one in texts], axis=1)


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
    mean = views.mean(axis=1)

    def drawn(rng: np.random.Generator, n: int, share: float) -> tuple[Any, Any]:
        back = round(share * n)
        return rng.choice(inside, n - back), rng.choice(outside, back)

    def held_back(share: float) -> Callable[[np.random.Generator, int], float]:
        def claim(rng: np.random.Generator, n: int) -> float:
            both = drawn(rng, n, share)
            rows, held = np.concatenate(both), np.arange(n) >= len(both[0])
            return held_back_p_value(mean[rows], held, np.zeros(n, dtype=np.int64), seed=n, draws=DRAWS)

        return claim

    def until_decided(rng: np.random.Generator, n: int) -> float:
        both = drawn(rng, n, 0.2)
        rows, held = np.concatenate(both), np.arange(n) >= len(both[0])
        order = rng.permutation(n)
        zero = np.zeros(n, dtype=np.int64)
        bets = held_back_bets(mean[rows][order], held[order], zero, waves_of([n]), [n], [int(held.sum())])
        return any_time_p_value(wealth(bets))

    def pairs(scores: Scores, coins: npt.NDArray[np.int64]) -> Callable[[np.random.Generator, int], float]:
        gaps = (scores[:, 1] - scores[:, 0]) * (2 * coins - 1)

        def claim(rng: np.random.Generator, n: int) -> float:
            return paired_p_value(gaps[rng.choice(inside, n)], seed=n, draws=DRAWS)

        return claim

    def together(rng: np.random.Generator, n: int) -> float:
        both = drawn(rng, n, 0.2)
        rows, held = np.concatenate(both), np.arange(n) >= len(both[0])
        found = [held_back_p_value(mean[rows], held, np.zeros(n, dtype=np.int64), seed=n, draws=DRAWS)]
        for scores, coins in ((views, release.version), (captions, release.caption)):
            if scores is not None:
                gaps = (scores[:, 1] - scores[:, 0]) * (2 * coins - 1)
                found.append(paired_p_value(gaps[both[0]], seed=n + 1, draws=DRAWS))
        return joined_p_value(found)

    def by_choice(rng: np.random.Generator, n: int) -> float:
        """The verdict by choice, at its best: checks that see nothing, and as many controls as candidates."""
        both = drawn(rng, n, 0.5)
        rows, member = np.concatenate(both), np.arange(n) < len(both[0])
        checks = rng.standard_normal((2, n))
        return 0.0 if judge(mean[rows], *checks, member, trained=True).verdict == "leak" else 1.0

    made = {"held back, 20 %": held_back(0.2), "held back, 50 %": held_back(0.5), "until decided, 20 %": until_decided}
    made |= {"twins": pairs(views, release.version)}
    made |= {} if captions is None else {"captions": pairs(captions, release.caption)}
    return made | {"all together, 20 %": together, "by choice, checks that see nothing": by_choice}


def main(path: str) -> None:
    torch.set_num_threads(1)
    began, rows = time.perf_counter(), list[dict[str, Any]]()
    release = Release(0)

    def keep(objective: str, kind: str, epoch: int, encoder: Encoder, only: Sequence[str] = ()) -> None:
        views, captions = scores_of(encoder, objective, release)
        found = auc(views.mean(axis=1), release.published)
        shown = views[np.arange(len(views)), release.version] - views[np.arange(len(views)), 1 - release.version]
        row: dict[str, Any] = {
            "framework": objective,
            "epoch": epoch,
            "altered": kind or None,
            "auc": [round(one, 3) for one in (found.value, found.low, found.high)],
            "published version ahead": round(float((shown[release.published] > 0).mean()), 3),
        }
        for name, claim in designs_of(release, views, captions).items():
            if not only or name in only:
                least, powers = power_of(claim)
                row[name] = {"n": least, "power": powers}
        rows.append(row)
        print(row, f"{time.perf_counter() - began:.0f} s", flush=True)  # noqa: T201
        told = {"seconds": round(time.perf_counter() - began), "published": PUBLISHED, "claims": CLAIMS, "rows": rows}
        Path(path).write_text(json.dumps(told, indent=1) + "\n")

    for objective in KINDS:
        for epoch, encoder in train(objective, *release.trained_on(""), seed=1).items():
            keep(objective, "", epoch, encoder)
    for kind in ("jpeg 75", "half the size", "cropped by 5 %", "a strip across"):
        encoder = train("simclr", *release.trained_on(kind), seed=1)[LATE]
        keep("simclr", kind, LATE, encoder, ("held back, 20 %", "held back, 50 %"))


if __name__ == "__main__":
    main(sys.argv[1])
