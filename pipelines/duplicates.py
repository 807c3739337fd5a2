"""Images that stand twice: the same pixels, or nearly; one copy is kept, and which others went is told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field

from mi_core.images import decode
from mi_core.near_duplicates import Pairs, clusters, confirmed, near_by_cosine, near_pairs
from pipelines import storage
from pipelines.columns import Coded, codes_of
from pipelines.errors import UserError
from pipelines.scan import DESCRIPTOR, PHASH

if TYPE_CHECKING:
    from pipelines.data_config import DataConfig

_Rows = npt.NDArray[np.intp]
_BATCH = 64  # images that a neutral encoder embeds at once


class NeutralEncoderConfig(BaseModel):
    """An encoder, not the one audited, whose embeddings of near-copies have to be alike as well."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    load: str = Field(description="kind:architecture, as of an encoder from elsewhere")
    weights: str = Field(description="weights file, a path or URI")
    least: float = Field(default=0.9, ge=-1, le=1, description="least cosine of backbone embeddings")


class NearDuplicatesConfig(BaseModel):
    """Which images count as near-copies of each other: those whose hashes are close and whose detail is alike."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    distance: int = Field(default=8, ge=0, le=8, description="bits of 64 in which the perceptual hashes may differ")
    least: float = Field(default=0.92, ge=-1, le=1, description="least correlation of 8 x 8 grey levels")
    encoder: NeutralEncoderConfig | None = Field(default=None, description="confirm them by a neutral encoder too")


def distinct(order: _Rows, source: Coded, table: pa.Table, given: Mapping[str, str]) -> tuple[_Rows, int]:
    """Rows in order with the first copy of every image, and the number of copies dropped.

    Args:
        order: rows of the table, those that are to keep their images first.
        source: of every row.
        table: of the samples scanned.
        given: source to role, of roles that the user gives.

    Raises:
        UserError: two roles that the user gave share an image.
    """
    images = codes_of(table["sha256"])[order]
    _, first, image = np.unique(images, return_index=True, return_inverse=True)
    earlier, sources = order[first][image], source.codes
    shared = source.among(given)[sources[order]] & (sources[earlier] != sources[order])
    if shared.any():
        pair = [int(rows[shared.argmax()]) for rows in (earlier, order)]
        one, two = (source.values[sources[row]] for row in pair)
        keys = table["key"].take(pa.array(pair)).to_pylist()
        raise UserError(
            f"roles {given[one]} and {given[two]} share an image: {one}/{keys[0]} and {two}/{keys[1]} "
            "hold the same pixels; remove it from one of them"
        )
    return order[np.sort(first)], len(order) - len(first)


def without_near_copies(
    order: _Rows, source: Coded, table: pa.Table, given: Mapping[str, str], data: DataConfig
) -> tuple[_Rows, pa.Table]:
    """Rows in order without near-copies across roles, and a table of the near-copies: id, copy_of, removed.

    Of images that are drawn the first copy stays. A role that the user gives keeps its own near-copies; of two such
    roles the one of non-members loses them, and what is drawn loses to both.
    """
    assert data.near_duplicates is not None
    near = _pairs(order, table, data.near_duplicates)
    if data.near_duplicates.encoder is not None and len(near):
        near = _alike(near, order, table, data, data.near_duplicates.encoder)
    group = clusters(len(order), near)
    # who keeps it: given members, given non-members, what is drawn
    rank_of = np.array([2 if name not in given else int(_nonmember(given[name])) for name in source.values], np.int64)
    sources = source.codes[order]
    sequence = np.lexsort((np.arange(len(order)), sources * (rank_of[sources] < 2), rank_of[sources], group))
    first = np.ones(len(order), dtype=bool)
    first[1:] = np.diff(group[sequence]) != 0
    owner = np.empty(len(order), dtype=np.intp)
    owner[sequence] = sequence[np.maximum.accumulate(np.where(first, np.arange(len(order)), 0))]
    own = np.arange(len(order)) == owner
    kept = own | ((sources == sources[owner]) & (rank_of[sources] < 2))
    copies = np.flatnonzero(~own)
    columns = {
        "id": _ids(table, order[copies]),
        "copy_of": _ids(table, order[owner[copies]]),
        "removed": ~kept[copies],
    }
    return order[kept], pa.table(columns)


def _pairs(order: _Rows, table: pa.Table, config: NearDuplicatesConfig) -> Pairs:
    """Positions in ``order`` of images that are near-copies."""
    hashes = np.asarray(table[PHASH].combine_chunks())[order]
    pairs = near_pairs(hashes, distance=config.distance)
    rows, place = np.unique(pairs, return_inverse=True)
    if not len(rows):
        return pairs
    bytes_of = table[DESCRIPTOR].take(pa.array(order[rows])).to_pylist()
    found = np.frombuffer(b"".join(bytes_of), dtype=np.uint8).reshape(len(rows), -1)
    return rows[confirmed(place.reshape(pairs.shape), found, least=config.least)]


def _alike(near: Pairs, order: _Rows, table: pa.Table, data: DataConfig, chosen: NeutralEncoderConfig) -> Pairs:
    """The pairs that a neutral encoder takes for alike; only images in a pair are read and embedded."""
    import torch

    from mi_core.encoders.foreign import adopt

    if not storage.exists(chosen.weights):
        raise UserError(f"data.near_duplicates.encoder.weights = {chosen.weights} is no file")
    weights = storage.read_bytes(chosen.weights)
    encoder = adopt(chosen.load, weights, channels=data.channels, image_size=data.image_size).encoder
    rows, place = np.unique(near, return_inverse=True)
    wanted = table.select(["source", "item", "key"]).take(pa.array(order[rows])).to_pylist()
    position = {(one["source"], one["key"]): number for number, one in enumerate(wanted)}
    images = np.empty((len(rows), data.channels, data.image_size, data.image_size), dtype=np.uint8)
    for name, model in data.sources.items():
        for item in model.items():
            keys = {one["key"] for one in wanted if (one["source"], one["item"]) == (name, item.name)}
            for sample in model.read(item, keys) if keys else ():
                images[position[name, sample.key]] = decode(sample.image, data.decoder())
    with torch.inference_mode():
        parts = torch.from_numpy(images).split(_BATCH)
        embeddings = torch.cat([encoder(part.float() / 255)["backbone"] for part in parts]).float().numpy()
    return rows[near_by_cosine(place.reshape(near.shape), embeddings, least=chosen.least)]


def _nonmember(role: str) -> bool:
    return role.endswith("nonmember") or role == "control"


def _ids(table: pa.Table, rows: _Rows) -> list[str]:
    some = table.select(["source", "key"]).take(pa.array(rows))
    return [f"{source}/{key}" for source, key in zip(*(column.to_pylist() for column in some.columns), strict=True)]
