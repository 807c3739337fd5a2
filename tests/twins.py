"""Whether an encoder tells which of two versions of an image it was trained on, and which marks outlive what.

``python tests/twins.py RESULT.json [RECIPE [ARM ...]]`` takes CIFAR-10's training images. For each kind of mark, and
for two controls (plain copies, and the same image as JPEG of quality 95 and 90), a small encoder is trained on
one version of each of 100 images, by a fair coin; 300 more are held back. It is asked about both versions with the
attack of a claim, in the views that it was trained with: those of SimCLR, and mild ones, in which it learns more by
heart. The coin is another one for every arm; images, seed and order are the same.

Then it measures, without an encoder, how the difference of the two versions correlates with itself after JPEG at
quality 75, half the size (and back), and a crop of 5 % at each border (resized back, not moved back).
"""

from __future__ import annotations

import io
import json
import sys
import tarfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from mi_core.auditing.models import Preparation  # noqa: E402
from mi_core.auditing.questions import Question, ViewSimilarity  # noqa: E402
from mi_core.augmentations.simclr import SimCLRAugmentation  # noqa: E402
from mi_core.hashing import digest64  # noqa: E402
from mi_core.images import Decoder, Pixels, encode_png  # noqa: E402
from mi_core.lots.designs import paired_p_value  # noqa: E402
from mi_core.lots.marks import MARKS, psnr, ssim, twins  # noqa: E402
from mi_core.metrics.delong import auc  # noqa: E402
from mi_core.metrics.intervals import clopper_pearson  # noqa: E402
from mi_core.training.data import ResidentImages  # noqa: E402
from mi_core.training.loop import Pretrainer, PretrainingParameters  # noqa: E402
from mi_core.training.optimizers import OptimizerParameters  # noqa: E402
from tests.encoder_works import MILD, SHARED  # noqa: E402

COPIES, QUALITIES = "copies", "jpeg 95 and 90"
ARMS = (COPIES, *MARKS, QUALITIES)
COUNT, HELD_BACK, EPOCHS, BATCH = 100, 300, 500, 50
VIEWS = (10, 50)  # of each image; the first is what a claim asks
RECIPES = {"simclr": SimCLRAugmentation(), "mild": MILD}
SEED = 0
Pair = tuple[Pixels, Pixels]


def files(count: int) -> list[bytes]:
    """JPEG files of the first training images."""
    with tarfile.open(SHARED / "data/cifar10/train-000000.tar") as shard:
        images = (member for member in shard if member.name.endswith(".jpg"))
        contents = (shard.extractfile(member) for member, _ in zip(images, range(count), strict=False))
        return [content.read() for content in contents if content is not None]


def pixels_of(data: bytes) -> Pixels:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def as_jpeg(pixels: Pixels, quality: int) -> Pixels:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=quality)
    return pixels_of(buffer.getvalue())


def versions(data: bytes, arm: str, number: int) -> Pair | None:
    """Both versions of an image in an arm; None: it carries no mark."""
    original = pixels_of(data)
    if arm == COPIES:
        return original, original
    if arm == QUALITIES:
        return as_jpeg(original, 95), as_jpeg(original, 90)
    made = twins(data, digest64("twins", number), arm)
    return None if made is None else (pixels_of(made[0]), pixels_of(made[1]))


def resized(pixels: Pixels, size: tuple[int, int], box: tuple[float, ...] | None = None) -> Pixels:
    return np.asarray(Image.fromarray(pixels).resize(size, Image.Resampling.BILINEAR, box=box))


