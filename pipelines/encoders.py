"""What encoders a run has, trained here, loaded or behind an API: config models, and how they come off the disk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Union

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationInfo,
    create_model,
    field_validator,
    model_validator,
)

from mi_core.augmentations import AUGMENTATIONS
from mi_core.checks import ConfigError, check_choice
from mi_core.encoders import parse_backbone
from mi_core.encoders.checkpoint import INTERPOLATIONS, Encoder, load_weights
from mi_core.encoders.endpoint import Endpoint, EndpointParameters
from mi_core.encoders.foreign import CODE, LOADERS, Preprocessing, rebuild
from mi_core.objectives import OBJECTIVES
from mi_core.optimizers import OptimizerParameters
from mi_core.pretraining import PretrainingParameters, audited_encoder
from pipelines import storage
from pipelines.artifacts import SeedFolder
from pipelines.errors import UserError
from pipelines.methods import build, complete, parameter_fields

if TYPE_CHECKING:
    from pipelines.endpoints import Access


class _EncoderConfig(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    objective: str = Field(
        default="simclr", description="pre-training framework; of a loaded encoder: whose views it saw"
    )
    augmentation: dict[str, Any] = Field(
        default_factory=dict, validate_default=True, description="settings of the training views"
    )

    @field_validator("objective")
    @classmethod
    def _known_objective(cls, value: str) -> str:
        return check_choice("objective", value, OBJECTIVES)

    @field_validator("augmentation")
    @classmethod
    def _complete_augmentation(cls, value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        return complete(AUGMENTATIONS[info.data.get("objective", "simclr")], value)

    def views(self) -> Any:
        """The recipe of training views."""
        return build(AUGMENTATIONS[self.objective], self.augmentation)


class TrainedConfig(_EncoderConfig):
    """One encoder to train: framework, architecture, data, schedule."""

    backbone: str = Field(description="architecture; transformers with their patch size, as vit-s/16")
    train_on: tuple[str, ...] = Field(description="roles whose samples are the members")
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
    compile: bool = Field(default=False, description="torch.compile the training step")
    mean: tuple[float, ...] = Field(default=(0.5,), description="per-channel normalisation, pixels in [0, 1]")
    std: tuple[float, ...] = Field(default=(0.5,))
    optimizer: dict[str, Any] = Field(
        default_factory=dict, validate_default=True, description="see OptimizerParameters"
    )
    parameters: dict[str, Any] = Field(
        default_factory=dict, validate_default=True, description="settings of the objective"
    )

    @field_validator("train_on", mode="before")
    @classmethod
    def _one_role(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @field_validator("optimizer")
    @classmethod
    def _complete_optimizer(cls, value: dict[str, Any]) -> dict[str, Any]:
        return complete(OptimizerParameters, value)

    @field_validator("parameters")
    @classmethod
    def _complete_parameters(cls, value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        return complete(OBJECTIVES[info.data.get("objective", "simclr")].Parameters, value)

    @model_validator(mode="after")
    def _check(self) -> TrainedConfig:
        for epoch in self.checkpoints:
            if not 1 <= epoch <= self.epochs:
                raise ValueError(f"checkpoints holds {epoch}, allowed: 1 to epochs = {self.epochs}")
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
        return PretrainingParameters(
            backbone=self.backbone,
            objective=self.objective,
            objective_parameters=build(OBJECTIVES[self.objective].Parameters, self.parameters),
            optimizer=build(OptimizerParameters, self.optimizer),
            epochs=self.epochs,
            batch_size=self.batch_size,
            precision=self.precision,
            compile=self.compile,
            mean=self.mean,
            std=self.std,
        )

    def check_data(self, *, channels: int, image_size: int, images: int | None, workers: int) -> None:
        """Raise ConfigError if backbone, batch or objective do not fit the data; ``images`` None: not known yet."""
        parameters = self.pretraining()
        parse_backbone(self.backbone, channels, image_size)
        settings = parameters.objective_parameters
        OBJECTIVES[self.objective].check(settings, batch_size=self.batch_size, images=images, workers=workers)


class ForeignConfig(_EncoderConfig):
    """An encoder that was trained elsewhere. ``objective`` and ``augmentation`` say which views attacks should draw."""

    @property
    def kept_epochs(self) -> tuple[int, ...]:
        """One checkpoint, called epoch 0."""
        return (0,)

    @property
    def train_on(self) -> tuple[str, ...]:
        """No role: what it was trained on is the question."""
        return ()

    @property
    def saw_nothing(self) -> bool:
        """Whether its weights are fresh, so that it can be a control."""
        return False

    def identity(self) -> dict[str, Any]:
        """The settings that make it what it is; another one needs another adoption."""
        return self.model_dump()


class LoadedConfig(ForeignConfig):
    """One encoder from elsewhere, by its weights or its code."""

    load: str = Field(description="kind:architecture, for example checkpoint:resnet50-imagenet or open_clip:ViT-B-32")
    weights: str | None = Field(default=None, description="weights file, a path or URI")
    fresh: bool = Field(
        default=False, description="fresh weights for the same architecture, with the heads that the file has if given"
    )
    trust_code: bool = Field(default=False, description="run the code in TorchScript files or Python modules")
    size: int | None = Field(default=None, ge=1, description="side of the images it takes; default: its own")
    interpolation: str | None = Field(default=None, description="bilinear or bicubic; default: its own")
    mean: tuple[float, ...] | None = Field(default=None, description="normalisation; default: its own")
    std: tuple[float, ...] | None = Field(default=None)

    @model_validator(mode="before")
    @classmethod
    def _clip_views(cls, value: Any) -> Any:
        if isinstance(value, dict) and str(value.get("load", "")).startswith("open_clip:"):
            return {"objective": "clip"} | value
        return value

    @field_validator("interpolation")
    @classmethod
    def _known_interpolation(cls, value: str | None) -> str | None:
        return value if value is None else check_choice("interpolation", value, INTERPOLATIONS)

    @model_validator(mode="after")
    def _check(self) -> LoadedConfig:
        kind, _, _ = self.load.partition(":")
        check_choice("load", kind, LOADERS)
        if kind in CODE and not self.trust_code:
            raise ValueError(f"load = {self.load!r} runs code of others; set trust_code: true if you trust it")
        if kind == "python":
            if self.weights is not None:
                raise ValueError(f"weights = {self.weights!r}: a Python callable brings its own")
        elif self.weights is None and not self.fresh:
            raise ValueError(f"weights is missing for {self.load!r}; give the file, or fresh: true for fresh weights")
        if kind in CODE and self.fresh:
            raise ValueError(f"fresh = True: {self.load!r} has no architecture to build anew")
        return self

    @property
    def outputs(self) -> tuple[str, ...] | None:
        """Embeddings that the encoder exposes, where that is known without its weights."""
        bare = self.fresh and self.weights is None and self.load.partition(":")[0] in ("checkpoint", "timm")
        return ("backbone",) if bare else None

    @property
    def saw_nothing(self) -> bool:
        """Whether its weights are fresh, so that it can be a control."""
        return self.fresh

    def preprocessing(self) -> dict[str, Any]:
        """Settings that replace the encoder's own."""
        own = {"size": self.size, "interpolation": self.interpolation, "mean": self.mean, "std": self.std}
        return {name: value for name, value in own.items() if value is not None}


