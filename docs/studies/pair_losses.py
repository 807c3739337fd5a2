"""What the loss of a pair among other pairs tells of membership beside its cosine, and the norm of its gradient.

``python -m docs.studies.pair_losses RESULT.json [SEEDS]`` trains small CLIPs on digits and on CIFAR-10 of ``shared``,
and others on further images. Members, non-members and all other images are drawn from one pool, by lot. The loss is
that of CLIP, the gradient that at the embeddings. The negatives of a pair are either a fixed bank of non-members, or,
as in the released code of Gomez ("Rethinking membership inference attacks for CLIP", AAAI 2026), the other pairs of a
batch that holds members only or non-members only. To tell what such a batch adds, a third way mixes both in one batch.

The temperature was chosen on seeds 0 to 2 of digits; the result has seeds 3 to 12 of digits, and 0 to 4 of CIFAR-10.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
import yaml
from sklearn.datasets import load_digits

from docs.studies.shared import ROOT, Result, cifar10, rounded_ends, trained
from mi_core.augmentations.frameworks import CLIPAugmentation
from mi_core.augmentations.simclr import SimCLRAugmentation
from mi_core.captions import ClassWords, templated_caption
from mi_core.metrics.delong import auc, auc_difference
from mi_core.metrics.pooled import pool
from mi_core.objectives.clip import CLIPParameters
from mi_core.records import Estimate
from mi_core.training.loop import PretrainingParameters
from mi_core.training.optimizers import OptimizerParameters

TEMPERATURE, BANK, DRAWS = 0.02, 256, 5
BATCH = 50  # 64 as released; so all batches are full
NARROW = 2  # classes of a side that holds no others


@dataclass(frozen=True)
class Setting:
    """Images and how CLIPs are trained on them; ``count``: members, non-members, and images of the other CLIP."""

    seeds: tuple[int, ...]
    count: int
    epochs: tuple[int, ...]
    backbone: str
    parameters: CLIPParameters
    augmentation: SimCLRAugmentation
    rate: float
    batch: int


SETTINGS = {
    "digits": Setting(
        tuple(range(3, 13)),
        400,
        (8, 20),
        "conv4",
        CLIPParameters(projection_width=64, text_width=32, text_layers=1, text_heads=2, text_length=12),
        CLIPAugmentation(crop_scale=(0.75, 1.0)),
        0.005,
        64,
    ),
    "cifar10": Setting(
        tuple(range(5)),
        500,
        (5, 10, 20),
        "resnet8",
        CLIPParameters(projection_width=128, text_width=64, text_layers=2),
        SimCLRAugmentation(
            crop_scale=(0.4, 1.0), brightness=0.3, contrast=0.3, saturation=0.3, hue=0.05, grayscale=0.1
        ),
        0.002,
        125,
    ),
}


@dataclass(frozen=True)
class Pairs:
    """A pool in the order of a seed: first members, then non-members, images of the other CLIP, and a bank."""

    images: torch.Tensor
    captions: list[str]
    classes: npt.NDArray[np.int64]


def pairs(name: str, seed: int) -> Pairs:
    """Digits whose captions name the class and four letters of their own; CIFAR-10 with captions of words."""
    rng = np.random.default_rng(seed)
    if name == "digits":
        digits = load_digits()
        images = torch.from_numpy(np.round(digits.images * (255 / 16)).astype(np.uint8))[:, None]
        classes = np.asarray(digits.target)
        letters = rng.integers(97, 123, (len(images), 4))
        captions = [f"{label} {bytes(own.tolist()).decode()}" for label, own in zip(classes, letters, strict=True)]
    else:
        images, labels = cifar10("train", 0)
        classes = labels.numpy()
        words = yaml.safe_load((ROOT / "configs/attacks-cifar10.yaml").read_text())["data"]["captions"]
        of_class = {label: ClassWords(one["name"], tuple(one["attributes"])) for label, one in words.items()}
        captions = [templated_caption(of_class[int(label)], "pool", f"{row:05d}") for row, label in enumerate(classes)]
    order = rng.permutation(len(images))
    return Pairs(images[order], [captions[row] for row in order], classes[order])


def directions(
    pool_: Pairs, rows: npt.NDArray[np.intp], how: Setting, seed: int
) -> dict[int, tuple[torch.Tensor, ...]]:
    """By epoch, directions of all images and of all captions under a CLIP that is trained on some pairs."""
    optimizer = OptimizerParameters(name="adamw", learning_rate=how.rate, weight_decay=1e-4, schedule="constant")
    recipe = PretrainingParameters(
        how.backbone, "clip", how.parameters, optimizer, epochs=how.epochs[-1], batch_size=how.batch
    )
    texts, names = [pool_.captions[row] for row in rows], [("pool", str(row)) for row in rows]
    made = trained(
        recipe, pool_.images[rows], how.augmentation, captions=texts, names=names, seed=seed, epochs=how.epochs
    )
    found, used = {}, 3 * how.count + BANK
    for epoch, encoder in made.items():
        assert encoder.text is not None
        with torch.inference_mode():
            images = [encoder(part.float() / 255)["projection"] for part in pool_.images[:used].split(256)]
            captions = [encoder.text(pool_.captions[at : at + 256]) for at in range(0, used, 256)]
        found[epoch] = tuple(F.normalize(torch.cat(side)[:used], dim=1) for side in (images, captions))
    return found


def against_bank(
    images: torch.Tensor, texts: torch.Tensor, bank: torch.Tensor, bank_texts: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """(N,) the loss of each pair against a fixed bank, and (N,) the norm of its gradient at the two embeddings."""
    images, texts = images.double().requires_grad_(), texts.double().requires_grad_()
    own = (images * texts).sum(dim=1, keepdim=True) / TEMPERATURE
    of_images = torch.cat([own, images @ bank_texts.double().T / TEMPERATURE], dim=1)
    of_texts = torch.cat([own, texts @ bank.double().T / TEMPERATURE], dim=1)
    return _with_norms((of_images.logsumexp(dim=1) + of_texts.logsumexp(dim=1)) / 2 - own[:, 0], images, texts)


def in_batches(
    images: torch.Tensor, texts: torch.Tensor, order: npt.NDArray[np.intp]
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same against the other pairs of a batch, as released: the gradient is that of the batch's losses."""
    losses, norms = torch.empty(len(images)).double(), torch.empty(len(images)).double()
    for at in range(0, len(order), BATCH):
        rows = torch.from_numpy(order[at : at + BATCH])
        u, v = images[rows].double().requires_grad_(), texts[rows].double().requires_grad_()
        logits = u @ v.T / TEMPERATURE
        each = (logits.logsumexp(dim=1) + logits.logsumexp(dim=0)) / 2 - logits.diagonal()
        losses[rows], norms[rows] = _with_norms(each, u, v)
    return losses, norms


