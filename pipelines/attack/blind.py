"""Score the audited samples of one seed by their files and pixels alone, without an encoder: the blind classifier."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from mi_core.hashing import digests64
from mi_core.records import among
from mi_core.validity.blind import blind_scores, telling
from mi_core.validity.file_features import FILE_FEATURES, pixel_names
from mi_core.validity.verdict import CLASSIFIED
from pipelines.config.sections.data import DataConfig
from pipelines.data.draw.images import read_samples
from pipelines.data.draw.splits import Splits
from pipelines.data.scan.glimpses import Glimpses, glimpse, glimpses_path
from pipelines.files import storage
from pipelines.plan.items import Blind
from pipelines.run.folder import SeedFolder

SMALL = 200_000  # samples of a role among which any are drawn; of more, those that the scan kept something of
_SHARDS = 4000  # shards that are looked through for these
_Place = tuple[str, str]


def blind_path(folder: SeedFolder) -> str:
    """The file of the blind classifier's scores."""
    return f"{folder.path}/validity/blind.parquet"


def telling_path(folder: SeedFolder) -> str:
    """The file of the single features that separate the two groups best."""
    return f"{folder.path}/validity/telling.json"


def run_blind(blind: Blind, folder: SeedFolder, data: DataConfig) -> None:
    """Score the audited samples; of a role with more than `CLASSIFIED` samples, as many drawn at random."""
    whole = Splits.load(folder.path)
    roles = [role.name for role in blind.audited]
    inside, outside = (draw_samples(whole, role, blind.seed) for role in roles)
    ids = sorted([*inside, *outside])
    row_of = {name: row for row, name in enumerate(ids)}
    splits = whole.at(dict.fromkeys([*inside.values(), *outside.values()]))
    names = (*FILE_FEATURES, *pixel_names(data.channels))
    summaries = np.empty((len(ids), len(names)))
    pixels: np.ndarray = np.empty((len(ids), 0), dtype=np.float32)
    for name, numbers, small in _seen(data, splits, roles, row_of):
        if not pixels.size:
            pixels = np.empty((len(ids), len(small)), dtype=np.float32)
        pixels[row_of[name]], summaries[row_of[name]] = small, numbers
    member = among(ids, inside)
    scores = blind_scores(summaries, pixels, member, seed=blind.seed, groups=splits.groups(ids))
    storage.write_json(telling_path(folder), telling(summaries, names, member))
    storage.write_table(blind_path(folder), pa.table({"id": ids, "member": member, "score": scores}))


def draw_samples(splits: Splits, role: str, seed: int) -> dict[str, _Place]:
    """Samples of a role, `CLASSIFIED` at most, and the shard of each."""
    if splits.count([role]) > SMALL:
        found = _kept(splits, role, seed)
        if len(found) == CLASSIFIED:
            return found
    chosen = set(splits.first([role], CLASSIFIED, seed))
    return {
        name: place
        for place in splits.sums.shards
        if splits.size(place[0], place[1], [role])
        for name in splits.item_ids(*place, [role])
        if name in chosen
    }


def _kept(splits: Splits, role: str, seed: int) -> dict[str, _Place]:
    """Samples of a role that the scan kept something of: of shards in a random order, until there are enough.

    Shards keep the lowest hashes, and some keep more of theirs than others: only those below the lowest that any of
    them left out are drawn as often as all others.
    """
    every = [place for place in splits.sums.shards if splits.size(place[0], place[1], [role])]
    order = np.argsort(digests64((seed, "blind"), ["/".join(place) for place in every]), kind="stable")
    found: list[tuple[int, str, _Place]] = []
    below = 2**64
    for row in order[:_SHARDS].tolist():
        source, item = every[row]
        glimpses = _glimpses(splits, source, item)
        below = min(below, glimpses.first_left)
        found += [
            (rank, f"{source}/{key}", every[row])
            for key, rank in glimpses.keys(splits.keys(source, item, [role])).items()
        ]
        if sum(rank < below for rank, *_ in found) >= CLASSIFIED:
            break
    return {name: place for rank, name, place in sorted(found)[:CLASSIFIED] if rank < below}


def _glimpses(splits: Splits, source: str, item: str) -> Glimpses:
    path = splits.sums.path(source, item)
    return Glimpses.read(glimpses_path(f"{splits.scan_folder}/{path}")) if path else Glimpses.nothing()


def _seen(
    data: DataConfig, splits: Splits, roles: Sequence[str], ids: Iterable[str]
) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """The scan's numbers of some samples, and those of the other samples' files: id, numbers, pixels."""
    missing = set(ids)
    for source, item in splits.sums.shards:
        wanted = {key for key in splits.keys(source, item, roles) if f"{source}/{key}" in missing}
        for key, (numbers, small) in _glimpses(splits, source, item).look_up(wanted):
            missing.discard(f"{source}/{key}")
            yield f"{source}/{key}", numbers, small
    if missing:
        for name, sample, image in read_samples(data, splits, roles, missing):
            yield name, *glimpse(sample.image, image)