class _Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


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


CONFIGS: dict[str, type[_EncoderConfig]] = {
    "trained": TrainedConfig,
    "loaded": LoadedConfig,
    "served": EndpointConfig,
}
"""Kinds of encoders."""
_KEYS = {"load": "loaded", "endpoint": "served"}


def _tag(value: Any) -> str:
    if isinstance(value, dict):
        return next((tag for key, tag in _KEYS.items() if key in value), "trained")
    return next((tag for tag, model in CONFIGS.items() if isinstance(value, model)), "trained")


if TYPE_CHECKING:
    EncoderConfig = TrainedConfig | LoadedConfig | EndpointConfig
else:
    EncoderConfig = Annotated[
        Union[tuple(Annotated[model, Tag(tag)] for tag, model in CONFIGS.items())],  # noqa: UP007
        Discriminator(_tag),
    ]


def is_half(encoder: _EncoderConfig) -> bool:
    """Whether an encoder is trained on a half of its samples."""
    return isinstance(encoder, TrainedConfig) and encoder.half is not None


ANSWERS = "answers.safetensors"  # what an encoder behind an API answered at first, by output


@dataclass(frozen=True)
class StoredEncoder:
    """An encoder in a run folder, by its description."""

    folder: str
    description: dict[str, Any]

    @property
    def epochs(self) -> tuple[int, ...]:
        """Kept checkpoints."""
        return tuple(int(epoch) for epoch in self.description["fingerprints"])

    @property
    def files(self) -> tuple[str, ...]:
        """Names of the files that it consists of besides its description."""
        return (ANSWERS,) if "endpoint" in self.description["config"] else tuple(map(_weights_name, self.epochs))

    def load(self, epoch: int, access: Access | None = None) -> Encoder:
        """The encoder at a kept epoch, in evaluation mode, on the CPU.

        Args:
            epoch: of the checkpoint.
            access: how those behind an API are asked.

        Raises:
            UserError: it is behind an API, and no access is given, or its key is missing.
            ConfigError: it is code, and the code is no longer what was adopted; or its weights are damaged.
        """
        name = self.description["name"]
        if "endpoint" in self.description["config"]:
            if access is None:
                raise UserError(f"the encoder {name} is behind an API: there are no weights of it")
            parameters = EndpointConfig(**self.description["config"]).parameters()
            identity, widths = self.description["fingerprints"][str(epoch)], self.description["answers"]["widths"]
            return Endpoint(access.client(name, parameters, identity=identity, widths=widths)).eval()
        channels, size = self.description["channels"], self.description["image_size"]
        data = storage.read_bytes(weights_path(self.folder, epoch))
        if "load" in self.description["config"]:
            config = LoadedConfig(**self.description["config"])
            encoder = rebuild(
                config.load,
                data,
                Preprocessing(**self.description["preprocessing"]),
                channels=channels,
                image_size=size,
                mark=self.description["fingerprints"][str(epoch)],
            )
        else:
            encoder = audited_encoder(TrainedConfig(**self.description["config"]).pretraining(), channels, size)
            load_weights(encoder, data)
        return encoder.eval()


