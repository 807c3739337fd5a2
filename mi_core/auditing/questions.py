"""How an encoder is asked about images: what it gets, and which score its answers have."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from mi_core.adoption.builders import USUAL_SIDE, usual_settings
from mi_core.adoption.published import published
from mi_core.adoption.weight_sources import read_local
from mi_core.attacks.mean_cosine import MeanCosine
from mi_core.auditing.arguments import recipe_of
from mi_core.auditing.models import Preparation
from mi_core.augmentations.simclr import SimCLRAugmentation
from mi_core.encoders.averaging import averaged
from mi_core.encoders.batch_norm import for_queries
from mi_core.encoders.checkpoint import Encoder
from mi_core.features.caption_similarity import CaptionSimilarity
from mi_core.images import Decoder
from mi_core.querying.extractor import Extractor
from mi_core.querying.plan import QueryPlan
from mi_core.querying.precision import precision_on
from mi_core.records import Features, FloatArray
from mi_core.streams import pixel_streams

PRECISION = "float32"
"""Of the answers on which a claim rests, so that they repeat on every machine."""


@dataclass(frozen=True)
class Question:
    """How an encoder is asked.

    Args:
        objective: training whose views the queries imitate; recipe: of these views.
        output: that is attacked.
        data: what a config says of the images' way to it, where the encoder's publisher does not.
        decoder: of files to pixels.
        how: pixels reach the encoder.
        augmentation: settings of the views that differ from those of the objective.
    """

    objective: str
    recipe: SimCLRAugmentation
    output: str
    data: Mapping[str, Any]
    decoder: Decoder
    how: Preparation
    augmentation: Mapping[str, Any] = field(default_factory=dict)


def question_of(
    model: Any,
    *,
    size: int | None,
    channels: int = 3,
    decoding: Mapping[str, Any] | None,
    weights: str | os.PathLike[str] | None,
    weights_key: str | None,
    objective: str | None,
    augmentation: Mapping[str, Any] | None,
    output: str | None,
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
    endpoint: Mapping[str, Any] | None,
    key: str | None,
    trust_code: bool,
    seed: int,
) -> Question:
    """How to ask an encoder, from arguments as `mi_core.audit` takes them; what is None follows from the encoder.

    Raises:
        ConfigError: there is no such objective, setting or encoder.
    """
    named = model if isinstance(model, str) else ""
    captioned, told = usual_settings(named, None if weights is None else str(weights), size, read_local)
    objective = objective or ("clip" if captioned else "simclr")
    told |= ({} if channels == 3 else {"channels": channels}) | dict(decoding or {})
    publisher = None if "image_size" in told else published(named)
    way = told if publisher is None else publisher.preprocessing.decoding() | told
    decoder = Decoder(**way | {"image_size": way["image_size"] or USUAL_SIDE})
    recipe, side = recipe_of(objective, augmentation or {}), decoder.image_size
    output = output or ("projection" if captioned else "backbone")
    how = Preparation(side, weights, mean, std, endpoint or {}, key, trust_code, seed, weights_key, channels)
    return Question(objective, recipe, output, told, decoder, how, augmentation or {})


class ViewSimilarity:
    """The score of `mi_core.attacks.mean_cosine` on one encoder: how alike its answers to views of an image are.

    Args:
        encoder: in evaluation mode.
        question: how it is asked.
        views: of each image, at least 2.
        nonce: with the pixels it settles the views.
        device: where the encoder is to work.
    """

    def __init__(self, encoder: Encoder, question: Question, views: int, nonce: str, device: torch.device) -> None:
        self.attack, self.nonce, self.seed = MeanCosine(seed=question.how.seed), nonce, question.how.seed
        plan = QueryPlan(self.attack.needs, (question.output,), views, precision=precision_on(device.type, PRECISION))
        ready = averaged(for_queries(encoder, device), 1)
        self.extractor = Extractor({"target": ready}, plan, question.recipe, device)

    def __call__(self, images: torch.Tensor, names: Sequence[str]) -> FloatArray:
        """The scores (B,) of images (B, C, S, S) uint8; ``names`` are for messages."""
        streams = pixel_streams(self.nonce, self.seed, "query", images)
        (columns,) = self.extractor(images, streams, list(names)).values()
        (values,) = columns.values()
        (measure,) = self.attack.needs
        return self.attack.statistic(Features(np.array(names), {measure.name: values}))


class CaptionFit:
    """How well an encoder of images and texts fits an image to a caption: their cosine (Ko et al., ICCV 2023).

    Args:
        encoder: in evaluation mode; one without texts gives NaN.
        question: how it is asked.
        device: where the encoder is to work.
    """

    def __init__(self, encoder: Encoder, question: Question, device: torch.device) -> None:
        self.extractor = None
        if encoder.text is not None:
            measure = CaptionSimilarity()
            plan = QueryPlan((measure,), (measure.output,), precision=precision_on(device.type, PRECISION))
            self.extractor = Extractor({"target": for_queries(encoder, device)}, plan, question.recipe, device)

    def __call__(self, images: torch.Tensor, captions: Sequence[str], names: Sequence[str]) -> FloatArray:
        """The scores (B,) of images (B, C, S, S) uint8 with their captions; ``names`` are for messages."""
        if self.extractor is None:
            return np.full(len(images), np.nan)
        streams = torch.zeros(len(images), dtype=torch.int64)  # no view is drawn
        (columns,) = self.extractor(images, streams, list(names), list(captions)).values()
        (values,) = columns.values()
        return np.asarray(values, dtype=np.float64)
