"""Read both sides of an audit: what is left out and why, and what the images show without any encoder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mi_core.auditing.config_text import KNOWN
from mi_core.auditing.images import TWICE, Picture, check_steady, error_in_words
from mi_core.checks import ConfigError
from mi_core.hashing import FIRST, PART, digests64, sample_digests, sum_of_digests
from mi_core.image_files import ImageError
from mi_core.images import Decoder, decode, decode_and_hash
from mi_core.report.model.report import RejectedSample, RolePart
from mi_core.validity.file_features import summary
from mi_core.validity.near_duplicates import LEAST_SIDE, TOO_SMALL, doubt, first_in_group, marks, near_copies

CANDIDATES, CONTROLS = "candidates", "controls"
CHUNK = 256  # images that are decoded and queried together
MAX_REJECTED = 0.01  # share of images that cannot be used, as a config has it
_SHOWN = 5  # of them, in a message


@dataclass(frozen=True)
class AuditedImages:
    """N images of both sides that are used.

    Args:
        items, sides: of each, candidates first.
        hashes: sha256 of the pixels of each, hexadecimal.
        summaries: (N, F) numbers of file and pixels.
        rejected: images that cannot be decoded.
        copies: exact copies left out; near_copies: near-copies left out, doubt: the warning if these are many.
        remarks: by side, what was done to how many of its images that can be decoded.
        decoder: of all.
    """

    items: Sequence[Picture]
    sides: Sequence[str]
    hashes: Sequence[str]
    summaries: npt.NDArray[np.float64]
    rejected: Sequence[RejectedSample]
    copies: int
    near_copies: int
    doubt: str
    remarks: Mapping[str, Mapping[str, int]]
    decoder: Decoder

    @property
    def ids(self) -> list[str]:
        """``side/key`` of each."""
        return [f"{side}/{item.key}" for side, item in zip(self.sides, self.items, strict=True)]

    def pixels(self, rows: Iterable[int]) -> npt.NDArray[np.uint8]:
        """The pixels (B, C, S, S) of some of them."""
        return np.stack([decode(self.items[row].data(), self.decoder) for row in rows])

    def chunks(self) -> Iterator[tuple[slice, npt.NDArray[np.uint8]]]:
        """The pixels of all, `CHUNK` images at a time, with their rows."""
        for start in range(0, len(self.items), CHUNK):
            stop = min(start + CHUNK, len(self.items))
            yield slice(start, stop), self.pixels(range(start, stop))

    @property
    def candidate(self) -> npt.NDArray[np.bool_]:
        """(N,) which are candidates."""
        return np.array([side == CANDIDATES for side in self.sides])

    def roles(self, seed: int) -> dict[str, RolePart]:
        """How many samples the roles have, and their digests by ids and pixels."""
        digests, inside = sample_digests(map(bytes.fromhex, self.hashes), self.ids), self.candidate
        kept = {"candidate": inside, "control": ~inside, "known-nonmember": self.known(seed)}
        return {
            role: RolePart(n=int(rows.sum()), sha256=sum_of_digests(digests[rows]).hex()) for role, rows in kept.items()
        }

    def first(self, count: int, seed: int) -> npt.NDArray[np.intp]:
        """Rows of the first ``count`` of each side by a seeded hash of the pixels, candidates before controls."""
        order = np.argsort(digests64((seed, FIRST), self.hashes), kind="stable")
        return np.concatenate([order[side[order]][:count] for side in (self.candidate, ~self.candidate)])

    def known(self, seed: int) -> npt.NDArray[np.bool_]:
        """(N,) controls that fix the threshold: a share of `KNOWN` by the hash of their pixels."""
        shares = digests64((seed, PART), self.hashes).astype(np.float64) / 2.0**64
        return ~self.candidate & (shares < KNOWN)


def read(
    given: Mapping[str, Sequence[Picture]],
    decoder: Decoder,
    seed: int,
    tick: Callable[[], None] = lambda: None,
    *,
    max_rejected: float = MAX_REJECTED,
    near_duplicates: bool = True,
) -> AuditedImages:
    """Decode every image once and leave out what cannot be used.

    An exact copy within a side is left out. So are near-copies: of two that are alike, candidates stay before controls.

    Args:
        given: the images by side.
        decoder: of all.
        seed: orders near-copies of one side.
        tick: called after every image.
        max_rejected: largest share of images that cannot be used, in [0, 1].
        near_duplicates: whether near-copies are left out.

    Raises:
        ConfigError: a candidate and a control are the same image, a side has no usable image, too many images cannot
            be used, or one of the first that are asked for twice is another one then.
    """
    kept: list[tuple[Picture, str, str, int]] = []  # in the order in which the first of some copies stays
    seen: dict[str, str] = {}
    rejected: list[RejectedSample] = []
    summaries, found = [], []
    copies = 0
    remarks: dict[str, Counter[str]] = {side: Counter() for side in given}
    for side, items in given.items():
        lost: dict[int, RejectedSample] = {}
        order = np.argsort(digests64((seed, "role", side), [item.key for item in items]), kind="stable").tolist()
        for turn, place in enumerate(order):
            item = items[place]
            try:
                if item.fault:
                    raise ImageError(item.fault)
                data = item.data()
                pixels, sha, shorter, done = decode_and_hash(data, decoder)
            except Exception as error:  # noqa: BLE001 - whatever a data set of the user raises
                lost[place] = RejectedSample(source=side, shard=side, key=item.key, reason=error_in_words(error))
                continue
            finally:
                tick()
            if turn < TWICE:
                check_steady(item, data, side)
            remarks[side].update(done)
            if near_duplicates and shorter < LEAST_SIDE:
                remarks[side].update([TOO_SMALL])
            if sha in seen:
                if seen[sha].partition("/")[0] != side:
                    raise ConfigError(
                        f"{seen[sha]} and {side}/{item.key} have the same pixels; an image cannot be candidate and "
                        "control: remove it from one side"
                    )
                copies += 1
                continue
            seen[sha] = f"{side}/{item.key}"
            kept.append((item, side, sha, place))
            summaries.append(summary(data, pixels))
            found.append(marks(pixels, shorter))
        rejected += [lost[place] for place in sorted(lost)]
        if not kept or kept[-1][1] != side:
            why = f"; {rejected[0].key}: {rejected[0].reason}" if rejected else ""
            raise ConfigError(f"no image of {side} can be used{why}")
    if len(rejected) > max_rejected * (count := sum(map(len, given.values()))):
        named = "; ".join(f"{bad.source}/{bad.key}: {bad.reason}" for bad in rejected[:_SHOWN])
        raise ConfigError(
            f"{len(rejected)} of {count} images cannot be used, more than max_rejected = {max_rejected:.2%} allows: "
            f"{named}"
        )
    first = first_in_group(len(kept), near_copies(found)) if near_duplicates else np.arange(len(kept))
    stays = first == np.arange(len(kept))
    names, ids, gone = list(given), list(seen.values()), np.flatnonzero(~stays)
    told = doubt(len(gone), len(kept), ((ids[row], ids[first[row]]) for row in gone))
    rows = sorted(np.flatnonzero(stays).tolist(), key=lambda row: (names.index(kept[row][1]), kept[row][3]))
    items, sides, shas, _ = map(list, zip(*(kept[row] for row in rows), strict=True))
    numbers = np.stack(summaries)[rows]
    return AuditedImages(items, sides, shas, numbers, rejected, copies, len(gone), told, remarks, decoder)
