"""``encoder.json``: what an encoder in a run folder is. It is written last, and says that the encoder is whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import Any

from pipelines.config.sections.encoders import EncoderConfig, encoder_config


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
        source: commit and SHA-256 of a weights file from the Hugging Face Hub.
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
    source: dict[str, str] = field(default_factory=dict)

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
