"""The section ``encoders`` of a config: trained here, trained with a defense, loaded, or behind an API."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from datetime import date
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Union

from pydantic import (
    AfterValidator,
    Discriminator,
    Field,
    Tag,
    ValidationInfo,
    create_model,
    field_validator,
    model_validator,
)

from mi_core.adoption.builders import CODE, LOADERS, WHOLE
from mi_core.adoption.layouts.heads import ACTIVATIONS
from mi_core.adoption.model_folder import folder_kind, repository
from mi_core.augmentations import AUGMENTATIONS
from mi_core.checks import ConfigError, check_choice
from mi_core.defenses import DEFENSES
from mi_core.defenses.base import Defense
from mi_core.encoders.checkpoint import INTERPOLATIONS, OUTPUTS
from mi_core.encoders.remote.parameters import EndpointParameters
from mi_core.objectives import OBJECTIVES
from mi_core.training.loop import PretrainingParameters
from mi_core.training.optimizers import OptimizerParameters
from pipelines.config.sections.parameters import build, complete, parameter_fields
from pipelines.config.sections.section import Names, Section, one_of


class ConfigOfEncoder(Section):
    """The fields that all encoders have."""

    objective: Annotated[str, one_of("objective", OBJECTIVES)] = Field(
        default="simclr", description="pre-training framework"
    )
    augmentation: dict[str, Any] = Field(
        default_factory=dict, validate_default=True, description="settings of the training views"
    )

    @field_validator("augmentation")
    @classmethod
    def _complete_augmentation(cls, value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        return complete(AUGMENTATIONS[info.data.get("objective", "simclr")], value)

    def views(self) -> Any:
        """The recipe of training views."""
        return build(AUGMENTATIONS[self.objective], self.augmentation)


class TrainedConfig(ConfigOfEncoder):
    """One encoder to train: framework, architecture, data, schedule."""

    backbone: str = Field(description="architecture; transformers with their patch size, as vit-s/16")
    train_on: Names = Field(description="roles whose samples are the members")
    half: int | None = Field(
        default=None, ge=0, description="which random half of these samples; `halves: N` makes N such encoders"
    )
    start: str | None = Field(default=None, description="encoder whose final weights this one starts from")
    epochs: int = Field(ge=1, description="passes over the members")
    batch_size: int = Field(ge=2, description="images per step over all workers")
    checkpoints: tuple[int, ...] = Field(default=(), description="epochs to keep weights of; the last is always kept")
    save_every: int | None = Field(
        default=None, ge=1, description="epochs between states to resume from; default: one a minute"
    )
    precision: str = Field(default="float32", description="float32 or bfloat16 (autocast)")
    mean: tuple[float, ...] = Field(default=(0.5,), description="per-channel normalisation, pixels in [0, 1]")
    std: tuple[float, ...] = Field(default=(0.5,))
    size: int | None = Field(
        default=None, ge=4, description="side of the images it is trained on and takes; default: data.image_size"
    )
    optimizer: Annotated[dict[str, Any], AfterValidator(partial(complete, OptimizerParameters))] = Field(
        default_factory=dict, validate_default=True, description="see OptimizerParameters"
    )
    parameters: dict[str, Any] = Field(
        default_factory=dict, validate_default=True, description="settings of the objective"
    )
    attribute: str | None = Field(
        default=None, description="attribute that the objective or the defense hides, of data.attributes"
    )

    @field_validator("parameters")
    @classmethod
    def _complete_parameters(cls, value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        return complete(OBJECTIVES[info.data.get("objective", "simclr")].Parameters, value)

    @model_validator(mode="after")
    def _check(self) -> TrainedConfig:
        for epoch in self.checkpoints:
            if not 1 <= epoch <= self.epochs:
                raise ValueError(f"checkpoints holds {epoch}, allowed: 1 to epochs = {self.epochs}")
        if OBJECTIVES[self.objective].target == "attribute" and self.attribute is None:
            raise ValueError(f"attribute is missing: which of data.attributes {self.objective} hides")
        self.pretraining()
        return self

    @property
    def kept_epochs(self) -> tuple[int, ...]:
        """Epochs whose weights are kept, ascending, the last included."""
        return tuple(sorted({*self.checkpoints, self.epochs}))

    @property
    def outputs(self) -> tuple[str, ...]:
        """Embeddings that the encoder exposes."""
        return ("backbone", *OBJECTIVES[self.objective].heads)

    def pretraining(self) -> PretrainingParameters:
        """The settings as the trainer takes them."""
        built = {
            "objective_parameters": build(OBJECTIVES[self.objective].Parameters, self.parameters),
            "optimizer": build(OptimizerParameters, self.optimizer),
        }
        own = {one.name for one in fields(PretrainingParameters)} - set(built)
        return PretrainingParameters(**self.model_dump(include=own), **built)


class DefendedConfig(TrainedConfig):
    """A trained encoder behind a defense; it takes its other settings from the encoder that it defends."""

    defends: str = Field(description="encoder, trained here, that is defended")
    defense: Annotated[str, one_of("defense", DEFENSES)] = Field(description="defense of it")
    settings: dict[str, Any] = Field(default_factory=dict, validate_default=True, description="settings of the defense")
    epoch: int | None = Field(default=None, ge=1, description="checkpoint that is defended; default: the last")
    outside: Names = Field(default=(), description="roles of the provider's images that the encoder never saw")

    @field_validator("settings")
    @classmethod
    def _complete_settings(cls, value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        known = info.data.get("defense")
        return value if known is None else complete(DEFENSES[known].Parameters, value)

    @model_validator(mode="after")
    def _check_defended(self) -> DefendedConfig:
        if self.start != self.defends:
            raise ValueError(f"start = {self.start!r}: a defended encoder starts from the one it defends")
        if self.half is not None:
            raise ValueError(f"defends = {self.defends!r} stands for encoders with halves; defend one of its own")
        needs = DEFENSES[self.defense].needs
        for need, field in (("outside", "outside"), ("attributes", "attribute"), ("epoch", "epoch")):
            if need in needs and not getattr(self, field):
                raise ValueError(f"{field} is missing, which the defense {self.defense} needs")
        if "logits" in needs and "logits" not in self.outputs:
            raise ValueError(f"defense = {self.defense!r} is for classifiers, with the output logits")
        return self

    @property
    def kept_epochs(self) -> tuple[int, ...]:
        """The checkpoint that is defended."""
        return (self.epoch or self.epochs,)

    def method(self, seed: int) -> Defense:
        """The defense itself."""
        method = DEFENSES[self.defense]
        return method(build(method.Parameters, self.settings), seed=seed)


class ForeignConfig(ConfigOfEncoder):
    """An encoder that was trained elsewhere. ``objective`` and ``augmentation`` say which views attacks should draw."""

    objective: Annotated[str, one_of("objective", AUGMENTATIONS)] = Field(
        default="simclr", description="pre-training framework whose views it saw"
    )

    kept_epochs: ClassVar[tuple[int, ...]] = (0,)
    """One checkpoint, called epoch 0."""
    train_on: ClassVar[tuple[str, ...]] = ()
    """No role: the audit asks for its members."""
    start: ClassVar[None] = None
    """No encoder of the run."""

    def identity(self) -> dict[str, Any]:
        """The settings that make it what it is; another one needs another adoption."""
        return self.model_dump()


class HeadConfig(Section):
    """The settings of a head that the file of a loaded encoder does not hold."""

    activation: Annotated[str, one_of("activation", ACTIVATIONS)] = Field(
        description="between its layers; none: nothing"
    )


class LoadedConfig(ForeignConfig):
    """One encoder from elsewhere, by its weights or its code."""

    load: str = Field(
        description="kind:architecture, for example checkpoint:resnet50-imagenet or open_clip:ViT-B-32; or a model of "
        "the Hub: transformers:org/name, open_clip:hf-hub:org/name, timm:hf_hub:org/name"
    )
    weights: str | None = Field(
        default=None,
        description="weights file: a path, a URI or hf://org/name@revision/file; of transformers, also a folder",
    )
    weights_key: str | None = Field(
        default=None,
        description="entry of the file that holds the weights, such as model_ema, or what their names begin with; "
        "default: the usual one",
    )
    fresh: bool = Field(
        default=False, description="fresh weights for the same architecture, with the heads that the file has if given"
    )
    trust_code: bool = Field(default=False, description="run the code in TorchScript files or Python modules")
    size: int | None = Field(default=None, ge=1, description="side of the images it takes; default: its own")
    interpolation: Annotated[str, one_of("interpolation", INTERPOLATIONS)] | None = Field(
        default=None, description="bilinear or bicubic; default: its own"
    )
    mean: tuple[float, ...] | None = Field(default=None, description="normalisation; default: its own")
    std: tuple[float, ...] | None = Field(default=None)
    heads: dict[str, HeadConfig] = Field(
        default_factory=dict, description="of checkpoint:... files whose code is not known: the activation of a head"
    )

    @model_validator(mode="before")
    @classmethod
    def _clip_views(cls, value: Any) -> Any:
        if isinstance(value, dict) and str(value.get("load", "")).startswith("open_clip:"):
            return {"objective": "clip"} | value
        return value

    @model_validator(mode="after")
    def _check(self) -> LoadedConfig:
        kind, _, _ = self.load.partition(":")
        check_choice("load", kind, LOADERS)
        for output in self.heads:
            check_choice("heads", output, OUTPUTS[1:])
        if self.heads and kind != "checkpoint":
            raise ValueError(f"heads is given, but {self.load!r} defines its own; leave heads out")
        if kind in CODE and not self.trust_code:
            raise ValueError(f"load = {self.load!r} runs code of others; set trust_code: true if you trust it")
        if kind == "python":
            if self.weights is not None:
                raise ValueError(f"weights = {self.weights!r}: a Python callable brings its own")
        elif folder_kind(self.load) is not None:
            if self.weights is None:
                repository(self.load)
        elif self.weights is None and not self.fresh:
            raise ValueError(f"weights is missing for {self.load!r}; give the file, or fresh: true for fresh weights")
        if self.weights_key is not None and (kind in WHOLE or folder_kind(self.load) or self.weights is None):
            raise ValueError(f"weights_key = {self.weights_key!r} is for a file of weights; leave it out")
        if kind in WHOLE and self.fresh:
            raise ValueError(f"fresh = True: {_SECOND[kind]}")
        return self

    @property
    def outputs(self) -> tuple[str, ...] | None:
        """Embeddings that the encoder exposes, where that is known without its weights."""
        kind = self.load.partition(":")[0]
        bare = self.fresh and self.weights is None and kind in ("checkpoint", "timm")
        return ("backbone",) if bare or kind == "torchvision" else None

    def place(self, name: str) -> str:
        """The name of the encoder in errors of loading, with its file if there is one."""
        return f"encoders.{name}" + (f".weights = {self.weights}" if self.weights else f".load = {self.load}")

    def preprocessing(self) -> dict[str, Any]:
        """Settings that replace the encoder's own."""
        return self.model_dump(include={"size", "interpolation", "mean", "std"}, exclude_none=True)


