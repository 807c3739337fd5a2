"""The draw of a lot: which images are held back, and which of six captions of an image is published.

And of the releases of a lot together: their coins, the order in which images are asked about, what lost ones count.

All coins are a function of a secret salt, of a public number that came later (the *beacon*) and of the number of the
image in the lot. So whoever is shown the salt draws them anew; and an owner who fixed images and salt before the beacon
was known could not choose how they fall. Without a beacon the salt alone decides, which the operating system drew.

Letters: N units (an image, or all copies of one), S strata (albums, folders, persons).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mi_core.captions import CREDITS
from mi_core.checks import ConfigError, check_range
from mi_core.hashing import digest64, digests64
from mi_core.records import BoolArray

HELD_BACK, CAPTIONS = "held-back", "captions"
"""The designs of a lot; they can be mixed."""
DESIGNS = (HELD_BACK, CAPTIONS)
SHARE = 0.2
"""Of the images that is held back where nothing else is asked."""
SMALL = "small albums together"
"""The stratum of albums that are too small to be divided."""
_FIRST_WAVE, _GROWTH = 64, 1.4


@dataclass(frozen=True)
class Design:
    """The parts of a draw: the units held back, and the captions that dice choose.

    Args:
        sizes: (S,) units of each stratum. Units are numbered from 0, those of a stratum one after the other.
        share: of the units that is held back, in [0, 1); 0: none.
        captions: whether a die chooses among `CREDITS` captions of every image.

    Raises:
        ConfigError: a stratum is empty, the share is out of range, or nothing is drawn at all.
    """

    sizes: tuple[int, ...]
    share: float = SHARE
    captions: bool = False

    def __post_init__(self) -> None:
        check_range("share", self.share, 0, 1, open_high=True)
        if not self.sizes:
            raise ConfigError("a lot needs at least one image")
        for size in self.sizes:
            check_range("images of a stratum", size, 1)
        if not self.designs:
            raise ConfigError("nothing is drawn: hold back a share above 0, or ask for captions")

    @property
    def designs(self) -> tuple[str, ...]:
        """The members of `DESIGNS` that are drawn."""
        asked = (self.share > 0, self.captions)
        return tuple(name for name, is_asked in zip(DESIGNS, asked, strict=True) if is_asked)

    @property
    def strata(self) -> npt.NDArray[np.int64]:
        """(N,) the stratum of each unit."""
        return np.repeat(np.arange(len(self.sizes)), self.sizes)


@dataclass(frozen=True)
class Draw:
    """How the coins fell.

    Args:
        held_back: (N,) which units are not published.
        caption: (N,) 0 to `CREDITS` - 1, the caption of the image that is published, or would have been.
    """

    held_back: BoolArray
    caption: npt.NDArray[np.int8]


def spelled(beacon: str) -> str:
    """The small letters and digits of a public number: other ways to write it draw the same.

    Example:
        >>> spelled(" 0xC0 FF:ee"), spelled("12 - 7 - 31")
        ('c0ffee', '12731')
    """
    return "".join(letter for letter in beacon.lower() if letter.isascii() and letter.isalnum()).removeprefix("0x")


def beacon_fault(named: str, value: str) -> str:
    """Why a value cannot be that of a beacon; empty: it can be.

    Args:
        named: the beacon in words.
        value: as somebody gives it.
    """
    if "drand" in named.lower() and not re.fullmatch("[0-9a-f]{64}", value):
        return f"{value!r} is no number of drand: it is the field randomness of the round, 64 characters of 0-9 and a-f"
    return "" if spelled(value) not in ("", spelled(named)) else f"{value!r} is no value"


def draw(design: Design, salt: str, beacon: str = "") -> Draw:
    """Draw a lot: the same for the same design, salt and beacon, on every machine.

    Every unit of a stratum of n units has the chance ``share`` to be held back. Their number is ``share`` n, rounded up
    or down by a coin, and given that number all subsets are equally likely. Dice of captions are fair and
    independent. A coin is a 64-bit BLAKE2b digest of salt, beacon, purpose and the unit's number.

    Args:
        design: with N units.
        salt: secret, of at least 32 characters.
        beacon: the public number; empty: the salt decides alone.

    Raises:
        ConfigError: the salt is too short to be a secret.

    Example:
        >>> drawn = draw(Design((10, 30)), "0" * 32)
        >>> int(drawn.held_back[:10].sum()), int(drawn.held_back[10:].sum()), drawn.caption.tolist() == [0] * 40
        (2, 6, True)
    """
    if len(salt) < 32:
        raise ConfigError(f"a salt of {len(salt)} characters is no secret; 32 are needed")
    count, beacon = sum(design.sizes), spelled(beacon)

    def tickets(purpose: str) -> npt.NDArray[np.uint64]:
        return digests64((salt, beacon, purpose), map(str, range(count)))  # of `spelled`

    held_back = np.zeros(count, dtype=bool)
    if design.share:
        ticket, start = tickets(HELD_BACK), 0
        for stratum, size in enumerate(design.sizes):
            held = int(design.share * size + digest64(salt, beacon, "rounding", stratum) / 2**64)
            held_back[start + np.argsort(ticket[start : start + size], kind="stable")[:held]] = True
            start += size
    dice = tickets(CAPTIONS) % np.uint64(CREDITS) if design.captions else np.zeros(count)
    return Draw(held_back, dice.astype(np.int8))


def merged_strata(albums: Sequence[str], share: float) -> tuple[npt.NDArray[np.int64], tuple[str, ...]]:
    """Strata of N units by album, where albums too small to be divided form one stratum together.

    An album is divided if at least one of its units is held back and one published on average.

    Args:
        albums: (N,) names.
        share: that is held back, in [0, 1).

    Returns:
        (N,) numbers of the strata, and their S names in order; the last may be `SMALL`.

    Example:
        >>> merged_strata(["b"] * 5 + ["a"] * 10 + ["c"], 0.2)[1]
        ('a', 'b', 'small albums together')
    """
    names, numbers, counts = np.unique(np.asarray(albums, dtype=str), return_inverse=True, return_counts=True)
    whole = np.minimum(counts * share, counts * (1 - share)) >= (1 if share else 0)
    place = np.where(whole, np.cumsum(whole) - 1, int(whole.sum()))
    strata = tuple(names[whole].tolist()) + (() if whole.all() else (SMALL,))
    return place[numbers].astype(np.int64), strata


@dataclass(frozen=True)
class Drawn:
    """The coins of all releases of a lot together.

    Args:
        strata: (N,) numbers from 0 to S - 1; those of two releases are different.
        albums: (S,) their names.
        held_back: (N,) which units are not published.
        caption: (N,) 0 to `CREDITS` - 1, which was published; -1: not drawn for this unit; None: for none.
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
        captions: whether the dice of captions count; not where an encoder reads no texts.

    Raises:
        ConfigError: a release has another number of albums than of names.
    """
    strata: list[npt.NDArray[np.int64]] = []
    names: list[str] = []
    both = list(zip(designs, draws, strict=True))
    for number, (design, mine) in enumerate(zip(designs, albums, strict=True), start=1):
        if len(mine) != len(design.sizes):
            raise ConfigError(f"release {number} has {len(design.sizes)} albums, and {len(mine)} names of albums")
        strata.append(design.strata + len(names))
        names += [name if len(designs) == 1 else f"{name} (release {number})" for name in mine]
    return Drawn(
        np.concatenate(strata),
        tuple(names),
        np.concatenate([each.held_back for each in draws]),
        np.concatenate([one.caption if design.captions else one.caption - 1 for design, one in both])
        if captions and any(design.captions for design in designs)
        else None,
    )


def asking_order(commitments: Sequence[str], sizes: Sequence[int]) -> npt.NDArray[np.int64]:
    """(N,) numbers of the units in the order of asking: release by release, each shuffled by its commitment.

    The commitment was made before the draw, so that the order cannot depend on the coins.
    """
    parts, start = [], 0
    for commitment, size in zip(commitments, sizes, strict=True):
        parts.append(start + np.argsort(digests64((commitment, "order"), map(str, range(size))), kind="stable"))
        start += size
    return np.concatenate(parts)


def counted_against(
    answers: npt.NDArray[np.float64], drawn: Drawn, units: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64] | None]:
    """Cosines with missing ones counted against the claim: of images (M,), and of captions (M, K) or None.

    What is published has -1 then, and what is not 1: no owner gains by losing images.

    Args:
        answers: (M, 1 + K) of the image, and of it with each caption; NaN: missing.
        drawn: the coins; units: (M,) numbers of the units.
    """
    scores, captions, held_back = answers[:, 0], answers[:, 1:], drawn.held_back[units]
    images = np.where(np.isnan(scores), np.where(held_back, 1.0, -1.0), scores)
    if drawn.caption is None:
        return images, None
    is_shown = ~held_back[:, None] & (np.arange(captions.shape[1]) == drawn.caption[units, None])
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
