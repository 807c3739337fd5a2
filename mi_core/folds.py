"""Divide samples into folds with about equal shares of members; samples of one group stay together."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mi_core.checks import ShapeError, check_shape
from mi_core.records import BoolArray

FOLDS = 5


def stratified_folds(
    member: BoolArray, groups: npt.NDArray[np.int64] | None, seed: int, name: str
) -> list[npt.NDArray[np.int64]]:
    """Rows of each of `FOLDS` folds, drawn at random.

    Args:
        member: (N,) bool.
        groups: (N,) numbers of persons, albums, bursts; None: every sample stands for itself.
        seed: of the draw.
        name: of what needs them, for the error.

    Raises:
        ShapeError: a class has fewer samples, or groups, than there are folds; or groups is not (N,).
    """
    # slow to load, and most processes do without
    from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold

    units = [int(chosen.sum()) if groups is None else len(np.unique(groups[chosen])) for chosen in (member, ~member)]
    if min(units) < FOLDS:
        what = "samples" if groups is None else "groups"
        raise ShapeError(f"{name} needs {FOLDS} {what} of each class, got {min(units)} of one")
    shuffled = {"shuffle": True, "random_state": seed % 2**32}
    if groups is None:
        return [rows for _, rows in StratifiedKFold(FOLDS, **shuffled).split(member, member)]
    check_shape("groups", groups, "N", N=len(member))
    return [rows for _, rows in StratifiedGroupKFold(FOLDS, **shuffled).split(member, member, groups)]