_SECOND = {
    "python": "a Python function cannot be re-initialised as control. Give a second function with random weights: "
    "encoders.fresh={load: python:m:g, trust_code: true}",
    "torchscript": "a TorchScript file cannot be re-initialised as control. Give a second file with random weights: "
    "encoders.fresh={load: torchscript, weights: random.pt, trust_code: true}",
    "onnx": "an ONNX file cannot be re-initialised as control. Give a second file with random weights",
}
"""How to give the control of an encoder that brings its network."""


class _Settings(Section):
    @field_validator(
        "query", mode="before", check_fields=False, json_schema_input_type=dict[str, str | int | date] | None
    )
    @classmethod
    def _as_written(cls, value: Any) -> Any:
        """Dates and whole numbers as an address has them: YAML reads ``2026-01-31`` as a date."""
        if not isinstance(value, dict):
            return value
        return {name: str(one) if type(one) in (date, int) else one for name, one in value.items()}


if TYPE_CHECKING:
    _EndpointSettings = _Settings
else:
    _EndpointSettings = create_model(
        "endpoint-settings", __base__=_Settings, __module__=__name__, **parameter_fields(EndpointParameters)
    )


class EndpointConfig(ForeignConfig):
    """One encoder behind an API; see `EndpointParameters`."""

    endpoint: _EndpointSettings = Field(description="where it answers, what it is sent, how much it may be asked")

    @model_validator(mode="after")
    def _check(self) -> EndpointConfig:
        try:
            self.parameters()
        except ConfigError as error:
            raise ValueError(f"endpoint.{error}") from error
        return self

    @property
    def outputs(self) -> tuple[str, ...]:
        """Embeddings that it answers with."""
        return self.parameters().outputs

    def parameters(self) -> EndpointParameters:
        """The settings as the client takes them."""
        return EndpointParameters(**self.endpoint.model_dump())

    def identity(self) -> dict[str, Any]:
        """The settings that answers depend on; limits, timeouts and the like may change."""
        return {**self.model_dump(exclude={"endpoint"}), "endpoint": self.parameters().identity()}


