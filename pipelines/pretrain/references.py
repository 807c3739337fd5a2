"""Try out reference encoders that were trained here: only those that recognise images say how groups differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from mi_core.querying.sanity import view_consistency
from mi_core.streams import pixel_streams
from mi_core.training.loop import audited_encoder
from pipelines.config.run_config import RunConfig
from pipelines.config.sections.encoders import TrainedConfig
from pipelines.data.draw.halves import seen_by
from pipelines.data.draw.images import load_samples
from pipelines.data.draw.splits import Splits
from pipelines.encoders.probes import PROBED
from pipelines.encoders.stored import describe, tried_path
from pipelines.files import storage
from pipelines.run.folder import SeedFolder
from pipelines.run.points import Run
from pipelines.run.ray_session import mapped


def try_references(runs: Sequence[Run]) -> None:
    """Try out the references of some runs that were trained here and not tried out yet."""
    work = list(_untried(runs))
    if work:
        mapped(_try, work, "references", "trying references out")


def _untried(runs: Sequence[Run]) -> Iterator[tuple[RunConfig, SeedFolder, str]]:
    for config, folder in runs:
        for seed in config.seeds:
            for name in config.classified_on:
                place = folder.seed(seed)
                if isinstance(config.encoders[name], TrainedConfig) and not storage.exists(tried_path(place, name)):
                    yield config, place, name


def _try(config: RunConfig, folder: SeedFolder, name: str) -> None:
    """Whether a reference recognises audited images that it did not see, beside fresh weights."""
    torch.set_num_threads(1)
    encoder, splits = config.encoders[name], Splits.load(folder.path)
    assert isinstance(encoder, TrainedConfig)
    ids = np.array(splits.first(config.audited, PROBED, folder.seed))
    unseen = ids[~seen_by(splits, encoder, folder.seed, config.queries.nonce, ids.tolist())][:PROBED].tolist()
    shown = torch.from_numpy(load_samples(config.data, splits, config.audited, unseen).images)
    stored = describe(folder, name)
    found = view_consistency(
        stored.load(stored.epochs[-1]),
        audited_encoder(encoder.pretraining(), config.data.channels, config.data.image_size).eval(),
        shown,
        pixel_streams("", folder.seed, "probe", shown),
        config.recipe(config.attacks[config.validity.attack]).build(),
    )
    storage.write_json(tried_path(folder, name), found)
