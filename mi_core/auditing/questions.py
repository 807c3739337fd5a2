"""How an encoder is asked about images: the arguments that say it, what it gets, and which score its answers have.

All arguments of an audit or a leak meter that are impossible are named at once, before anything is read.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch

from mi_core.adoption.builders import USUAL_SIDE, usual_settings
from mi_core.adoption.published import normalisation_fault, published
from mi_core.adoption.weight_sources import read_local
from mi_core.attacks.mean_cosine import MeanCosine
from mi_core.auditing.models import Preparation
from mi_core.augmentations import AUGMENTATIONS
from mi_core.augmentations.simclr import SimCLRAugmentation
from mi_core.checks import ConfigError, check_choice, check_range
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

    def caption_fit(self, images: torch.Tensor, captions: Sequence[Sequence[str]], names: Sequence[str]) -> FloatArray:
        """How well images fit to K captions of each: (B, K) cosines (Ko et al., ICCV 2023); NaN without texts."""
        if self._of_captions is None:
            return np.full((len(captions), len(captions[0])), np.nan)
        streams = torch.zeros(len(images), dtype=torch.int64)  # no view is drawn
        return np.asarray(_only(self._of_captions(images, streams, list(names), list(captions))), dtype=np.float64)


def _only(answers: Mapping[str, Mapping[str, np.ndarray]]) -> np.ndarray:
    """The one column of the one encoder."""
    ((values,),) = (columns.values() for columns in answers.values())
    return values


def check_arguments(**given: Any) -> dict[str, Any]:
    """Arguments as plain Python has them: numbers of numpy as int and float, sequences as tuples.

    Args:
        given: by name; those that `_KINDS` does not list are returned as they are.

    Raises:
        ConfigError: some are of the wrong kind or outside their range; the message names every one.
    """
    faults: list[str] = []
    plain: dict[str, Any] = {}
    for name, value in given.items():
        try:
            plain[name] = _KINDS[name](name, value) if name in _KINDS else value
        except ConfigError as error:
            faults.append(str(error))
    if (given.get("mean") is None) != (given.get("std") is None):
        one, other = ("mean", "std") if given.get("std") is None else ("std", "mean")
        faults.append(f"{one} is given without {other}; give both")
    if faults:
        raise ConfigError("; ".join(faults))
    return plain


def recipe_of(objective: str, settings: Mapping[str, Any]) -> SimCLRAugmentation:
    """The recipe of the views that queries imitate.

    Args:
        objective: pre-training framework.
        settings: of its views, in place of its own.

    Raises:
        ConfigError: no such framework or setting, or a value of the wrong kind or range.
    """
    recipe = AUGMENTATIONS[check_choice("objective", objective, AUGMENTATIONS)]
    defaults = {field.name: field.default for field in fields(recipe)}

    def checked_setting(name: str, value: Any) -> Any:
        default, full = defaults[check_choice("augmentation", name, defaults)], f"augmentation.{name}"
        if isinstance(default, tuple):
            return _numbers(full, value, (len(default),))
        if isinstance(default, str) and not isinstance(value, str):
            raise _fault(full, value, "a text")
        return value if isinstance(default, str) else _number(full, value)

    return recipe(**{name: checked_setting(name, value) for name, value in settings.items()})


def _fault(name: str, value: Any, allowed: str) -> ConfigError:
    return ConfigError(f"{name} = {value!r}, allowed: {allowed}")


def plain_value(name: str, value: Any) -> Any:
    """A value as JSON and YAML write it.

    Raises:
        ConfigError: it is none of those.
    """
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    value = value.tolist() if hasattr(value, "tolist") else value  # of NumPy and torch
    if isinstance(value, Mapping):
        return {str(key): plain_value(f"{name}.{key}", one) for key, one in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(plain_value(name, one) for one in value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if value is not None and not isinstance(value, str | int | float):
        raise _fault(name, value, "numbers, texts, and lists or dictionaries of them")
    return value


def _number(name: str, value: Any) -> float:
    if not isinstance(value, Real) or isinstance(value, bool) or not math.isfinite(value):
        raise _fault(name, value, "a number")
    return int(value) if isinstance(value, Integral) else float(value)


def _numbers(name: str, value: Any, counts: tuple[int, ...]) -> tuple[float, ...]:
    """A sequence, array or tensor of numbers, as many as one of ``counts``."""
    allowed = f"{' or '.join(map(str, counts))} numbers"
    values = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(values, tuple | list) or len(values) not in counts:
        raise _fault(name, value, allowed)
    return tuple(_number(name, one) for one in values)


def _whole(low: int, high: int, *, absent: bool = False) -> Callable[[str, Any], int | None]:
    def check(name: str, value: Any) -> int | None:
        if absent and value is None:
            return None
        if not isinstance(value, Integral) or isinstance(value, bool) or not low <= int(value) <= high:
            raise _fault(name, value, f"a whole number from {low} to {high}" + (", or None" if absent else ""))
        return int(value)

    return check


def _normalisation(name: str, value: Any) -> tuple[float, ...] | None:
    if value is None:
        return None
    values = _numbers(name, value, (1, 3))
    if fault := normalisation_fault(name, values):
        raise ConfigError(fault)
    return values


def _channels(name: str, value: Any) -> int:
    if value not in (1, 3) or isinstance(value, bool):
        raise _fault(name, value, "1 or 3")
    return int(value)


def _optional(allowed: str, *kinds: type) -> Callable[[str, Any], Any]:
    def check(name: str, value: Any) -> Any:
        if value is not None and (not isinstance(value, kinds) or value == ""):
            raise _fault(name, value, allowed)
        return value

    return check


def _settings(name: str, value: Any) -> Any:
    return plain_value(name, _optional("a dictionary of settings, or None", Mapping)(name, value))


def _decoding(name: str, value: Any) -> Any:
    value = {setting: one for setting, one in (_settings(name, value) or {}).items() if one is not None}
    for setting in value:
        check_choice(name, setting, ("interpolation", "fit", "resize", "orientation", "depth"))
    try:
        Decoder(**{"image_size": 1, **value})
    except TypeError as error:
        raise _fault(name, value, "numbers and names as Decoder has them") from error
    return value


_KINDS: dict[str, Callable[[str, Any], Any]] = {
    "size": _whole(1, 4096, absent=True),
    "channels": _channels,
    "views": _whole(2, 10_000),
    "seed": _whole(0, 2**32 - 1),
    "fdr": lambda name, value: check_range(name, _number(name, value), 0, 1, open_low=True, open_high=True),
    "max_rejected": lambda name, value: check_range(name, _number(name, value), 0, 1),
    "factor": lambda name, value: check_range(name, _number(name, value), 1),
    "decoding": _decoding,
    **dict.fromkeys(("weights", "registration"), _optional("a path, or None", str, os.PathLike)),
    **dict.fromkeys(("mean", "std"), _normalisation),
    **dict.fromkeys(("weights_key", "objective", "output", "key", "nonce"), _optional("a text, or None", str)),
    **dict.fromkeys(("augmentation", "endpoint"), _settings),
    **dict.fromkeys(("quick", "near_duplicates", "trust_code", "progress"), _optional("True or False", bool)),
}
"""What every argument has to be, by its name."""
