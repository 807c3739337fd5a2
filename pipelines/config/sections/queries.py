"""The section ``queries`` of a config: how encoders are asked, and the recipe of the views."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from mi_core.augmentations import AUGMENTATIONS
from mi_core.encoders.checkpoint import OUTPUTS
from pipelines.config.sections.parameters import build, complete
from pipelines.config.sections.section import Section, one_of


class QueriesConfig(Section):
    """How encoders are queried."""

    views: int = Field(default=10, ge=1, description="augmented views per image")
    augmentation: Literal["as-trained"] | dict[str, Any] = Field(
        default="as-trained", description="as-trained, or settings of the recipe"
    )
    crop_only: tuple[float, float] = Field(
        default=(0.2, 1.0),
        description="share of the area of crops, the only views where an attack's shadow was trained by another "
        "algorithm than the target",
    )
    outputs: tuple[Annotated[str, one_of("outputs", OUTPUTS)], ...] = Field(
        default=("projection", "backbone"), min_length=1, description="embeddings audited"
    )
    chunk: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        default="auto",
        description="images per chunk, the unit of work, retry and resume; auto: 16 to 256, in large runs some "
        "seconds of an actor",
    )
    batch_views: int = Field(
        default=640, ge=1, description="queries per call of the encoder, at most; on GPUs doubled while that is faster"
    )
    precision: Literal["auto", "float32", "bfloat16"] = Field(
        default="auto",
        description="of the encoder's forward: auto is bfloat16 on GPUs, on CPUs the faster of both in a trial when "
        "the run first starts; float32 on GPUs uses TF32",
    )
    feature_precision: Literal["float32", "float16"] = Field(
        default="float32", description="of stored features; float16 halves them and rounds them to 3 digits"
    )
    compile: bool = Field(default=False, description="compile ResNets and transformers on GPUs")
    nonce: str | None = Field(
        default=None,
        min_length=1,
        description="what makes the views of an audit unforeseeable, beside the pixels; default: drawn when the roles "
        "are registered, and none where encoders are trained here; give that of a run to repeat it, or the number of "
        "the other party",
    )
    repeats: int = Field(
        default=1, ge=1, description="times that every query is asked; the mean of the answers counts, against noise"
    )

    @field_validator("crop_only")
    @classmethod
    def _possible_crop(cls, value: tuple[float, float]) -> tuple[float, float]:
        crops_alone(value)
        return value


@dataclass(frozen=True)
class Recipe:
    """How query views are drawn: a recipe of `AUGMENTATIONS` and all its settings."""

    name: str
    settings: dict[str, Any]

    def build(self) -> Any:
        """The recipe itself."""
        return build(AUGMENTATIONS[self.name], self.settings)

    def __hash__(self) -> int:
        return hash((self.name, json.dumps(self.settings, sort_keys=True)))


def crops_alone(scale: tuple[float, float]) -> Recipe:
    """Random resized crops and nothing else: views for a target whose algorithm is unknown (EncoderMI, section 5.1)."""
    off = {"flip": 0.0, "jitter_probability": 0.0, "grayscale": 0.0}
    return Recipe("simclr", complete(AUGMENTATIONS["simclr"], {"crop_scale": scale, **off}))
