"""Try out reference encoders that were trained here: only those that recognise images say how groups differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from mi_core.querying.sanity import PROBED, view_consistency
from mi_core.streams import pixel_streams
from mi_core.training.loop import audited_encoder
from pipelines.config.sections.data import DataConfig
from pipelines.config.sections.encoders import TrainedConfig
from pipelines.data.draw.halves import seen_by
from pipelines.data.draw.images import load_samples
from pipelines.data.draw.splits import Splits
from pipelines.data.plans import Planned
from pipelines.encoders.stored import describe, tried_path
from pipelines.files import storage
from pipelines.plan.items import Encoder, Semantic
from pipelines.run.folder import SeedFolder
from pipelines.run.ray_session import mapped


def try_references(planned: Sequence[Planned]) -> None:
    """Try out the references of some plans that were trained here and not tried out yet."""
    work = list(_untried(planned))
    if work:
        mapped(_try, work, "references", "trying references out")


def _untried(planned: Sequence[Planned]) -> Iterator[tuple[Semantic, Encoder, DataConfig, SeedFolder]]:
    for plan, folder in planned:
        for reading in () if plan.semantic is None else plan.semantic.readings:
            encoder = reading.encoder
            trained = isinstance(encoder.settings, TrainedConfig)
            if plan.semantic is not None and trained and not storage.exists(tried_path(folder, encoder.name)):
                yield plan.semantic, encoder, plan.data, folder


def _try(semantic: Semantic, encoder: Encoder, data: DataConfig, folder: SeedFolder) -> None:
    """Tell whether a reference recognises audited images that it did not see, beside fresh weights."""
    torch.set_num_threads(1)
    settings, splits = encoder.settings, Splits.load(folder.path)
    assert isinstance(settings, TrainedConfig)
    audited = [role.name for role in semantic.audited]
    ids = np.array(splits.first(audited, PROBED, encoder.seed))
    unseen = ids[~seen_by(splits, settings, encoder.seed, encoder.nonce, ids.tolist())][:PROBED].tolist()
    shown = torch.from_numpy(load_samples(data, splits, audited, unseen).images)
    stored = describe(folder, encoder.name)
    found = view_consistency(
        stored.load(stored.epochs[-1]),
        audited_encoder(settings.pretraining(), data.channels, data.image_size).eval(),
        shown,
        pixel_streams("", encoder.seed, "probe", shown),
        semantic.recipe.build(),
    )
    storage.write_json(tried_path(folder, encoder.name), found)
