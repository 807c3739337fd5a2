"""Does an encoder tell which of two versions of each image it was trained on, if a surrogate chose how they differ?

``python -m docs.studies.marks RESULT.json [PATTERN...]``: each image of a lot has two versions, x + d and x - d; a fair
coin decides which is published. As in Huang, Gong and Reiter (CCS 2024) d is optimised so that a surrogate sees
both versions far apart: the sign of the gradient, 90 steps, over random crops of 80 % of the area or more. A small
encoder is trained on the published versions, alone or among other images, and asked about both versions with 64 such
views. The version whose views agree more is taken for the published one. With 2,500 pairs a share has a standard error
of .01, so .52 is told from chance (p .02), and .525 with p .006.
"""

from __future__ import annotations

import io
import sys
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image

from docs.studies.shared import CLASSES, SMALL_TEXT, Result, cifar10, counted, published, trained
from mi_core.augmentations.simclr import SimCLRAugmentation
from mi_core.augmentations.views import make_views
from mi_core.encoders.batch_norm import for_queries
from mi_core.encoders.checkpoint import Encoder
from mi_core.features.pairwise_similarity import pairwise_similarity
from mi_core.objectives import OBJECTIVES
from mi_core.streams import pixel_streams, stream_keys, uniforms
from mi_core.training.loop import PretrainingParameters
from mi_core.training.optimizers import OptimizerParameters

LOT, OTHERS, SURROGATE = range(2_500), range(2_500, 25_000), range(30_000, 35_000)
STEPS, VIEWS = 90, 64
MILD = SimCLRAugmentation(crop_scale=(0.8, 1.0), jitter_probability=0.3, grayscale=0)
EPOCHS = {"simclr": 200, "moco-v3": 200, "clip": 40}
KINDS: dict[str, dict[str, Any]] = {
    "simclr": {},
    "moco-v3": {"temperature": 0.2, "projection_hidden": 256, "projection_width": 128},
    "clip": SMALL_TEXT,
}


def encoder_of(kind: str, images: torch.Tensor, epochs: int, classes: torch.Tensor, seed: int) -> Encoder:
    """A small encoder of images, ready for queries."""
    settings = OBJECTIVES[kind].Parameters(**KINDS[kind])
    rate = OptimizerParameters(learning_rate=2e-3)
    how = PretrainingParameters("resnet8", kind, settings, rate, epochs=epochs, batch_size=128)
    captions = [f"a photo of a {CLASSES[number]}, number {row}" for row, number in enumerate(classes.tolist())]
    (made,) = trained(how, images, MILD, captions=captions, seed=seed).values()
    return for_queries(made, "cpu")


def crops(images: torch.Tensor, step: int) -> torch.Tensor:
    """Differentiable crops of 80 % of the area or more, half of them mirrored; the same for the same step."""
    drawn = uniforms(stream_keys(0, "train", "marks", list(map(str, range(len(images))))), epoch=step, view=0, count=4)
    scale = (0.8 + 0.2 * drawn[:, 0]).sqrt()
    flip = torch.where(drawn[:, 1] < 0.5, -1.0, 1.0)
    shift = (2 * drawn[:, 2:] - 1) * (1 - scale)[:, None]
    zero = torch.zeros_like(scale)
    rows = [torch.stack([scale * flip, zero, shift[:, 0]], 1), torch.stack([zero, scale, shift[:, 1]], 1)]
    grid = F.affine_grid(torch.stack(rows, 1), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, padding_mode="reflection", align_corners=False)


