"""Score the audited samples of one seed by their files and pixels alone, without an encoder: the blind classifier."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from mi_core.records import among
from mi_core.validity.blind import blind_scores, shrunken, telling
from mi_core.validity.file_features import FILE_FEATURES, file_features, pixel_features, pixel_names
from pipelines.config.run_config import RunConfig
from pipelines.data.images import read_samples
from pipelines.data.splits import Splits
from pipelines.files import storage
from pipelines.run.folder import SeedFolder

MOST = 10_000  # samples per role: enough for an interval of .01, and small enough for memory


def blind_path(folder: SeedFolder) -> str:
    """The file of the blind classifier's scores."""
    return f"{folder.path}/validity/blind.parquet"


def telling_path(folder: SeedFolder) -> str:
    """The file of the single features that separate the two groups best."""
    return f"{folder.path}/validity/telling.json"


def run_blind(config: RunConfig, folder: SeedFolder) -> None:
    """Score the audited samples; of a role with more than ``MOST`` samples, the first ``MOST`` by a seeded hash."""
    splits = Splits.load(folder.path)
    inside = set(splits.first(config.audited[:1], MOST, folder.seed))
    ids = sorted([*inside, *splits.first(config.audited[1:], MOST, folder.seed)])
    row_of = {name: row for row, name in enumerate(ids)}
    names = (*FILE_FEATURES, *pixel_names(config.data.channels))
    summaries = np.empty((len(ids), len(names)))
    pixels: np.ndarray = np.empty((len(ids), 0), dtype=np.float32)
    for name, sample, image in read_samples(config.data, splits, config.audited, row_of):
        small = shrunken(image)
        if not pixels.size:
            pixels = np.empty((len(ids), len(small)), dtype=np.float32)
        pixels[row_of[name]] = small
        summaries[row_of[name]] = np.concatenate([file_features(sample.image), pixel_features(image)])
    member = among(ids, inside)
    scores = blind_scores(summaries, pixels, member, seed=folder.seed, groups=splits.groups(ids))
    storage.write_json(telling_path(folder), telling(summaries, names, member))
    storage.write_table(blind_path(folder), pa.table({"id": ids, "member": member, "score": scores}))
