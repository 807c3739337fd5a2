"""Drop exact copies and near-copies of images; one copy stays, the others are listed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mi_core.validity.hash_tables import Pairs
from mi_core.validity.near_duplicates import clusters, confirmed, near_pairs, usual_distance
from pipelines.config.data import DataConfig, NearDuplicatesConfig, Role
from pipelines.config.roles import CANDIDATE_ROLES, of_nonmembers
from pipelines.data.columns import Coded, codes_of, ids_of
from pipelines.data.scan import DESCRIPTOR, PHASH
from pipelines.errors import UserError

_Rows = npt.NDArray[np.intp]


def distinct(order: _Rows, source: Coded, table: pa.Table, given: Mapping[str, str]) -> tuple[_Rows, int]:
    """Keep the first copy of every image; returns the rows kept, in order, and the number dropped.

    Args:
        order: rows of the table; the first copy in this order is kept.
        source: of every row.
        table: of the samples scanned.
        given: source to role, of roles that the user gives.

    Raises:
        UserError: two roles that the user gave share an image.
    """
    images = codes_of(table["sha256"])[order]
    _, first, image = np.unique(images, return_index=True, return_inverse=True)
    earlier, sources = order[first][image], source.codes
    theirs = source.among(given)
    shared = theirs[sources[order]] & theirs[sources[earlier]] & (sources[earlier] != sources[order])
    if shared.any():
        pair = [int(rows[shared.argmax()]) for rows in (earlier, order)]
        one, two = (source.values[sources[row]] for row in pair)
        keys = table["key"].take(pa.array(pair)).to_pylist()
        raise UserError(
            f"roles {given[one]} and {given[two]} share an image: {one}/{keys[0]} and {two}/{keys[1]} "
            "have the same pixels; remove the image from one of them"
        )
    return order[np.sort(first)], len(order) - len(first)


def keeping(roles: Mapping[str, Role], sources: Sequence[str]) -> npt.NDArray[np.int64]:
    """Priority of each source when images are copies: (S,); the lowest number keeps its copy.

    Members that the user gives come first. A non-member that the user gives loses a copy of any image that members are
    drawn from, since it may have been trained on; otherwise given roles come before what is drawn.
    """
    given = {role.source_name: name for name, role in roles.items() if not role.drawn}
    feeding = {role.source_name for name, role in roles.items() if not _nonmember(name) and role.drawn}
    spoilt = any(_nonmember(name) for name in given.values())
    priority = np.full(len(sources), 3, dtype=np.int64)
    for number, name in enumerate(sources):
        if name in given:
            priority[number] = 2 if _nonmember(given[name]) else 0
        elif spoilt and name in feeding:
            priority[number] = 1
    return priority


def without_near_copies(order: _Rows, table: pa.Table, data: DataConfig) -> tuple[_Rows, pa.Table]:
    """Keep the first of all near-copies; returns the rows kept and a table of the others: id, copy_of.

    Args:
        order: rows of the table; the first copy in this order is kept.
        table: of the samples scanned.
        data: holds the definition of a near-copy.
    """
    assert data.near_duplicates is not None
    near = _pairs(order, table, data.near_duplicates)
    group = clusters(len(order), near)
    _, first = np.unique(group, return_index=True)
    owner = first[group]
    kept = owner == np.arange(len(order))
    columns = {"id": ids_of(table, order[~kept]), "copy_of": ids_of(table, order[owner[~kept]])}
    return order[kept], pa.table(columns)


def _pairs(order: _Rows, table: pa.Table, config: NearDuplicatesConfig) -> Pairs:
    """Positions in ``order`` of images that are near-copies."""
    hashes = np.asarray(table[PHASH].combine_chunks())[order]
    distance = usual_distance(len(hashes)) if config.distance is None else config.distance
    pairs = near_pairs(hashes, distance=distance)
    rows, place = np.unique(pairs, return_inverse=True)
    if not len(rows):
        return pairs
    bytes_of = table[DESCRIPTOR].take(pa.array(order[rows])).to_pylist()
    described = np.frombuffer(b"".join(bytes_of), dtype=np.uint8).reshape(len(rows), -1)
    return rows[confirmed(place.reshape(pairs.shape), described, least=config.least)]


def _nonmember(role: str) -> bool:
    return of_nonmembers(role) or role == CANDIDATE_ROLES[1]
