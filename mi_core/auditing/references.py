"""Reference encoders made here: small ones that learn what is typical among the images of an audit, and no group.

Each is trained on half of all candidates and controls, the halves by lot; an image counts on those that did not see it.
So they know the images and, thanks to the lot, cannot know the groups. Watson et al., "On the importance of difficulty
calibration in membership inference attacks" (ICLR 2022), train such models on other data; here there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from mi_core.auditing.config_text import FAMILY, reference_settings
from mi_core.auditing.models import Model
from mi_core.augmentations.simclr import SimCLRAugmentation
from mi_core.checks import ConfigError
from mi_core.encoders.checkpoint import fingerprint
from mi_core.hashing import digest64, digests64, half_of, half_purpose
from mi_core.records import BoolArray
from mi_core.report.model.attacks import EncoderPart
from mi_core.training.data import ResidentImages, by_content
from mi_core.training.loop import Pretrainer, PretrainingParameters, audited_encoder
from mi_core.training.optimizers import OptimizerParameters

FEWEST = 128  # images of both sides together, of which a half fills a batch


@dataclass(frozen=True)
class Reference:
    """A reference encoder.

    Args:
        name: in a config.
        model: the encoder.
        seen: (N,) which of the images it was trained on.
        given: whether the user gave it; else it was made here.
        output: that is read.
        consistency: whether it recognises images; empty: it was not tried out yet.
    """

    name: str
    model: Model
    seen: BoolArray
    given: bool = False
    output: str = ""
    consistency: Mapping[str, Any] = field(default_factory=dict)


def check_enough(images: int) -> None:
    """Raise ConfigError if there are too few images to train references on."""
    if images < FEWEST:
        raise ConfigError(
            f"{images} images are too few to train references on, which takes {FEWEST}; give references=..., or "
            "quick=True for an audit without any"
        )


def make_references(
    images: npt.NDArray[np.uint8],
    hashes: Sequence[str],
    *,
    seed: int,
    nonce: str,
    device: torch.device,
    progress: Callable[[], None] = lambda: None,
) -> list[Reference]:
    """Train the encoders.

    Args:
        images: (N, C, S, S) of both sides.
        hashes: of their pixels.
        seed, nonce: of the audit, by which halves are drawn.
        device: where they are trained.
        progress: called after every epoch.
    """
    settings = reference_settings(images.shape[-1])
    count, told = settings.pop("halves"), {name: settings[name] for name in ("objective", "backbone", "epochs")}
    parameters = PretrainingParameters(**settings | {"optimizer": OptimizerParameters(**settings["optimizer"])})
    made = []
    for index in range(count):
        name = f"{FAMILY}-{index}"
        own = digest64(seed, "encoder", name)
        seen = half_of(digests64((seed, half_purpose(index, nonce)), hashes), index, "both sides")
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
        part = EncoderPart(**told, train_on="half of candidates and controls, by lot", fingerprint=fingerprint(encoder))
        made.append(Reference(name, Model(encoder, part, reference=fresh), seen))
    return made
