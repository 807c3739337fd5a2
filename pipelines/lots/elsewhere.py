"""Find the images of a lot, or near-copies of them, that stand in another folder too."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from mi_core.validity.near_duplicates import confirmed, near_pairs, usual_distance
from pipelines.config.sections.sources import SourceConfig
from pipelines.data.columns import DESCRIPTOR, PHASH
from pipelines.data.read.samples import Problem
from pipelines.data.read.sources import Source
from pipelines.data.scan.scan import usable
from pipelines.lots.captions import ANY_SIZE


def seen_in(images: pa.Table, source: SourceConfig) -> set[str]:
    """The pixels (SHA-256) of those images of a lot that stand in a source, as they are or nearly.

    Args:
        images: of the lot, with columns of `IMAGES`: pixels and marks.
        source: where the others are.

    Raises:
        UserError: the source cannot be read.
    """
    shas, hashes, levels = [], [], []
    for item in Source(source).items():
        for found in usable(source, item, ANY_SIZE, near=True):
            if not isinstance(found, Problem):
                shas.append(found[2])
                hashes.append(found[3][PHASH])
                levels.append(np.frombuffer(found[3][DESCRIPTOR], dtype=np.uint8))
    mine = images["sha256"].to_pylist()
    others = set(shas)
    seen = {sha for sha in mine if sha in others}
    if not hashes or not mine:
        return seen
    marks = np.concatenate([np.asarray(images[PHASH], dtype=np.uint64), np.array(hashes, dtype=np.uint64)])
    own = np.frombuffer(b"".join(images[DESCRIPTOR].to_pylist()), dtype=np.uint8).reshape(len(mine), -1)
    pairs = near_pairs(marks, distance=usual_distance(len(marks)))
    pairs = confirmed(pairs, np.concatenate([own, np.stack(levels)]))
    across = pairs[(pairs[:, 0] < len(mine)) & (pairs[:, 1] >= len(mine))]
    return seen | {mine[row] for row in across[:, 0].tolist()}
