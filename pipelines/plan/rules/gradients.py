"""Needs of attacks beside embeddings: an encoder's weights, its momentum copy, or a text tower."""

from __future__ import annotations

from mi_core.adoption.builders import CODE
from mi_core.defenses import DEFENSES
from mi_core.objectives import OBJECTIVES
from pipelines.config.sections.attacks import AttackConfig
from pipelines.config.sections.encoders import (
    DefendedConfig,
    EncoderConfig,
    EndpointConfig,
    LoadedConfig,
    TrainedConfig,
)


def why_no_gradients(encoder: EncoderConfig) -> str:
    """Why there are no gradients of the weights of an encoder, which "is" that; empty: there are."""
    if isinstance(encoder, EndpointConfig):
        return "is behind an API"
    if isinstance(encoder, LoadedConfig) and encoder.load.partition(":")[0] in CODE:
        return "is code"
    if isinstance(encoder, DefendedConfig) and DEFENSES[encoder.defense].of_answers:
        return f"is behind {encoder.defense}, which changes answers and not weights"
    return ""


def may_be_copied(encoder: EncoderConfig) -> bool:
    """Tell whether an encoder has a momentum copy, as far as its settings tell; of a checkpoint only its file tells."""
    if isinstance(encoder, LoadedConfig):
        return encoder.fresh or encoder.load.startswith("checkpoint:")
    return type(encoder) is TrainedConfig and encoder.keeps_momentum


def may_read_captions(encoder: EncoderConfig) -> bool:
    """Tell whether an encoder has a text tower, as far as its settings tell."""
    if isinstance(encoder, LoadedConfig):
        return encoder.load.startswith(("open_clip:", "transformers:"))
    return isinstance(encoder, TrainedConfig) and OBJECTIVES[encoder.objective].target == "caption"


def why_unfit(attack: AttackConfig, encoder: EncoderConfig) -> str:
    """The lack of an encoder whose weights an attack reads, as "is code"; empty: it lacks nothing."""
    if not attack.reads_weights:
        return ""
    if attack.reads_momentum and not may_be_copied(encoder):
        return why_no_gradients(encoder) or "has no momentum copy"
    return why_no_gradients(encoder)
