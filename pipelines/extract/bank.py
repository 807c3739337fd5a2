"""Keep the images of a bank in the run folder: some attacks compare every sample with them."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import torch

from pipelines.config.sections.data import DataConfig
from pipelines.data.draw.images import load_samples
from pipelines.data.draw.splits import Splits
from pipelines.data.plans import Planned
from pipelines.errors import UserError
from pipelines.extract.division.jobs import ShardJob
from pipelines.files import storage
from pipelines.files.digest import digest
from pipelines.run.folder import SeedFolder

_NOISE = "noise"


def with_banks(jobs: Sequence[ShardJob], planned: Sequence[Planned]) -> list[ShardJob]:
    """Give jobs the files of their banks; missing ones are read and written, by the driver, each once.

    Raises:
        UserError: the role has too few images, or the data changed.
    """
    data = {folder: plan.data for plan, folder in planned}
    file_of = cache(lambda folder, role, count: _file(folder, role, count, data[folder]))
    return [
        job if (role := job.query.bank_role) is None else replace(job, bank=file_of(job.folder, role, job.query.bank))
        for job in jobs
    ]


def _file(folder: SeedFolder, role: str, count: int, data: DataConfig) -> str:
    """The file of a bank, which is there or is written now."""
    splits = Splits.load(folder.path)
    mark = digest(splits.role_digest(role), count, folder.seed, data.decoder().digest())[:12]
    path = f"{folder.store}/bank-{mark}.npy"
    if storage.exists(path):
        return path
    ids = splits.first([role], count, folder.seed)
    if len(ids) < count:
        raise UserError(
            f"data.roles.{role} has {len(ids)} images, and an attack compares samples with {count}; add some"
        )
    read = load_samples(data, splits, [role], ids)
    buffer = io.BytesIO()
    np.save(buffer, read.images)
    storage.write_atomic(path, buffer.getvalue())
    return path


def with_noise(job: ShardJob) -> ShardJob:
    """A job whose bank, if it needs one, is noise: for measuring what it costs."""
    return job if job.query.bank_role is None else replace(job, bank=_NOISE)


def loaded(job: ShardJob) -> torch.Tensor | None:
    """The images (A, C, S, S) of the bank of a job, from its file; None: its passes need none."""
    if not job.bank:
        return None
    if job.bank == _NOISE:
        count, decoder = job.query.bank, job.decoder
        return torch.randint(256, (count, decoder.channels, decoder.image_size, decoder.image_size)).to(torch.uint8)
    return torch.from_numpy(np.load(io.BytesIO(storage.read_bytes(job.bank))))
