"""Fit the defense of a trained encoder, and write down the encoder that is served."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import safetensors.numpy
import torch

from mi_core.checks import ConfigError, NumericError, ShapeError
from mi_core.defenses.base import ProviderData, numbers
from mi_core.hashing import digest64
from pipelines import storage
from pipelines.artifacts import digest
from pipelines.encoder_config import DefendedConfig
from pipelines.encoders import DEFENSE, describe, weights_path, write_description
from pipelines.errors import UserError
from pipelines.loading import load_images
from pipelines.splits import Splits
from pipelines.training import TrainingJob, members_of


def defend(job: TrainingJob, threads: int) -> str:
    """Defend one encoder of one seed; returns what is wrong with what the user gave, or nothing."""
    try:
        _defend(job, threads)
    except (ConfigError, NumericError, ShapeError, UserError) as error:
        return str(error)
    return ""


def _defend(job: TrainingJob, threads: int) -> None:
    torch.set_num_threads(threads)
    config = job.config
    assert isinstance(config, DefendedConfig)
    base, (epoch,) = describe(job.folder, config.defends), config.kept_epochs
    if epoch not in base.epochs:
        raise UserError(f"encoders.{job.name}.epoch = {epoch}, allowed: {', '.join(map(str, base.epochs))}")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    defense = config.method(digest64(job.folder.seed, "defense", job.name))
    splits = Splits.load(job.folder.path)
    members = _provided(job, members_of(splits, config, job.folder.seed), config.train_on)
    outside = _provided(job, splits, config.outside) if config.outside else None
    encoder = base.load(epoch).to(device)
    state = dict(defense.fit(encoder, members, outside))
    data = safetensors.numpy.save(state)
    place = job.folder.encoder(job.name)
    storage.copy(weights_path(base.folder, epoch), weights_path(place, epoch))
    storage.write_atomic(f"{place}/{DEFENSE}", data)
    made = hashlib.sha256(data).hexdigest()
    served = digest(base.description["fingerprints"][str(epoch)], made, config.defense, config.settings, defense.seed)
    write_description(
        job.folder,
        job.name,
        job.inputs,
        config,
        channels=job.data.channels,
        image_size=job.data.image_size,
        images=len(members.images),
        outputs=defense.defended(encoder, state).outputs,
        fingerprints={epoch: served},
        defense=numbers(state),
    )


def _provided(job: TrainingJob, splits: Splits, roles: Sequence[str]) -> ProviderData:
    """Images of some roles, with their classes and the attribute to hide, where all of them have one."""
    assert isinstance(job.config, DefendedConfig)
    loaded = load_images(job.data, splits, roles)
    labels = None if None in loaded.labels else torch.tensor(loaded.labels, dtype=torch.int64)
    attributes = None
    if job.config.attribute is not None:
        known = splits.attribute(job.config.attribute)
        values = [known[name] for name in loaded.ids]
        if None in values:
            first = loaded.ids[values.index(None)]
            raise UserError(f"{first} has no attribute {job.config.attribute}, which {job.name} is to hide")
        attributes = torch.tensor(values, dtype=torch.int64)
    return ProviderData(torch.from_numpy(loaded.images), labels, attributes)
