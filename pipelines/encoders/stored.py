"""Encoders in a run folder: made once, described by a record, loaded from the disk."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import Any

import safetensors.numpy
import safetensors.torch

from mi_core.adoption.foreign import rebuild, saved_mark
from mi_core.adoption.published import Preprocessing
from mi_core.checks import ConfigError
from mi_core.encoders.checkpoint import Encoder, fingerprint_of, load_weights
from mi_core.encoders.remote.client import Client
from mi_core.encoders.remote.encoder import Endpoint
from mi_core.hashing import digest64
from mi_core.training.loop import audited_encoder
from pipelines.config.sections.data import DataConfig
from pipelines.config.sections.encoders import (
    DefendedConfig,
    EncoderConfig,
    EndpointConfig,
    LoadedConfig,
    encoder_config,
)
from pipelines.errors import UserError
from pipelines.files import storage
from pipelines.files.digest import digest
from pipelines.run.folder import SeedFolder


@dataclass(frozen=True)
class EncoderRecord:
    """One encoder.

    Args:
        name: in the config.
        inputs: digest of all that it was made from.
        config: its settings as plain values; see `settings`.
        seed: of the run.
        channels, image_size: of the images of the run.
        outputs: embeddings that it exposes.
        fingerprints: of its weights, by epoch.
        losses: of its training, by epoch.
        images: that it was trained on.
        streamed: whether these were read from shards anew every epoch.
        templated_captions: how many captions were made from class names; None: where images had none of their own.
        defense: what its defense tells of itself, by name.
        adopted: when it was adopted, ISO 8601.
        layout: whose file it is, in words.
        used, ignored, assumed: what of the file became the encoder, what did not, and what the file did not tell.
        activations: of its heads, by output.
        preprocessing: how it takes images; preprocessing_words: the same in words.
        decoding: how alike its answers are to the run's images and to those decoded as its publisher does.
        consistency: whether it recognises images.
        answers: widths, noise and cost of the first answers of one behind an API.
        source: ``commit`` on the Hugging Face Hub, and ``files``: SHA-256 of its publisher's files, by name.
    """

    name: str
    inputs: str
    config: dict[str, Any]
    seed: int
    channels: int
    image_size: int
    outputs: tuple[str, ...]
    fingerprints: dict[str, str]
    losses: tuple[float, ...] = ()
    images: int | None = None
    streamed: bool = False
    templated_captions: int | None = 0
    defense: dict[str, float] = field(default_factory=dict)
    adopted: str = ""
    layout: str = ""
    used: str = ""
    ignored: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    activations: dict[str, str] = field(default_factory=dict)
    preprocessing: dict[str, Any] = field(default_factory=dict)
    preprocessing_words: str = ""
    decoding: dict[str, Any] = field(default_factory=dict)
    consistency: dict[str, Any] = field(default_factory=dict)
    answers: dict[str, Any] = field(default_factory=dict)
    source: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> EncoderRecord:
        """The record that a file holds; what other versions have written besides is left out."""
        known = {one.name: content[one.name] for one in fields(cls) if one.name in content}
        lists = {name: tuple(known.get(name, ())) for name in ("outputs", "losses", "ignored", "assumed")}
        return cls(**known | lists)

    def as_json(self) -> dict[str, Any]:
        """Plain values; what has nothing to say is left out, but for the losses."""
        content = asdict(self)
        needed = {one.name for one in fields(self)[:9]} | {"templated_captions"}
        return {name: value for name, value in content.items() if name in needed or value}

    @cached_property
    def settings(self) -> EncoderConfig:
        """Its settings: a model of the kind of encoder that it is."""
        return encoder_config(self.config)


ANSWERS = "answers.safetensors"  # what an encoder behind an API answered at first, by output
DEFENSE = "defense.safetensors"  # the state of a fitted defense
PREPARED = "prepared-"  # beside an encoder: the part of its defenses that they share


@dataclass(frozen=True)
class StoredEncoder:
    """An encoder in a run folder, by its record."""

    folder: str
    record: EncoderRecord

    @property
    def epochs(self) -> tuple[int, ...]:
        """Kept checkpoints."""
        return tuple(int(epoch) for epoch in self.record.fingerprints)

    @property
    def files(self) -> tuple[str, ...]:
        """Names of its files besides its record."""
        settings = self.record.settings
        if isinstance(settings, EndpointConfig):
            return (ANSWERS,)
        weights = [weights_path("", epoch)[1:] for epoch in self.epochs]
        return (*weights, *((DEFENSE,) if isinstance(settings, DefendedConfig) else ()))

    def load(self, epoch: int, client: Callable[..., Client] | None = None) -> Encoder:
        """The encoder at a kept epoch, in evaluation mode, on the CPU.

        Args:
            epoch: of the checkpoint.
            client: makes a client of an API, as `Access.client`.

        Raises:
            UserError: it is behind an API, and no client is given, or its key is missing.
            ConfigError: it is code that was changed since its adoption, or its weights are damaged.
        """
        record, settings = self.record, self.record.settings
        mark = record.fingerprints[str(epoch)]
        if isinstance(settings, EndpointConfig):
            if client is None:
                raise UserError(f"the encoder {record.name} is behind an API: there are no weights of it")
            asking = client(record.name, settings.parameters(), identity=mark, widths=record.answers["widths"])
            return Endpoint(asking).eval()
        data = storage.read_bytes(weights_path(self.folder, epoch))
        if isinstance(settings, LoadedConfig):
            try:
                encoder = rebuild(
                    settings.load,
                    data,
                    Preprocessing(**record.preprocessing),
                    channels=record.channels,
                    image_size=record.image_size,
                    mark=mark,
                    activations=record.activations,
                )
            except ConfigError as error:
                raise ConfigError(f"encoders.{record.name}: {error}") from error
        else:
            encoder = audited_encoder(settings.pretraining(), record.channels, record.image_size)
            load_weights(encoder, data)
        if isinstance(settings, DefendedConfig):
            state = safetensors.numpy.load(storage.read_bytes(f"{self.folder}/{DEFENSE}"))
            encoder = settings.method(defense_seed(record.seed, record.name)).defended(encoder.eval(), state)
        return encoder.eval()

    def measured(self, epoch: int) -> str | None:
        """The fingerprint of a kept epoch, taken anew from its files.

        Returns:
            64 hex digits; None: an API or a Python function, whose weights the folder does not hold.

        Raises:
            OSError, safetensors.SafetensorError: a file is missing or damaged.
        """
        record, settings = self.record, self.record.settings
        if isinstance(settings, EndpointConfig):
            return None
        data = storage.read_bytes(weights_path(self.folder, epoch))
        if isinstance(settings, LoadedConfig):
            return saved_mark(settings.load, data, record.activations)
        plain = fingerprint_of(safetensors.torch.load(data))
        if not isinstance(settings, DefendedConfig):
            return plain
        state = storage.read_bytes(f"{self.folder}/{DEFENSE}")
        return defended_fingerprint(plain, state, settings, defense_seed(record.seed, record.name))


def defended_fingerprint(plain: str, state: bytes, config: DefendedConfig, seed: int) -> str:
    """The fingerprint of a defended encoder.

    Args:
        plain: of the weights that are defended.
        state: the file `DEFENSE`.
        config: of the defended encoder.
        seed: of the defense.
    """
    return digest(plain, hashlib.sha256(state).hexdigest(), config.defense, config.settings, seed)


def tried_path(folder: SeedFolder, name: str) -> str:
    """The file that tells whether a reference that was trained here recognises images."""
    return f"{folder.encoder(name)}/tried.json"


def defense_seed(seed: int, name: str) -> int:
    """The seed of the defense of an encoder ``name``, from the seed of the run."""
    return digest64(seed, "defense", name)


def weights_path(folder: str, epoch: int) -> str:
    """File of the weights of one checkpoint."""
    return f"{folder}/epoch-{epoch:04d}.safetensors"


def describe(folder: SeedFolder, name: str) -> StoredEncoder:
    """The encoder of a seed, once it is trained or loaded."""
    path = folder.encoder(name)
    return StoredEncoder(path, EncoderRecord.from_json(storage.read_json(f"{path}/encoder.json")))


def write_record(folder: SeedFolder, record: EncoderRecord) -> None:
    """Describe an encoder of a seed, which says that it is whole."""
    storage.write_json(f"{folder.encoder(record.name)}/encoder.json", record.as_json())


def share(done: SeedFolder, folder: SeedFolder, name: str) -> None:
    """Copy an encoder to another run that asks for the same one; its record comes last and says it is whole."""
    source, target = done.encoder(name), folder.encoder(name)
    beside = [path.rpartition("/")[2] for path in storage.list_files(source, recursive=False)]
    for file in (*describe(done, name).files, *(file for file in beside if file.startswith(PREPARED))):
        storage.copy(f"{source}/{file}", f"{target}/{file}")
    storage.copy(f"{source}/encoder.json", f"{target}/encoder.json")


@dataclass(frozen=True)
class EncoderJob:
    """An encoder of one seed that is to be made; two of the same ``inputs`` are made once.

    Args:
        name: in the config.
        config: its settings.
        data: images of the run.
        folder: of the seed.
        inputs: digest of all that it is made from.
    """

    name: str
    config: EncoderConfig
    data: DataConfig
    folder: SeedFolder
    inputs: str

    def is_done(self) -> bool:
        """Tell whether it is in the folder already.

        Raises:
            UserError: it comes from other inputs.
        """
        path = f"{self.folder.encoder(self.name)}/encoder.json"
        if not storage.exists(path):
            return False
        if storage.read_json(path)["inputs"] != self.inputs:
            raise UserError(f"{path} was made from other inputs; redo with --force pretrain")
        return True

    def copy_to(self, other: EncoderJob) -> None:
        """Copy the encoder to another run that asks for the same one."""
        share(self.folder, other.folder, other.name)

    def write(self, **fields: Any) -> None:
        """Describe the encoder, with the other ``fields`` of its record, which says that it is whole."""
        own: dict[str, Any] = {
            "name": self.name,
            "inputs": self.inputs,
            "config": self.config.model_dump(mode="json"),
            "seed": self.folder.seed,
            "channels": self.data.channels,
            "image_size": self.data.image_size,
        }
        write_record(self.folder, EncoderRecord(**own | fields))
