"""Encoders that stand for those of a run: of the same architecture, with fresh weights where they have none yet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mi_core.encoders.batch_norm import for_queries
from mi_core.encoders.checkpoint import Encoder as Network
from mi_core.objectives import OBJECTIVES
from mi_core.training.loop import audited_encoder
from pipelines.config.sections.data import DataConfig
from pipelines.config.sections.encoders import EndpointConfig, LoadedConfig, TrainedConfig
from pipelines.encoders.adopt import read_encoder
from pipelines.extract.actor.loaded import Checkpoint
from pipelines.extract.actor.worker import EncodeChunks
from pipelines.plan.checks import check_adopted
from pipelines.plan.items import Encoder, Plan


def stand_in(encoder: Encoder, data: DataConfig) -> Network:
    """An encoder that takes as long: the one itself where it is given, else one with fresh weights.

    An encoder with a defense is timed as the plain one. For one behind an API, which is not asked, a small network
    stands in.

    Raises:
        UserError, ConfigError: weights from elsewhere cannot be read.
    """
    settings = encoder.settings
    if isinstance(settings, LoadedConfig):
        return read_encoder(encoder.name, settings, data, encoder.seed).encoder.eval()
    if isinstance(settings, EndpointConfig):
        heads = {name: {"backbone", *objective.heads} for name, objective in OBJECTIVES.items()}
        objective = next(name for name, outputs in heads.items() if outputs.issuperset(settings.outputs))
        settings = TrainedConfig(objective=objective, backbone="conv4", train_on="", epochs=1, batch_size=2)
    return audited_encoder(settings.pretraining(), data.channels, data.image_size).eval()


def check_outputs(plan: Plan, encoder: Encoder) -> None:
    """Raise UserError if attacks ask an encoder from elsewhere for what it does not have."""
    if isinstance(encoder.settings, LoadedConfig):
        check_adopted(plan, encoder.name, stand_in(encoder, plan.data).outputs)


Stated = Mapping[tuple[str, str], tuple[Encoder, DataConfig]]
"""Encoders, and how their images are read, by the folder of the jobs that ask them and by their name."""


class TimeChunks(EncodeChunks):
    """An encoder actor whose encoders are stand-ins.

    Args:
        stated: the encoders.
        settings: as for `EncodeChunks`.
    """

    def __init__(self, stated: Stated, **settings: Any) -> None:
        super().__init__(**settings)
        self.stated = stated

    def _load(self, checkpoint: Checkpoint) -> Network:
        return for_queries(stand_in(*self.stated[checkpoint.folder.path, checkpoint.encoder]), self.device)