def halved(pixels: Pixels) -> Pixels:
    height, width = pixels.shape[:2]
    return resized(resized(pixels, (width // 2, height // 2)), (width, height))


def cropped(pixels: Pixels) -> Pixels:
    height, width = pixels.shape[:2]
    return resized(pixels, (width, height), (0.05 * width, 0.05 * height, 0.95 * width, 0.95 * height))


def shrunk(pixels: Pixels) -> Pixels:
    """As an encoder for 224 pixels sees it."""
    return resized(pixels, (224, 224))


def changed(pixels: Pixels, attack: Callable[[Pixels], Pixels]) -> npt.NDArray[np.float64]:
    return attack(pixels).astype(np.float64)


def robustness(contents: Sequence[bytes], name: str) -> list[dict[str, Any]]:
    """Of each kind of mark: correlations of the difference before and after, with their spread over images."""
    attacks: dict[str, Callable[[Pixels], Pixels]] = {
        "jpeg 75": lambda pixels: as_jpeg(pixels, 75),
        "half size": halved,
        "crop 5 %": cropped,
    }
    rows = []
    for kind in MARKS:
        made = [versions(data, kind, number) for number, data in enumerate(contents)]
        pairs = [pair for pair in made if pair is not None]
        row: dict[str, Any] = {"images": name, "kind": kind, "n": len(pairs), "left_alone": len(made) - len(pairs)}
        sizes = [np.sqrt(np.mean((first.astype(float) - second) ** 2)) for first, second in pairs]
        row["difference_rms"] = spread(sizes)
        for attack, change in attacks.items():
            found = []
            for first, second in pairs:
                before = first.astype(np.float64) - second
                after = changed(first, change) - changed(second, change)
                found.append(cosine(before, after))
            row[attack] = spread(found)
        if min(pairs[0][0].shape[:2]) > 224:
            row["rms_at_224"] = spread(
                [np.sqrt(np.mean((changed(first, shrunk) - changed(second, shrunk)) ** 2)) for first, second in pairs]
            )
        rows.append(row)
    return rows


def cosine(first: npt.NDArray[np.float64], second: npt.NDArray[np.float64]) -> float:
    """The correlation of two differences; 0 where nothing is left of one."""
    a, b = (each.ravel() - each.mean() for each in (first, second))
    size = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / size if size else 0.0


def spread(values: Sequence[float]) -> dict[str, float]:
    low, middle, high = np.quantile(values, (0.05, 0.5, 0.95))
    return {"median": round(float(middle), 3), "p5": round(float(low), 3), "p95": round(float(high), 3)}


def photos(count: int, size: tuple[int, int] = (768, 1024)) -> list[bytes]:
    """Larger synthetic photos: CIFAR-10 images enlarged, with a texture that falls off as 1 / f; JPEG of quality 92."""
    made = []
    for number, data in enumerate(files(count)):
        smooth = np.asarray(Image.fromarray(pixels_of(data)).resize(size[::-1], Image.Resampling.BICUBIC), dtype=float)
        spectrum = np.fft.rfft2(np.random.default_rng(number).standard_normal(size))
        fy, fx = np.fft.fftfreq(size[0])[:, None], np.fft.rfftfreq(size[1])
        texture = np.fft.irfft2(spectrum / np.maximum(np.hypot(fy, fx), 0.01), size)
        whole = smooth + 12 * (texture / texture.std())[..., None]
        buffer = io.BytesIO()
        Image.fromarray(np.clip(whole, 0, 255).astype(np.uint8)).save(buffer, "JPEG", quality=92)
        made.append(buffer.getvalue())
    return made


def stacked(images: Sequence[Pixels]) -> torch.Tensor:
    return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous()


def measured(arm: str, contents: Sequence[bytes], recipe: str, seed: int) -> dict[str, Any]:
    """What one training run shows of one arm."""
    found = [versions(data, arm, number) for number, data in enumerate(contents)]
    pairs = [pair for pair in found if pair is not None][: COUNT + HELD_BACK]
    both = [stacked([pair[side] for pair in pairs]) for side in (0, 1)]
    coins = torch.from_numpy(np.random.default_rng([digest64(arm), seed]).integers(0, 2, len(pairs)))
    shown, other = (torch.where((coins == side)[:, None, None, None], both[1], both[0]) for side in (1, 0))
    names = [("train", str(row)) for row in range(COUNT)]
    data = ResidentImages(shown[:COUNT], names, batch_size=BATCH, seed=seed)
    rate = OptimizerParameters(name="adamw", learning_rate=0.005, weight_decay=1e-4, schedule="cosine")
    how = PretrainingParameters("resnet8", "simclr", None, rate, epochs=EPOCHS, batch_size=BATCH)
    worker, started = Pretrainer(data, RECIPES[recipe], how, seed=seed), time.process_time()
    for _ in range(EPOCHS):
        worker.train_epoch()
    row: dict[str, Any] = {"arm": arm, "recipe": recipe, "seed": seed, "n": COUNT, "epochs": EPOCHS}
    row |= {"train_cpu_seconds": round(time.process_time() - started), "heads": int(coins[:COUNT].sum())}
    row["psnr"] = spread([psnr(*pair) for pair in pairs]) if arm != COPIES else None
    row["ssim"] = spread([ssim(*pair) for pair in pairs])
    encoder = worker.encoder().eval()
    for views in VIEWS:
        preparation = Preparation(32, None, None, None, {}, None, False, seed)
        question = Question("simclr", RECIPES[recipe], "backbone", {}, Decoder(32), preparation)
        ask = ViewSimilarity(encoder, question, views, f"twins {seed}", torch.device("cpu"))
        scores = [
            np.concatenate([ask(part, [str(row) for row in range(len(part))]) for part in images.split(100)])
            for images in (shown, other)
        ]
        row[f"views {views}"] = answers(scores[0].astype(np.float64), scores[1].astype(np.float64), seed)
    return row


def answers(shown: npt.NDArray[np.float64], other: npt.NDArray[np.float64], seed: int) -> dict[str, Any]:
    """Both designs of one encoder: versions, and published against held back; held-back pairs beside them."""
    told: dict[str, Any] = {}
    for name, rows in (("published", slice(0, COUNT)), ("held back", slice(COUNT, None))):
        differences = (shown - other)[rows]
        ahead, behind = int((differences > 0).sum()), int((differences < 0).sum())
        told[name] = {"ahead": ahead, "behind": behind, "p": round(paired_p_value(differences, seed=seed), 4)}
        if ahead + behind:
            interval = clopper_pearson(ahead, ahead + behind)
            told[name] |= {"share": round(ahead / (ahead + behind), 3), "ci95": [round(end, 3) for end in interval]}
            told[name]["standardised_mean"] = round(float(differences.mean() / differences.std()), 3)
    told["auc"] = auc(shown, np.arange(len(shown)) < COUNT).as_json()
    return told


def main(path: str, recipes: Sequence[str] = tuple(RECIPES), arms: Sequence[str] = ARMS) -> None:
    torch.set_num_threads(1)
    contents, told = files(COUNT + HELD_BACK + 50), dict[str, Any]()
    rows: list[dict[str, Any]] = []
    for recipe in recipes:
        for arm in arms:
            resolved = f"{COUNT} pairs resolve a share of .62 ahead at p = .05 in 4 of 5 runs"
            print(f"{arm}, {recipe}: {resolved}", flush=True)  # noqa: T201
            rows.append(measured(arm, contents, recipe, SEED))
            print(json.dumps(rows[-1]), flush=True)  # noqa: T201
            Path(path).write_text(json.dumps(told | {"rows": rows}, indent=1) + "\n")
    # as PNG: the files have quality 75 already
    small = robustness([encode_png(pixels_of(data)) for data in contents[:100]], "CIFAR-10 as PNG")
    told |= {"rows": rows, "robustness": small + robustness(photos(6), "synthetic, 1024 x 768, JPEG 92")}
    Path(path).write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:3] or tuple(RECIPES), sys.argv[3:] or ARMS)
