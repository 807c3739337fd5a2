"""Images that stand 1, 4 and 16 times in training are memorised in that order, and nothing where nobody was trained.

Digits, exact copies, all of an image in the same half. Seeds 0 and 1 chose the settings, seeds 2 to 4 are tested. The
objective has no negatives: for SimCLR the copies in a batch repel each other, and ranks are worse. Many shadows are
needed, since images of the same number of copies differ too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from sklearn.datasets import load_digits

from mi_core.attacks.memorisation import CLIPMem, Memorisation, MemorisationAttack, SSLMem
from mi_core.attacks.shadows import shadow_row
from mi_core.augmentations.frameworks import CLIPAugmentation
from mi_core.augmentations.simclr import SimCLRAugmentation
from mi_core.augmentations.views import make_views
from mi_core.encoders.checkpoint import Encoder
from mi_core.features.pairwise_similarity import pairwise_similarity
from mi_core.objectives.clip import CLIP, CLIPParameters
from mi_core.objectives.vicreg import VICRegParameters
from mi_core.records import Features, LabelledFeatures
from mi_core.streams import sample_streams
from mi_core.training.data import ResidentImages
from mi_core.training.loop import Pretrainer, PretrainingParameters
from mi_core.training.optimizers import OptimizerParameters

EACH, COPIES = 24, (1, 4, 16)
COUNT = np.repeat(COPIES, EACH)
NAMES = [f"digits/{row:02d}" for row in range(len(COUNT))]
POPULATION = 200


@dataclass(frozen=True)
class Setting:
    """A method, and how its shadows are trained."""

    method: type[MemorisationAttack]
    objective: str
    parameters: Any
    augmentation: SimCLRAugmentation
    epochs: int
    batch: int
    shadows: int


SSL = Setting(
    SSLMem,
    "vicreg",
    VICRegParameters(projection_hidden=256, projection_width=128),
    SimCLRAugmentation(
        crop_scale=(0.75, 1.0), rotation=8, flip=0, brightness=0.1, contrast=0, saturation=0, hue=0, grayscale=0
    ),
    epochs=10,
    batch=64,
    shadows=64,
)
IMAGE_TEXT = Setting(
    CLIPMem,
    "clip",
    CLIPParameters(projection_width=64, text_width=32, text_layers=1, text_heads=2, text_length=12),
    CLIPAugmentation(crop_scale=(0.75, 1.0)),
    epochs=5,
    batch=64,
    shadows=64,
)


@dataclass(frozen=True)
class Data:
    """Images (N, 1, 8, 8) with captions of their class and four letters of their own; views (N, 10, 1, 8, 8)."""

    images: torch.Tensor
    captions: list[str]
    views: torch.Tensor

    @classmethod
    def of(cls, rows: np.ndarray, setting: Setting, seed: int) -> Data:
        digits = load_digits()
        images = torch.from_numpy(np.round(digits.images[rows] * (255 / 16)).astype(np.uint8))[:, None]
        letters = np.random.default_rng([seed, len(rows)]).integers(97, 123, (len(rows), 4))
        captions = [
            f"{digits.target[row]} {bytes(own.tolist()).decode()}" for row, own in zip(rows, letters, strict=True)
        ]
        streams = sample_streams(seed, "train", [("digits", str(row)) for row in rows])
        return cls(images, captions, make_views(images, streams, setting.augmentation, views=10))


def trained(data: Data, inside: np.ndarray, setting: Setting, seed: int, *, epochs: int) -> Encoder:
    """An encoder that saw each image of its half as often as there are copies; without epochs, random weights."""
    rows = np.repeat(np.flatnonzero(inside), COUNT[inside])
    names = [("digits", f"{row}-{copy}") for copy, row in enumerate(rows)]
    targets = None
    if setting.objective == "clip":
        targets = CLIP.encode_targets(setting.parameters, (), [data.captions[row] for row in rows])
    parameters = PretrainingParameters(
        backbone="conv4",
        objective=setting.objective,
        objective_parameters=setting.parameters,
        optimizer=OptimizerParameters(name="adamw", learning_rate=0.005, weight_decay=1e-4, schedule="constant"),
        epochs=setting.epochs,
        batch_size=setting.batch,
    )
    resident = ResidentImages(data.images[rows], names, targets, batch_size=setting.batch, seed=seed)
    trainer = Pretrainer(resident, setting.augmentation, parameters, seed=seed)
    for _ in range(epochs):
        trainer.train_epoch()
    return trainer.encoder()


def features(encoder: Encoder, data: Data, names: list[str], setting: Setting) -> Features:
    """What an attacker reads of the encoder."""
    count, views = data.views.shape[:2]
    with torch.inference_mode():
        embeddings = encoder(data.views.flatten(0, 1))["projection"].reshape(count, views, -1)
        if setting.method is SSLMem:
            return Features(np.array(names), {"pairwise:cosine": pairwise_similarity(embeddings).numpy()})
        values = {"view-embeddings": embeddings.numpy(), "caption:embedding": encoder.text(data.captions).numpy()}
        return Features(np.array(names), values)


def halves(shadows: int, generator: np.random.Generator) -> np.ndarray:
    """(K, N) complementary halves by the number of copies, of whole images."""
    found = []
    for _ in range(shadows // 2):
        order = generator.permutation(len(COUNT))
        half = np.isin(np.arange(len(COUNT)), order[np.cumsum(COUNT[order]) <= COUNT.sum() / 2])
        found += [half, ~half]
    return np.array(found)


def condensed_shadows(setting: Setting, seed: int, inside: np.ndarray, *, epochs: int) -> Features:
    """What each shadow gives for all images, as rows of all shadows."""
    rows = np.random.default_rng(seed).permutation(len(load_digits().images))
    data = Data.of(rows[: len(COUNT)], setting, seed)
    others = Data.of(rows[len(COUNT) : len(COUNT) + POPULATION], setting, seed)
    beside_names = [f"others/{row}" for row in range(POPULATION)]
    ids, alignment = [], []
    for number, half in enumerate(inside):
        encoder = trained(data, half, setting, 1000 * seed + number, epochs=epochs)
        found = features(encoder, data, NAMES, setting)
        if setting.method is CLIPMem:
            found = Features(found.ids, found.values, population=features(encoder, others, beside_names, setting))
        alignment.append(setting.method().condensed(found).values["alignment"])
        ids += [shadow_row(name, f"half-{number}") for name in NAMES]
    return Features(np.array(ids), {"alignment": np.concatenate(alignment)})


def memorised(setting: Setting, seen: Features, inside: np.ndarray) -> Memorisation:
    attack = setting.method()
    attack.fit(LabelledFeatures(seen, inside.ravel()))
    found = attack.memorisation
    assert found is not None
    assert attack.state()["names"].tolist() == NAMES
    return found


def share_that_hold_0(setting: Setting, seen: Features, seed: int) -> float:
    """Of 200 draws of halves that nobody was trained on, for how many the interval of the mean holds 0."""
    held = []
    for draw in range(200):
        mean = memorised(setting, seen, halves(setting.shadows, np.random.default_rng([seed, draw]))).mean
        held.append(mean.low <= 0 <= mean.high)
    return float(np.mean(held))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3, 4])
@pytest.mark.parametrize("setting", [SSL, IMAGE_TEXT], ids=["sslmem", "clipmem"])
def test_memorisation_ranks_images_by_their_copies(setting: Setting, seed: int) -> None:
    """Means by number of copies are in order; over images, perfect order would be .943, since a third are ties.

    .8 over images is reached in most seeds, not in all: single images differ too much. So .7 is asked for.
    """
    inside = halves(setting.shadows, np.random.default_rng([seed, 2000]))
    seen = condensed_shadows(setting, seed, inside, epochs=setting.epochs)
    found = memorised(setting, seen, inside)
    assert spearmanr(COUNT, found.value).statistic >= 0.7
    assert found.mean.low > 0
    means = [found.value[copies == COUNT].mean() for copies in COPIES]
    assert means == sorted(means)
    assert share_that_hold_0(setting, seen, seed) >= 0.9