def sealed(settings: ConfigOfEncoder | None) -> str:
    """Why an encoder gives neither weights nor gradients, in words; empty: it does."""
    graph = isinstance(settings, LoadedConfig) and settings.load.startswith("onnx")
    return "is behind an API" if isinstance(settings, EndpointConfig) else "is an ONNX file" if graph else ""


_KINDS: dict[str, type[ConfigOfEncoder]] = {"load": LoadedConfig, "endpoint": EndpointConfig, "defends": DefendedConfig}
"""Kinds of encoders by the field that only they have; an encoder without any of these is trained here."""


def kind_of(settings: Mapping[str, Any]) -> type[ConfigOfEncoder]:
    """The model of an encoder whose settings are plain values."""
    return next((model for field, model in _KINDS.items() if field in settings), TrainedConfig)


def _tag(value: Any) -> str:
    return (kind_of(value) if isinstance(value, dict) else type(value)).__name__


if TYPE_CHECKING:
    EncoderConfig = TrainedConfig | DefendedConfig | LoadedConfig | EndpointConfig
else:
    EncoderConfig = Annotated[
        Union[tuple(Annotated[model, Tag(model.__name__)] for model in (TrainedConfig, *_KINDS.values()))],  # noqa: UP007
        Discriminator(_tag),
    ]


def encoder_config(settings: dict[str, Any]) -> EncoderConfig:
    """An encoder from plain values, as the model of its kind."""
    return kind_of(settings)(**settings)  # type: ignore[return-value]
