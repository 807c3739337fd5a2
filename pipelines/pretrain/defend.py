"""Fit the defense of a trained encoder, and write down the defended encoder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import safetensors.numpy
import torch

from mi_core.defenses.base import PreparedDefense, ProviderData, Spread, numbers
from pipelines.config.sections.encoders import DefendedConfig
from pipelines.data.draw.halves import members_of
from pipelines.data.draw.images import load_images
from pipelines.data.draw.splits import Splits
from pipelines.encoders.stored import DEFENSE, PREPARED, defended_fingerprint, defense_seed, describe, weights_path
from pipelines.errors import UserError
from pipelines.files import storage
from pipelines.files.digest import digest
from pipelines.pretrain.worker import FAULTS, TrainingJob
from pipelines.run.ray_session import TASK_MEMORY, borne

PIECES = 64  # tasks that many independent pieces of work are cut into


def defend(job: TrainingJob, threads: int, spread: Spread = map) -> str:
    """Defend one encoder of one seed; returns the fault of the user, if there is one."""
    try:
        _defend(job, threads, spread)
    except FAULTS as error:
        return str(error)
    return ""


def over_cluster(function: Callable[[Any], Any], arguments: Sequence[Any]) -> list[Any]:
    """Like ``map``, as Ray tasks of many arguments each."""
    import ray

    shared, remote = ray.put(function), ray.remote(num_cpus=1, memory=borne(TASK_MEMORY))(_each)
    size = max(1, -(-len(arguments) // PIECES))
    pending = [remote.remote(shared, arguments[start : start + size]) for start in range(0, len(arguments), size)]
    return [result for results in ray.get(pending) for result in results]


def _each(function: Callable[[Any], Any], arguments: Sequence[Any]) -> list[Any]:
    torch.set_num_threads(1)
    return [function(one) for one in arguments]


def _defend(job: TrainingJob, threads: int, spread: Spread) -> None:
    torch.set_num_threads(threads)
    config = job.config
    assert isinstance(config, DefendedConfig)
    base, (epoch,) = describe(job.folder, config.defends), config.kept_epochs
    if epoch not in base.epochs:
        raise UserError(f"encoders.{job.name}.epoch = {epoch}, allowed: {', '.join(map(str, base.epochs))}")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    defense = config.method(defense_seed(job.folder.seed, job.name))
    splits = Splits.load(job.folder.path)
    mine = members_of(splits, config, job.folder.seed, job.nonce)
    encoder = base.load(epoch).to(device)

    def provided() -> tuple[ProviderData, ProviderData | None]:
        return _provided(job, mine, config.train_on), _provided(job, splits, config.outside) if config.outside else None

    if isinstance(defense, PreparedDefense):
        kept = {name: value for name, value in config.settings.items() if name not in defense.late}
        roles = {role: mine.role_digest(role) for role in config.train_on}
        roles |= {role: splits.role_digest(role) for role in config.outside}
        meaning = job.data.meaning_of(job.data.label, config.attribute)
        made = digest(base.record.fingerprints[str(epoch)], kept, roles, meaning)
        path = f"{base.folder}/{PREPARED}{made[:16]}.safetensors"
        if not storage.exists(path):
            prepared = dict(defense.prepare(encoder, *provided(), spread=spread))
            storage.write_atomic(path, safetensors.numpy.save(prepared))
        state = dict(defense.release(encoder, safetensors.numpy.load(storage.read_bytes(path))))
    else:
        state = dict(defense.fit(encoder, *provided()))
    data = safetensors.numpy.save(state)
    place = job.folder.encoder(job.name)
    storage.copy(weights_path(base.folder, epoch), weights_path(place, epoch))
    storage.write_atomic(f"{place}/{DEFENSE}", data)
    fingerprint = defended_fingerprint(base.record.fingerprints[str(epoch)], data, config, defense.seed)
    job.write(
        images=len(mine.rows(config.train_on)),
        outputs=defense.defended(encoder, state).outputs,
        fingerprints={str(epoch): fingerprint},
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
            raise UserError(f"{first} has no attribute {job.config.attribute}, which {job.name} should hide")
        attributes = torch.tensor(values, dtype=torch.int64)
    return ProviderData(torch.from_numpy(loaded.images), labels, attributes)