def marked(surrogate: Encoder, images: torch.Tensor, levels: int, kept: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Both versions (N, 3, 32, 32) uint8 of images, each within some levels of them; parts are kept in files."""
    versions: list[torch.Tensor] = []
    for number, some in enumerate(images.split(250)):
        file = Path(f"{kept}-{number}.pt")
        if file.exists():
            versions.append(torch.load(file))
            continue
        plain = some.float() / 255
        start = torch.Generator().manual_seed(levels)
        change = (torch.rand(plain.shape, generator=start) * 2 - 1) * levels / 255
        for step in range(STEPS):
            change = change.detach().requires_grad_()
            both = torch.cat([crops((plain + sign * change).clamp(0, 1), step) for sign in (1, -1)])
            first, second = surrogate(both)["backbone"].chunk(2)
            (gradient,) = torch.autograd.grad(F.cosine_similarity(first, second).sum(), change)
            change = (change - gradient.sign() * 2.5 * levels / 255 / STEPS).clamp(-levels / 255, levels / 255)
        whole = (change.detach() * 255).round()
        versions.append(torch.stack([(some + sign * whole).clamp(0, 255).byte() for sign in (1, -1)]))
        torch.save(versions[-1], file)
    first, second = torch.cat(versions, dim=1)
    return first, second


def saved(images: torch.Tensor, way: str) -> torch.Tensor:
    """Images as they are published: ``plain``, ``jpeg`` of quality 75, or at ``half`` their size and back."""
    found = []
    for image in images.permute(0, 2, 3, 1).numpy() if way != "plain" else ():
        picture = Image.fromarray(image)
        if way == "half":
            picture = picture.resize((16, 16), Image.Resampling.BICUBIC).resize((32, 32), Image.Resampling.BICUBIC)
        else:
            buffer = io.BytesIO()
            picture.save(buffer, "JPEG", quality=75)
            picture = Image.open(buffer)
        found.append(np.asarray(picture))
    return images if way == "plain" else torch.from_numpy(np.stack(found)).permute(0, 3, 1, 2).contiguous()


@torch.inference_mode()
def agreement(encoder: Encoder, images: torch.Tensor) -> dict[str, torch.Tensor]:
    """The mean cosine (N,) of the views of each image, by output."""
    found: dict[str, list[torch.Tensor]] = {}
    for some in images.split(20):
        views = make_views(some, pixel_streams("marks", 0, "query", some), MILD, views=VIEWS)
        for name, rows in encoder(views.flatten(0, 1)).items():
            cosines = pairwise_similarity(rows.unflatten(0, (-1, VIEWS)))
            found.setdefault(name, []).append(cosines.double().mean(dim=1))
    return {name: torch.cat(rows) for name, rows in found.items()}


def similarity(first: torch.Tensor, second: torch.Tensor) -> float:
    """The mean structural similarity (Wang et al., 2004) of two sets of images, in windows of 8 x 8 pixels."""
    one, other = (images.double() / 255 for images in (first, second))
    means = [F.avg_pool2d(images, 8, 1) for images in (one, other)]
    products = (one * one, other * other, one * other)
    own, theirs, shared = (
        F.avg_pool2d(product, 8, 1) - means[a] * means[b]
        for product, (a, b) in zip(products, ((0, 0), (1, 1), (0, 1)), strict=True)
    )
    near = (2 * means[0] * means[1] + 1e-4) * (2 * shared + 9e-4)
    return float((near / ((means[0] ** 2 + means[1] ** 2 + 1e-4) * (own + theirs + 9e-4))).mean())


def main() -> None:
    patterns = sys.argv[2:] or ["*"]
    result = Result(sys.argv[1], pairs=len(LOT), steps=STEPS, views=VIEWS)
    pool, classes = cifar10("train", *range(10))
    surrogates: dict[str, Encoder] = {}
    kept: dict[tuple[str, int], tuple[torch.Tensor, torch.Tensor]] = {}
    coins = torch.rand(len(LOT), generator=torch.Generator().manual_seed(5)) < 0.5
    cases = [
        (surrogate, levels, kind, share, way)
        for surrogate, levels, kind in product(("simclr", "resnet-20"), (10, 3), KINDS)
        for share, way in ((100, "plain"), (10, "plain"), (100, "jpeg"), (100, "half"))
    ]
    chosen = [case for pattern in patterns for case in cases if fnmatchcase(" ".join(map(str, case)), pattern)]
    for surrogate, levels, kind, share, way in chosen:
        if surrogate not in surrogates:
            own = SURROGATE[0], SURROGATE[-1] + 1
            surrogates[surrogate] = (
                published(20)
                if surrogate == "resnet-20"
                else encoder_of("simclr", pool[slice(*own)], 30, classes[slice(*own)], 1)
            )
        if (surrogate, levels) not in kept:
            kept[surrogate, levels] = marked(
                surrogates[surrogate], pool[: len(LOT)], levels, f"{sys.argv[1]}-{surrogate}-{levels}"
            )
        versions = [saved(one, way) for one in kept[surrogate, levels]]
        choice = coins[:, None, None, None]
        public, held = torch.where(choice, *versions), torch.where(choice, *versions[::-1])
        rows = [*LOT, *(OTHERS if share == 10 else ())]
        epochs = EPOCHS[kind] if share == 100 else EPOCHS[kind] // 5
        encoder = encoder_of(kind, torch.cat([public, pool[rows[len(LOT) :]]]), epochs, classes[rows], 0)
        told, others = agreement(encoder, public), agreement(encoder, held)
        unused = agreement(encoder, pool[40_000:41_000])
        result.keep(
            {
                "surrogate": surrogate,
                "levels": levels,
                "encoder": kind,
                "share of training": share,
                "saved": way,
                "epochs": epochs,
                "ssim": round(similarity(pool[: len(LOT)], versions[0]), 3),
                **{
                    name: {
                        "ahead": (ahead := int((told[name] > others[name]).sum())),
                        "interval": counted(ahead, len(LOT)),
                        "auc of images": round(
                            float((told[name][:1000, None] > unused[name][None]).double().mean()), 3
                        ),
                    }
                    for name in told
                },
            }
        )


if __name__ == "__main__":
    main()
