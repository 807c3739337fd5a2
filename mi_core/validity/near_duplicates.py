"""Near-copies among images: a 64-bit perceptual hash, every pair of close hashes, and the groups these form.

A non-member that is a re-compressed, resized or brightened copy of a member spoils an audit, and identical pixels do
not find it. Missed: mirrored copies, most of those cropped by 5 % a side (.16 found) or with a caption bar (.10; 500
images of CIFAR-10 at 128 pixels). Hash: the signs of the low frequencies of the discrete cosine transform about their
median (Zauner, "Implementation and benchmarking of perceptual image hash functions", 2010, section 3.2). Pairs:
`mi_core.validity.hash_tables`.

Letters: N images, C channels, H and W their height and width, P pairs, D width of an embedding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from mi_core.checks import ConfigError, ShapeError, check_range, check_shape
from mi_core.validity.hash_tables import Hashes, Pairs, distinct_hashes, near_tables, union_of_pairs

_Float64 = npt.NDArray[np.float64]
LEAST_SIDE = 32  # pixels a side below which images that are no copies look alike
TOO_SMALL = f"smaller than {LEAST_SIDE} pixels a side, too small to tell near-copies"
_SIDE = 32
_LOW = 8
_GREY = (77, 150, 29)  # Rec. 601 in 256ths
_FLAT = 4.0  # grey levels; below it JPEG of quality 75 moved 2 in 3 hashes of photographed sky by over 3 bits
_FRACTION = 24  # bits after the point of the transform's matrix; 7 stay after its first half
_SAME = 0.998  # correlation of descriptors as they stand that only copies have
_PRIOR, _NOISE = 64, 0.1  # descriptors of noise beside those at hand; variance that compression and resizing add
_PIXELS = 2**16  # of one chunk, whose float64 copy then fits a cache
_AT_ONCE = 2**14  # pairs that are compared together, for the same reason


def perceptual_hash(images: npt.NDArray[np.uint8]) -> Hashes:
    """The 64-bit hash of each image, which alterations that leave the coarse picture alone change in few bits.

    Grey by Rec. 601 (77, 150 and 29 of 256; one channel as it is), area means of 32 x 32 cells (a smaller image
    repeats pixels, by share of area), the orthonormal DCT-II, of which the 8 x 8 lowest frequencies stay. Bit
    8 u + v, where u is the vertical and v the horizontal frequency, is 1 where that coefficient lies above the median
    of the 63 besides the mean (0, 0). Bit 0, the mean's, is always 0. So 31 bits are 1, but for ties, and two
    hashes differ in an even number of bits.

    The hash is 0 where noise would decide it: where fewer than 16 coefficients lie 4 grey levels or more above the
    median, or fewer than 16 as far below. These are plain areas, plain stripes and gradients; any other hash has
    16 to 31 ones. `near_pairs` leaves them out.

    All sums are of integers below 2^53 in float64, thus exact: neither batch nor threads change a hash.

    Args:
        images: (N, C, H, W), C is 1 or 3.

    Raises:
        ShapeError: images are not (N, C, H, W), C is neither 1 nor 3, or H or W is 0.
        ConfigError: images are not uint8.
    Example:
        >>> images = np.random.default_rng(0).integers(0, 256, (2, 3, 32, 32), dtype=np.uint8)
        >>> [int(word).bit_count() for word in perceptual_hash(images)]
        [31, 31]
    """
    _check_images(images)
    hashes = np.empty(len(images), dtype=np.uint64)
    for chunk in _chunks(images):
        count, _, height, width = images[chunk].shape
        across = _grey(images[chunk]).reshape(-1, width).astype(np.float64) @ _basis(width).T
        across = np.rint(across * 2.0 ** (7 - _FRACTION)).reshape(count, height, _LOW)
        # coefficient (u, v) at 8 u + v, in integers of 2^-39 grey levels
        coefficients = (_basis(height) @ across).reshape(count, _LOW * _LOW)
        ordered = np.sort(coefficients[:, 1:], axis=1)
        below, median, above = ordered[:, 15], ordered[:, 31], ordered[:, 47]
        bits = coefficients > median[:, None]
        bits[:, 0] = False
        bits[np.minimum(above - median, median - below) < _FLAT * 2.0**39] = False
        hashes[chunk] = np.packbits(bits, axis=1, bitorder="little").view("<u8")[:, 0].astype(np.uint64)
    return hashes


def marks(image: npt.NDArray[np.uint8], side: int) -> tuple[int, bytes]:
    """The hash and the descriptor by which an image (C, H, W) is found to be a near-copy.

    Both are 0 for an image of fewer than `LEAST_SIDE` pixels a side before it was resized, so that it is in no pair:
    at 8 x 8 pixels, 15 % of hand-written digits pass for copies of each other.

    Args:
        image: its pixels, resized or not; C is 1 or 3.
        side: the shorter side in pixels before it was resized.

    Raises as `perceptual_hash`.
    """
    if side < LEAST_SIDE:
        return 0, bytes(_LOW * _LOW)
    return int(perceptual_hash(image[None])[0]), descriptors(image[None]).tobytes()


def near_copies(found: Sequence[tuple[int, bytes]]) -> Pairs:
    """Pairs (P, 2) of images that are near-copies, by the `marks` of each."""
    pairs = near_pairs(np.array([one for one, _ in found], dtype=np.uint64), distance=usual_distance(len(found)))
    levels = np.frombuffer(b"".join(level for _, level in found), dtype=np.uint8)
    return confirmed(pairs, levels.reshape(len(found), _LOW * _LOW))


def usual_distance(count: int) -> int:
    """The bits in which hashes of near-copies may differ, by the number of images: 8, or 4 above a million.

    `near_pairs` at 8 bits takes 63 microseconds an image at a million images, and more for more (12 hours at 10 ** 8);
    at 4 bits it takes 2.

    Example:
        >>> usual_distance(1_000_000), usual_distance(1_000_001)
        (8, 4)
    """
    return 8 if count <= 10**6 else 4


def near_pairs(hashes: Hashes, *, distance: int = 3) -> Pairs:
    """Every pair of hashes that differ in at most ``distance`` bits; none is missed.

    The hashes go through `mi_core.validity.hash_tables.near_tables` one after the other. Memory is about 40 bytes a
    hash, besides the pairs.

    Two hashes of 31 ones differ in 0, 2, 4, ... bits. Of 60,000 CIFAR-10 images, 155 pairs lie within 2 bits, and by
    eye 2 of these are unrelated; 233 differ in 4 bits, 462 in 6 and 981 in 8, and of 40 of each 4, 10 and 17 are
    unrelated. Beyond 3 bits, and for millions of images, see `confirmed`.

    Rows of one hash form a chain, each with the next, and two hashes that are close are a pair of their first rows:
    10,000 copies are 9,999 pairs, not 50 million. `clusters` are the same as of all pairs. Rows whose hash is 0, of
    flat images, are in no pair.

    Args:
        hashes: (N,) uint64 from `perceptual_hash`.
        distance: 0 to 8 bits.

    Returns (P, 2) rows i < j, in the order of i, then j.
    Raises as `distinct_hashes` and `near_tables`.

    Example:
        >>> near_pairs(np.array([7, 2**40, 7, 15, 0, 0], dtype=np.uint64), distance=1).tolist()
        [[0, 2], [0, 3]]
    """
    distinct = distinct_hashes(hashes)
    tables = near_tables(len(distinct.words), distance)
    return union_of_pairs([distinct.copies, *(table.pairs(distinct) for table in tables)])


def clusters(count: int, pairs: Pairs) -> npt.NDArray[np.int64]:
    """The group of each of ``count`` rows, where a pair joins two rows: connected components.

    Args:
        count: N, at least 0.
        pairs: (P, 2) rows.

    Returns (N,) from 0, numbered by first row; a row in no pair is a group of its own.
    Raises ShapeError: pairs are not (P, 2); ConfigError: count is below 0, or a row is not within [0, count - 1].

    Example:
        >>> clusters(5, np.array([[1, 4], [2, 4]])).tolist()
        [0, 1, 1, 2, 1]
    """
    from scipy.sparse import coo_array  # takes its time to import
    from scipy.sparse.csgraph import connected_components

    check_range("count", count, 0)
    _check_pairs(pairs, count)
    if not count:
        return np.empty(0, dtype=np.int64)
    graph = coo_array((np.ones(len(pairs), dtype=np.int8), (pairs[:, 0], pairs[:, 1])), shape=(count, count))
    _, labels = connected_components(graph.tocsr(), directed=False)
    _, first, group = np.unique(labels, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[group]


def descriptors(images: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """The descriptors that `confirmed` compares: the area means of 8 x 8 cells of the grey image, 64 bytes an image.

    Takes and raises what `perceptual_hash` does; (N, 64) grey levels, row by row.

    Example:
        >>> descriptors(np.full((1, 3, 10, 9), 200, dtype=np.uint8))[0, :3].tolist()
        [200, 200, 200]
    """
    _check_images(images)
    count, _, height, width = images.shape
    means = np.empty((count, _LOW * _LOW), dtype=np.uint8)
    rows, columns = _areas(_LOW, height), _areas(_LOW, width).T
    for chunk in _chunks(images):
        grey = _grey(images[chunk]).astype(np.float64)
        means[chunk] = np.rint(rows @ (grey @ columns) / 256).reshape(-1, _LOW * _LOW)
    return means


def confirmed(pairs: Pairs, levels: npt.NDArray[np.uint8], *, least: float = 0.92) -> Pairs:
    """The pairs whose `descriptors` have a correlation of at least ``least``, also beside what images here have alike.

    The second correlation is of descriptors less the mean of all that are in a pair, in units of their covariance.
    Digits, or objects before a white ground, are all alike as they stand. A correlation of .998 is enough alone.

    A hash forgets how strong a frequency is, so that any two small things on a clear sky may be close; correlation
    remembers it, and is blind to brightness and contrast, as a mean difference is not. Of CIFAR-10's 1,831 pairs within
    8 bits, .92 keeps 1,110 as they stand (98 % of them copies) and 573 beside the others; what is lost was cropped. Of
    1,797 digits at 64 pixels 652 would be copies as they stand, and 14 are; of 3,000 pictures that an ellipse cuts out
    before white, 2,944 and 407. A constant descriptor confirms nothing.

    Where images that are not alike share all 64 bits, the chain of `near_pairs` is cut at them, and a copy behind the
    cut may be missed.

    Args:
        pairs: (P, 2) rows.
        levels: (N, 64) from `descriptors`.
        least: -1 to 1.

    Returns (Q, 2) those of ``pairs`` that are kept, in their order.
    Raises ShapeError: pairs are not (P, 2), or the descriptors not (N, 64); ConfigError: pairs are not integers, a row
    is not within [0, N - 1], the descriptors are not uint8, or least is not within [-1, 1].

    Example:
        >>> ramp = np.arange(64, dtype=np.uint8)
        >>> confirmed(np.array([[0, 1], [0, 2]]), np.stack([ramp, 3 * ramp + 9, ramp[::-1]])).tolist()
        [[0, 1]]
    """
    count, _ = check_shape("descriptors", levels, "N D", D=_LOW * _LOW)
    if levels.dtype != np.uint8:
        raise ConfigError(f"descriptors have dtype {levels.dtype}, allowed: uint8")
    _check_pairs(pairs, count)
    check_range("least", least, -1, 1)
    kept = np.zeros(len(pairs), dtype=np.bool_)
    mean, whitened = _usual(levels, np.unique(pairs))
    for start in range(0, len(pairs), _AT_ONCE):
        chunk = slice(start, start + _AT_ONCE)
        left, right = (_standardised(levels[rows]) for rows in pairs[chunk].T)
        correlation = _cosine(left, right)
        own = _cosine((left - mean) @ whitened, (right - mean) @ whitened)
        kept[chunk] = (correlation >= least - 1e-12) & ((own >= least - 1e-12) | (correlation >= _SAME))
    return pairs[kept]


def _usual(levels: npt.NDArray[np.uint8], rows: npt.NDArray[np.integer[Any]]) -> tuple[_Float64, _Float64]:
    """Mean (64,) and a square root (64, 64) of the inverse covariance of some standardised descriptors.

    Both are drawn towards those of noise, as if `_PRIOR` more descriptors were noise: a few images tell little.
    """
    total, products = np.zeros(_LOW * _LOW), np.zeros((_LOW * _LOW, _LOW * _LOW))
    for start in range(0, len(rows), _AT_ONCE):
        some = _standardised(levels[rows[start : start + _AT_ONCE]])
        total, products = total + some.sum(axis=0), products + some.T @ some
    count = len(rows) + _PRIOR
    mean = total / count
    covariance = products / count - np.outer(mean, mean)
    values, vectors = np.linalg.eigh(covariance + (_PRIOR / count + _NOISE) * np.eye(len(mean)))
    return mean, vectors / np.sqrt(values)


def _standardised(levels: npt.NDArray[np.uint8]) -> _Float64:
    """Descriptors (N, 64) with mean 0 and variance 1; constant ones are 0."""
    centred = levels - levels.mean(axis=1, keepdims=True)
    deviation = centred.std(axis=1, keepdims=True)
    return np.asarray(centred / np.where(deviation > 0, deviation, 1))


def _cosine(left: _Float64, right: _Float64) -> _Float64:
    lengths = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    return np.asarray(np.einsum("pd,pd->p", left, right) / np.where(lengths > 0, lengths, 1))


def first_copies(pairs: Pairs, levels: npt.NDArray[np.uint8], *, least: float = 0.92) -> npt.NDArray[np.int64]:
    """For each of N images, the row of the first image that it is a near-copy of; its own row where there is none.

    The pairs (P, 2) are rows with close hashes; levels and least are as in `confirmed`.

    Raises as `confirmed`.

    Example:
        >>> ramp = np.arange(64, dtype=np.uint8)
        >>> first_copies(np.array([[0, 2], [1, 2]]), np.stack([ramp, ramp[::-1], 3 * ramp])).tolist()
        [0, 1, 0]
    """
    return first_in_group(len(levels), confirmed(pairs, levels, least=least))


def first_in_group(count: int, pairs: Pairs) -> npt.NDArray[np.int64]:
    """For each of ``count`` rows, the first row of its group in `clusters`. Raises as that."""
    group = clusters(count, pairs)
    _, first = np.unique(group, return_index=True)
    return first[group]


def doubt(removed: int, of: int, pairs: Iterable[tuple[str, str]]) -> str:
    """The warning where more than 1 % of images are left out, with six of them; else an empty text."""
    if removed <= 0.01 * of:
        return ""
    shown = "; ".join(f"{one} is left out for {other}" for one, other in islice(pairs, 6))
    return (
        f"{removed} of {of} images pass for near-copies of others. Look at some: {shown}. If these are other pictures, "
        "keep them: leave near_duplicates out of the config, near_duplicates=False in Python"
    )


def _check_images(images: npt.NDArray[np.uint8]) -> None:
    shape = check_shape("images", images, "N C H W")
    if shape[1] not in (1, 3) or 0 in shape[2:]:
        raise ShapeError(f"images have shape {shape}, allowed: 1 or 3 channels and at least 1 x 1 pixels")
    if images.dtype != np.uint8:
        raise ConfigError(f"images have dtype {images.dtype}, allowed: uint8")


def _check_pairs(pairs: Pairs, count: int) -> None:
    check_shape("pairs", pairs, "P 2")
    if pairs.dtype.kind not in "iu":
        raise ConfigError(f"pairs have dtype {pairs.dtype}, allowed: integers")
    if len(pairs) and not (pairs.min() >= 0 and pairs.max() < count):
        raise ConfigError(f"pairs name rows {pairs.min()} to {pairs.max()}, allowed: [0, {count - 1}]")


def _chunks(images: npt.NDArray[np.uint8]) -> Iterator[slice]:
    """Rows of a few images at a time."""
    step = max(1, _PIXELS // (images.shape[2] * images.shape[3]))
    yield from (slice(start, start + step) for start in range(0, len(images), step))


def _grey(images: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint16]:
    """(N, H, W): 256ths of a grey level."""
    weights = _GREY if images.shape[1] == 3 else (256,)
    grey: npt.NDArray[np.uint16] = images[:, 0] * np.uint16(weights[0])
    for channel in range(1, len(weights)):
        grey += images[:, channel] * np.uint16(weights[channel])
    return grey


def _areas(cells: int, size: int) -> _Float64:
    """(cells, size): the share that each of ``size`` pixels in a row has in each of ``cells`` of equal width."""
    width = size / cells
    starts, pixels = np.arange(cells)[:, None] * width, np.arange(size)
    overlap = np.minimum(starts + width, pixels + 1) - np.maximum(starts, pixels)
    return np.asarray(np.clip(overlap, 0, None) / width, dtype=np.float64)


@lru_cache(maxsize=64)
def _basis(size: int) -> _Float64:
    """(8, size): area means of 32 cells, then the 8 lowest frequencies of their DCT-II, in integers of 2^-24."""
    frequencies, cells = np.arange(_LOW)[:, None], np.arange(_SIDE)
    cosines = np.cos(np.pi * (2 * cells + 1) * frequencies / (2 * _SIDE)) * np.sqrt(2 / _SIDE)
    cosines[0] /= np.sqrt(2)
    return np.asarray(np.rint(cosines @ _areas(_SIDE, size) * 2.0**_FRACTION), dtype=np.float64)