def weights_path(folder: str, epoch: int) -> str:
    """File of the weights of one checkpoint."""
    return f"{folder}/{_weights_name(epoch)}"


def _weights_name(epoch: int) -> str:
    return f"epoch-{epoch:04d}.safetensors"


def describe(folder: SeedFolder, name: str) -> StoredEncoder:
    """The encoder of a seed, once it is trained or loaded."""
    path = folder.encoder(name)
    return StoredEncoder(path, storage.read_json(f"{path}/encoder.json"))


def write_description(
    folder: SeedFolder, name: str, inputs: str, config: _EncoderConfig, *, channels: int, image_size: int, **found: Any
) -> None:
    """Describe an encoder of a seed, which says that it is whole.

    Args:
        inputs: digest of what it was made from.
        channels, image_size: of the images of the run.
        found: outputs, fingerprints by epoch, and what else is known of it.
    """
    stated = {"name": name, "inputs": inputs, "config": config.model_dump(mode="json"), "seed": folder.seed}
    sizes = {"channels": channels, "image_size": image_size}
    storage.write_json(f"{folder.encoder(name)}/encoder.json", {**stated, **sizes, "losses": [], **found})


def is_done(folder: SeedFolder, name: str, inputs: str) -> bool:
    """Whether an encoder is in the folder already.

    Raises:
        UserError: it comes from other inputs.
    """
    path = f"{folder.encoder(name)}/encoder.json"
    if not storage.exists(path):
        return False
    if storage.read_json(path)["inputs"] != inputs:
        raise UserError(f"{path} was made from other inputs; redo with --force pretrain")
    return True


def share(done: SeedFolder, folder: SeedFolder, name: str) -> None:
    """Copy an encoder to another run that asks for the same one; its description comes last and says it is whole."""
    source, target = done.encoder(name), folder.encoder(name)
    for file in describe(done, name).files:
        storage.copy(f"{source}/{file}", f"{target}/{file}")
    storage.copy(f"{source}/encoder.json", f"{target}/encoder.json")
