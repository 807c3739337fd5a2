"""Reference encoders made here: small ones that learn what is typical among the images of an audit, and no group.

Each is trained on half of all candidates and controls, the halves by lot; an image counts on those that did not see it.
So they know the images and, thanks to the lot, cannot know the groups. Watson et al., "On the importance of difficulty
calibration in membership inference attacks" (ICLR 2022), train such models on other data; here there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from mi_core.auditing.config_text import FAMILY, reference_settings
from mi_core.augmentations.simclr import SimCLRAugmentation
from mi_core.checks import ConfigError
from mi_core.encoders.checkpoint import Encoder, fingerprint
from mi_core.hashing import digest64, digests64
from mi_core.records import BoolArray
from mi_core.training.data import ResidentImages, by_content
from mi_core.training.loop import Pretrainer, PretrainingParameters, audited_encoder
from mi_core.training.optimizers import OptimizerParameters

FEWEST = 128  # images of both sides together, of which a half fills a batch


@dataclass(frozen=True)
class Made:
    """One of the encoders: its name in a config, its fingerprint, fresh weights, and which of N images (N,) it saw."""

    name: str
    encoder: Encoder
    fingerprint: str
    fresh: Encoder | None
    seen: BoolArray


def half_of(hashes: Sequence[str], index: int, seed: int, nonce: str) -> BoolArray:
    """Which of N images one of the encoders is trained on: (N,) bool; halves 2k and 2k + 1 make up the whole.

    Args:
        hashes: of the images' pixels, hexadecimal.
        index: of the encoder.
        seed: of the audit.
        nonce: of its queries, so that nobody can foresee the halves.
    """
    order = np.argsort(digests64((seed, f"half {index // 2} {nonce}"), hashes), kind="stable")
    middle, chosen = (len(order) + 1) // 2, np.zeros(len(order), dtype=bool)
    chosen[order[middle:] if index % 2 else order[:middle]] = True
    return chosen


def make_references(
    images: npt.NDArray[np.uint8],
    hashes: Sequence[str],
    *,
    seed: int,
    nonce: str,
    device: torch.device,
    progress: Callable[[], None] = lambda: None,
) -> list[Made]:
    """Train the encoders.

    Args:
        images: (N, C, S, S) of both sides.
        hashes: of their pixels.
        seed, nonce: as `half_of`.
        device: where they are trained.
        progress: called after every epoch.

    Raises:
        ConfigError: there are too few images.
    """
    if len(images) < FEWEST:
        raise ConfigError(
            f"{len(images)} images are too few to train references on, which takes {FEWEST}; give references=..., or "
            "quick=True for an audit without any"
        )
    settings = reference_settings(images.shape[-1])
    count = settings.pop("halves")
    parameters = PretrainingParameters(**settings | {"optimizer": OptimizerParameters(**settings["optimizer"])})
    made = []
    for index in range(count):
        name = f"{FAMILY}-{index}"
        own, seen = digest64(seed, "encoder", name), half_of(hashes, index, seed, nonce)
        half = torch.from_numpy(images[seen])
        order, names = by_content(half)
        half = half[order]
        data = ResidentImages(half, names, batch_size=parameters.batch_size, seed=own, device=device)
        trainer = Pretrainer(data, SimCLRAugmentation(), parameters, seed=own, device=device)
        for _ in range(parameters.epochs):
            trainer.train_epoch()
            progress()
        fresh = audited_encoder(parameters, images.shape[1], images.shape[2]).eval()
        encoder = trainer.encoder().eval()
        made.append(Made(name, encoder, fingerprint(encoder), fresh, seen))
    return made
