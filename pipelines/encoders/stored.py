"""Encoders in a run folder: how they are described, and how they come off the disk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import safetensors.numpy

from mi_core.checks import ConfigError
from mi_core.encoders.checkpoint import Encoder, load_weights
from mi_core.encoders.foreign import rebuild
from mi_core.encoders.published import Preprocessing
from mi_core.encoders.remote.client import Client
from mi_core.encoders.remote.encoder import Endpoint
from mi_core.hashing import digest64
from mi_core.training.loop import audited_encoder
from pipelines.config.encoders import ConfigOfEncoder, DefendedConfig, EndpointConfig, LoadedConfig, TrainedConfig
from pipelines.errors import UserError
from pipelines.files import storage
from pipelines.run.folder import SeedFolder

ANSWERS = "answers.safetensors"  # what an encoder behind an API answered at first, by output
DEFENSE = "defense.safetensors"  # the state of a fitted defense
PREPARED = "prepared-"  # beside an encoder: what several defenses of it have in common


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
        config = self.description["config"]
        if "endpoint" in config:
            return (ANSWERS,)
        return (*map(_weights_name, self.epochs), *((DEFENSE,) if "defends" in config else ()))

    def load(self, epoch: int, client: Callable[..., Client] | None = None) -> Encoder:
        """The encoder at a kept epoch, in evaluation mode, on the CPU.

        Args:
            epoch: of the checkpoint.
            client: makes what asks those behind an API, as `Access.client`.

        Raises:
            UserError: it is behind an API, and no client is given, or its key is missing.
            ConfigError: it is code, and the code is no longer what was adopted; or its weights are damaged.
        """
        name = self.description["name"]
        if "endpoint" in self.description["config"]:
            if client is None:
                raise UserError(f"the encoder {name} is behind an API: there are no weights of it")
            parameters = EndpointConfig(**self.description["config"]).parameters()
            identity, widths = self.description["fingerprints"][str(epoch)], self.description["answers"]["widths"]
            return Endpoint(client(name, parameters, identity=identity, widths=widths)).eval()
        channels, size = self.description["channels"], self.description["image_size"]
        data = storage.read_bytes(weights_path(self.folder, epoch))
        if "load" in self.description["config"]:
            config = LoadedConfig(**self.description["config"])
            try:
                encoder = rebuild(
                    config.load,
                    data,
                    Preprocessing(**self.description["preprocessing"]),
                    channels=channels,
                    image_size=size,
                    mark=self.description["fingerprints"][str(epoch)],
                    activations=self.description.get("activations"),
                )
            except ConfigError as error:
                raise ConfigError(f"encoders.{name}: {error}") from error
        else:
            trained = _model_of(self.description["config"])
            encoder = audited_encoder(trained.pretraining(), channels, size)
            load_weights(encoder, data)
            if isinstance(trained, DefendedConfig):
                state = safetensors.numpy.load(storage.read_bytes(f"{self.folder}/{DEFENSE}"))
                encoder = trained.method(self._defense_seed).defended(encoder.eval(), state)
        return encoder.eval()

    @property
    def _defense_seed(self) -> int:
        return digest64(self.description["seed"], "defense", self.description["name"])


def _model_of(config: dict[str, Any]) -> TrainedConfig:
    return DefendedConfig(**config) if "defends" in config else TrainedConfig(**config)


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
    folder: SeedFolder, name: str, inputs: str, config: ConfigOfEncoder, *, channels: int, image_size: int, **found: Any
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
    beside = [path.rpartition("/")[2] for path in storage.list_files(source, recursive=False)]
    for file in (*describe(done, name).files, *(file for file in beside if file.startswith(PREPARED))):
        storage.copy(f"{source}/{file}", f"{target}/{file}")
    storage.copy(f"{source}/encoder.json", f"{target}/encoder.json")
