"""Bursts: several photographs of one scene on one side, which count as one.

Photographs of one scene score alike. Where they stand on one side of an audit, intervals that take them for independent
are too narrow. Bursts are found by what reference encoders see: two images of one side are of one scene if they are
closer than images of different sides ever are, but for one image in a hundred. Images of different sides are the
yardstick because whatever makes all images of an audit alike makes these alike too; so ordinary images are hardly ever
joined. Where one side has few scenes the yardstick is coarse, and too much is joined: the intervals are then too wide.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mi_core.checks import check_finite, check_shape
from mi_core.records import BoolArray
from mi_core.validity.near_duplicates import clusters
from mi_core.validity.sets.share import effective_size

_BEYOND = 0.99  # quantile of the nearest similarities across the sides that a pair of one scene exceeds
_FEWEST = 0.05  # share of the images that chance hardly joins; fewer are left as they are
_SCENES = 3  # that a side is worth at least: of one, and a few images beside it, no interval can be told
_ROWS = 1000
_Float32 = npt.NDArray[np.float32]


def find_bursts(embeddings: _Float32, side: BoolArray) -> npt.NDArray[np.int64] | None:
    """The bursts among the images of an audit.

    Args:
        embeddings: (N, D) of reference encoders.
        side: (N,) which are candidates, the others being controls.

    Returns (N,) a number for each burst or single image; None: no more images are joined than chance joins, or a side
    is worth fewer than 3 of them: then the sides lie apart as wholes, which the classifier on these embeddings tells.
    Raises ShapeError, NumericError: the shapes do not fit, or an embedding is not finite.
    """
    count, _ = check_shape("embeddings", embeddings, "N D")
    check_shape("side", side, "N", N=count)
    check_finite("embedding of an image", embeddings)
    if side.all() or not side.any():
        return None
    centred = embeddings - embeddings.mean(axis=0)
    unit = (centred / np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), 1e-12)).astype(np.float32)
    across = np.concatenate([(unit[rows] @ unit[~side].T).max(axis=1) for rows in _blocks(np.flatnonzero(side))])
    back = np.concatenate([(unit[rows] @ unit[side].T).max(axis=1) for rows in _blocks(np.flatnonzero(~side))])
    bound = np.quantile(np.concatenate([across, back]), _BEYOND)
    linked: list[tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]] = []
    for mine in (np.flatnonzero(side), np.flatnonzero(~side)):
        for rows in _blocks(mine):
            one, other = np.nonzero(unit[rows] @ unit[mine].T > bound)
            linked.append((rows[one], mine[other]))
    pairs = np.concatenate(linked, axis=1)
    pairs = pairs[:, pairs[0] != pairs[1]]
    if len(np.unique(pairs)) < _FEWEST * count:
        return None
    numbers = clusters(count, pairs.T)
    if min(effective_size(numbers[one]) for one in (side, ~side)) < _SCENES:
        return None
    return numbers


def _blocks(rows: npt.NDArray[np.intp]) -> list[npt.NDArray[np.intp]]:
    return np.array_split(rows, max(1, -(-len(rows) // _ROWS)))
