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
from mi_core.encoders.batch_norm import for_queries
from mi_core.encoders.checkpoint import Encoder
from mi_core.features import Measure
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


class Scorer:
    """The scores of one encoder on which a claim rests.

    Args:
        encoder: in evaluation mode.
        question: how it is asked.
        views: of each image, at least 2.
        nonce: with the pixels it settles the views.
        device: where the encoder is to work.
    """

    def __init__(self, encoder: Encoder, question: Question, views: int, nonce: str, device: torch.device) -> None:
        self.decoder, self._nonce, self._attack = question.decoder, nonce, MeanCosine(seed=question.how.seed)
        ready, precision = {"target": for_queries(encoder, device)}, precision_on(device.type, PRECISION)

        def extractor(measure: Measure, output: str) -> Extractor:
            plan = QueryPlan((measure,), (output,), views, precision=precision)
            return Extractor(ready, plan, question.recipe, device)

        (self._cosines,), captions = self._attack.needs, CaptionSimilarity()
        self._of_views = extractor(self._cosines, question.output)
        self._of_captions = None if encoder.text is None else extractor(captions, captions.output)

    def similarity(self, images: torch.Tensor, names: Sequence[str]) -> FloatArray:
        """How alike the answers to views of an image are, as `mi_core.attacks.mean_cosine` scores it.

        Args:
            images: (B, C, S, S) uint8.
            names: of each, for messages.

        Returns:
            (B,) scores.
        """
        streams = pixel_streams(self._nonce, self._attack.seed, "query", images)
        values = _only(self._of_views(images, streams, list(names)))
        return self._attack.statistic(Features(np.array(names), {self._cosines.name: values}))

    def caption_fit(self, images: torch.Tensor, captions: Sequence[str], names: Sequence[str]) -> FloatArray:
        """How well images fit to captions, as `similarity`: their cosine (Ko et al., ICCV 2023); NaN without texts."""
        if self._of_captions is None:
            return np.full(len(images), np.nan)
        streams = torch.zeros(len(images), dtype=torch.int64)  # no view is drawn
        return np.asarray(_only(self._of_captions(images, streams, list(names), list(captions))), dtype=np.float64)


def _only(answers: Mapping[str, Mapping[str, np.ndarray]]) -> np.ndarray:
    """The one column of the one encoder."""
    ((values,),) = (columns.values() for columns in answers.values())
    return values