def _with_norms(losses: torch.Tensor, images: torch.Tensor, texts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    gradient = torch.cat(torch.autograd.grad(losses.sum(), [images, texts]), dim=1)
    return losses.detach(), gradient.norm(dim=1)


def scores_of(
    images: torch.Tensor,
    texts: torch.Tensor,
    member: npt.NDArray[np.bool_],
    bank: tuple[torch.Tensor, ...],
    rng: np.random.Generator,
) -> dict[str, npt.NDArray[np.float64]]:
    """Scores by name, higher = more likely a member."""
    found = {"cosine": (images * texts).sum(dim=1)}
    ways = {
        "bank": against_bank(images, texts, *bank),
        "mixed batches": in_batches(images, texts, rng.permutation(len(member))),
    }
    losses, norms = torch.empty(len(member)).double(), torch.empty(len(member)).double()
    for side in (member, ~member):
        rows = rng.permutation(np.flatnonzero(side))
        losses[rows], norms[rows] = in_batches(images[rows], texts[rows], np.arange(len(rows)))
    for way, (loss, norm) in {**ways, "batches of one side": (losses, norms)}.items():
        found |= {f"loss, {way}": -loss, f"gradient, {way}": -norm}
    return {name: values.double().numpy() for name, values in found.items()}


def rows_of(name: str, seed: int) -> list[tuple[str, int, str, Estimate]]:
    """(encoder, epoch, score, AUC or difference) of one seed."""
    how, pool_ = SETTINGS[name], pairs(name, seed)
    count, found = how.count, []
    member = np.arange(2 * count) < count
    for encoder, first in (("saw the members", 0), ("saw neither", 2 * count)):
        made = directions(pool_, np.arange(first, first + count), how, seed)
        for epoch, sides in made.items():
            images, texts, bank = sides[0], sides[1], tuple(side[3 * count :] for side in sides)
            rng = np.random.default_rng([seed, epoch])
            lot = slice(0, 2 * count)
            scores = scores_of(images[lot], texts[lot], member, bank, rng)
            for score, values in scores.items():
                found.append((encoder, epoch, score, auc(values, member)))
                if score != "cosine":
                    less = auc_difference(values, scores["cosine"], member)
                    found.append((encoder, epoch, f"{score}, less cosine", less))
            for score in ("loss", "gradient"):
                both = [scores[f"{score}, {way}"] for way in ("batches of one side", "mixed batches")]
                found.append((encoder, epoch, f"{score}, one side less mixed", auc_difference(*both, member)))
            loss_first = auc_difference(scores["loss, bank"], scores["gradient, bank"], member)
            found.append((encoder, epoch, "bank, loss less gradient", loss_first))
            if encoder == "saw neither":
                for _ in range(DRAWS):
                    found += [(encoder, epoch, *one) for one in of_few_classes(images, texts, pool_, count, bank, rng)]
    return found


def of_few_classes(
    images: torch.Tensor,
    texts: torch.Tensor,
    pool_: Pairs,
    count: int,
    bank: tuple[torch.Tensor, ...],
    rng: np.random.Generator,
) -> list[tuple[str, Estimate]]:
    """AUCs where nobody was trained on, and one side holds all classes, the other two of them: not a lot."""
    classes = pool_.classes[: 2 * count]
    few = rng.permutation(np.flatnonzero(np.isin(classes, rng.choice(10, NARROW, replace=False))))[: 2 * BATCH]
    rows = np.concatenate([rng.choice(np.setdiff1d(np.arange(2 * count), few), len(few), replace=False), few])
    member = np.arange(len(rows)) < len(few)
    scores = scores_of(images[rows], texts[rows], member, bank, rng)
    return [(f"of few classes, {score}", auc(values, member)) for score, values in scores.items()]


def main(path: str, most: int | None = None) -> None:
    torch.set_num_threads(1)
    result = Result(path, temperature=TEMPERATURE, bank=BANK)
    for name, how in SETTINGS.items():
        found: dict[tuple[str, int, str], list[Estimate]] = {}
        for seed in how.seeds[:most]:
            for *key, estimate in rows_of(name, seed):
                found.setdefault(tuple(key), []).append(estimate)  # type: ignore[arg-type]
        overlap = 2 * how.count / len(pairs(name, 0).images)
        for (encoder, epoch, score), estimates in found.items():
            one = pool(estimates, overlap=1.0 if score.startswith("of few") else overlap)
            row = {"data": name, "encoder": encoder, "epoch": epoch, "score": score, "value": rounded_ends(one)}
            spread = np.std([each.value for each in estimates], ddof=1) if len(estimates) > 1 else None
            result.rows.append(row | {"sd": None if spread is None else round(float(spread), 3), "n": one.n})
    result.write()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else None)
