"""Score the audited samples of one seed without the audited encoder.

The blind classifier sees their files and pixels alone, the semantic one what reference encoders see in them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mi_core.hashing import digests64
from mi_core.metrics.delong import auc
from mi_core.records import Estimate, among
from mi_core.validity.blind import blind_scores, semantic_scores, telling
from mi_core.validity.bursts import find_bursts
from mi_core.validity.file_features import FILE_FEATURES, pixel_names
from mi_core.validity.verdict import CLASSIFIED
from pipelines.config.sections.data import DataConfig
from pipelines.data.draw.images import read_samples
from pipelines.data.draw.splits import Splits, in_roles
from pipelines.data.scan.glimpses import Glimpses, glimpse, glimpses_path
from pipelines.extract.features import read
from pipelines.files import storage
from pipelines.plan.items import Blind, Semantic
from pipelines.run.folder import SeedFolder

SMALL = 200_000  # samples of a role among which any are drawn; of more, those that the scan kept something of
TELLING = "telling.json"
_SHARDS = 4000  # shards that are looked through for these
_Place = tuple[str, str]


def blind_path(folder: SeedFolder) -> str:
    """The file of the blind classifier's scores."""
    return f"{folder.path}/validity/blind.parquet"


def telling_path(folder: SeedFolder) -> str:
    """The file of the single features that separate the two groups best."""
    return f"{folder.path}/validity/{TELLING}"


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


def semantic_path(folder: SeedFolder) -> str:
    """The file of the scores of the classifier on embeddings."""
    return f"{folder.path}/validity/semantic.parquet"


def run_references(semantic: Semantic, folder: SeedFolder) -> None:
    """Classify the audited images by what the references of the primary attack see in them."""
    splits = Splits.load(folder.path)
    parts = [read(folder, reading) for reading in semantic.readings]
    others = [set(part.ids.tolist()) for part in parts[1:]]
    ids = [name for name in parts[0].ids.tolist() if all(name in other for other in others)]
    rows = splits.samples(ids)
    embeddings = np.concatenate([part.at(ids).values["embedding"] for part in parts], axis=1)
    member, hashes = in_roles(rows, [semantic.audited[0].name]), [one.hex() for one in rows["sha256"].to_pylist()]
    groups = splits.groups_of(rows)
    scores = semantic_scores(embeddings, member, hashes, seed=folder.seed, groups=groups)
    if groups is None:
        groups = find_bursts(embeddings, member)
    columns = {"id": ids, "member": member, "score": scores} | ({} if groups is None else {"group": groups})
    storage.write_table(semantic_path(folder), pa.table(columns))


def _classified(folder: SeedFolder) -> pa.Table | None:
    """The table of `run_references`; None: there are no references."""
    return storage.read_table(semantic_path(folder)) if storage.exists(semantic_path(folder)) else None


def groups_of(folder: SeedFolder, ids: Sequence[str]) -> npt.NDArray[np.int64] | None:
    """The group or burst of each of some samples; None where there are neither, or not of all of them."""
    table = _classified(folder)
    if table is None or "group" not in table.column_names:
        return None
    group_of = dict(zip(table["id"].to_pylist(), table["group"].to_pylist(), strict=True))
    if not group_of.keys() >= set(ids):
        return None
    return np.array([group_of[name] for name in ids], dtype=np.int64)


def semantic_auc(folder: SeedFolder, ids: Sequence[str]) -> Estimate | None:
    """The AUC of the classifier on embeddings, on some samples; None: there are no references."""
    table = _classified(folder)
    if table is None:
        return None
    table = table.filter(pc.is_in(table["id"], pa.array(ids, table.schema.field("id").type)))
    groups = np.asarray(table["group"]) if "group" in table.column_names else None
    return auc(np.asarray(table["score"]), np.asarray(table["member"]), groups)
