"""The releases of a lot together: their coins, the order in which images are asked about, and what lost ones count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mi_core.checks import ConfigError
from mi_core.hashing import digests64
from mi_core.lots.draw import Design, Draw
from mi_core.records import BoolArray

_FIRST_WAVE, _GROWTH = 64, 1.4


@dataclass(frozen=True)
class Drawn:
    """The coins of all releases of a lot together.

    Args:
        strata: (N,) numbers from 0 to S - 1; those of two releases are different.
        albums: (S,) their names.
        held_back: (N,) which units are not published.
        caption: (N,) 0 or 1, which was published; None: not drawn.
    """

    strata: npt.NDArray[np.int64]
    albums: tuple[str, ...]
    held_back: BoolArray
    caption: npt.NDArray[np.int8] | None = None


def joined_draws(
    designs: Sequence[Design], albums: Sequence[Sequence[str]], draws: Sequence[Draw], *, captions: bool = True
) -> Drawn:
    """The coins of the releases of a lot together, their units and strata numbered on.

    Args:
        designs: of each release.
        albums: the names of its strata.
        draws: how its coins fell.
        captions: whether the coins of captions count; not where an encoder reads no texts.

    Raises:
        ConfigError: a release has another number of albums than of names.
    """
    strata: list[npt.NDArray[np.int64]] = []
    names: list[str] = []
    for number, (design, mine) in enumerate(zip(designs, albums, strict=True), start=1):
        if len(mine) != len(design.sizes):
            raise ConfigError(f"release {number} has {len(design.sizes)} albums, and {len(mine)} names of albums")
        strata.append(design.strata + len(names))
        names += [name if len(designs) == 1 else f"{name} (release {number})" for name in mine]
    return Drawn(
        np.concatenate(strata),
        tuple(names),
        np.concatenate([each.held_back for each in draws]),
        np.concatenate([each.caption for each in draws])
        if captions and any(design.captions for design in designs)
        else None,
    )


def asking_order(commitments: Sequence[str], sizes: Sequence[int]) -> npt.NDArray[np.int64]:
    """(N,) numbers of the units in the order of asking: release by release, each shuffled by its commitment.

    The commitment was made before the draw, so that the order cannot depend on the coins.
    """
    parts, start = [], 0
    for commitment, size in zip(commitments, sizes, strict=True):
        tickets = digests64((commitment, "order"), map(str, range(size)))
        parts.append(start + np.argsort(tickets, kind="stable"))
        start += size
    return np.concatenate(parts)


def counted_against(
    scores: npt.NDArray[np.float64], captions: npt.NDArray[np.float64], drawn: Drawn, units: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64] | None]:
    """Cosines with missing ones counted against the claim: of images (M,), and of captions (M, 2) or None.

    What is published has -1 then, and what is not 1: no owner gains by losing images.

    Args:
        scores: (M,) of the images, NaN: missing; captions: (M, 2) of both captions.
        drawn: the coins; units: (M,) numbers of the units.
    """
    held_back = drawn.held_back[units]
    images = np.where(np.isnan(scores), np.where(held_back, 1.0, -1.0), scores)
    if drawn.caption is None:
        return images, None
    is_shown = ~held_back[:, None] & (np.arange(2) == drawn.caption[units, None])
    return images, np.where(np.isnan(captions), np.where(is_shown, -1.0, 1.0), captions)


def waves_of(releases: Sequence[int]) -> npt.NDArray[np.int64]:
    """The wave (N,) of each unit in the order of asking: 64 of a release, then 1.4 times as many in all, to its end.

    Args:
        releases: numbers of units of each. A later release leaves the waves of the earlier ones as they are.

    Example:
        >>> np.bincount(waves_of([150, 10])).tolist()
        [64, 26, 35, 25, 10]
    """
    sizes: list[int] = []
    for units in releases:
        end, wanted = 0, float(_FIRST_WAVE)
        while end < units:
            sizes.append(min(units, round(wanted)) - end)
            end, wanted = end + sizes[-1], wanted * _GROWTH
    return np.repeat(np.arange(len(sizes)), sizes)
