"""Random streams that are a pure function of what they are for.

In training a sample's stream key is a blake2b hash of seed, purpose, source and key. A query's is a hash of a nonce,
the seed, the purpose and the image's pixels: no name, path, source or order enters, so nobody chooses views by naming
files, and no one knows the views before the nonce is drawn. The numbers behind a key come from the counter-based
generator Philox-4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011, section 3.3) on batched
tensors. So a view does not depend on batch, worker, order, device or retry, and two purposes never share a stream.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from mi_core.checks import ConfigError, check_choice, check_range, check_shape
from mi_core.hashing import digest64

PURPOSES = ("train", "defense")  # of streams by name
OF_PIXELS = ("query", "probe")  # of streams by what an image shows
_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


@contextmanager
def seeded_generators(seed: int) -> Iterator[None]:
    """PyTorch's own generators start from a seed for the duration of the block, and then go on as before.

    Those of CUDA are left alone where this process does not use it: nothing can draw from them, and a seed for them
    would wait until it does.
    """
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(devices=devices):
        torch.default_generator.manual_seed(seed)
        if devices:
            torch.cuda.manual_seed_all(seed)
        yield


def stream_keys(seed: int, purpose: str, source: str, keys: Sequence[str]) -> torch.Tensor:
    """The stream keys (N,) int64 of N samples of one source.

    Args:
        seed: of the run, or of one encoder.
        purpose: ``train``: its views; ``defense``: its noise.
        source: name of the source.
        keys: N sample keys.

    Raises:
        ConfigError: no such purpose.

    Example:
        >>> stream_keys(0, "train", "pool", ["a", "b"]).shape
        torch.Size([2])
    """
    check_choice("purpose", purpose, PURPOSES)
    return _signed([digest64(seed, purpose, source, key) for key in keys])


def pixel_streams(nonce: str, seed: int, purpose: str, images: torch.Tensor) -> torch.Tensor:
    """The stream keys (N,) int64 of N images for views that nobody can choose: functions of pixels and nonce alone.

    Args:
        nonce: drawn after the images were fixed; empty where encoders are trained here, and the seed tells all.
        seed: of the run.
        purpose: ``query``: the views of an attack; ``probe``: those that try an encoder out.
        images: (N, C, H, W) uint8, as they are queried; equal images get equal views.

    Raises:
        ConfigError: no such purpose.
        ShapeError: the images are not (N, C, H, W).

    Example:
        >>> images = torch.zeros(2, 3, 4, 4, dtype=torch.uint8)
        >>> first, second = pixel_streams("", 0, "query", images).tolist()
        >>> first == second, first == pixel_streams("7", 0, "query", images)[0]
        (True, tensor(False))
    """
    check_choice("purpose", purpose, OF_PIXELS)
    check_shape("images", images, "N C H W")
    shape = f"{tuple(images.shape[1:])}:".encode()
    prints = [hashlib.sha256(shape + pixels.numpy().tobytes()).hexdigest() for pixels in images.cpu()]
    return _signed([digest64(nonce, seed, purpose, one) for one in prints])


def _signed(prints: Sequence[int]) -> torch.Tensor:
    return torch.tensor([value - 2**64 if value >= 2**63 else value for value in prints], dtype=torch.int64)


def sample_streams(seed: int, purpose: str, names: Sequence[tuple[str, str]]) -> torch.Tensor:
    """Stream keys (N,) int64 of samples of several sources, given as (source, key). Raises as `stream_keys`."""
    by_source: dict[str, list[int]] = {}
    for row, (source, _) in enumerate(names):
        by_source.setdefault(source, []).append(row)
    streams = torch.empty(len(names), dtype=torch.int64)
    for source, rows in by_source.items():
        streams[rows] = stream_keys(seed, purpose, source, [names[row][1] for row in rows])
    return streams


def uniforms(streams: torch.Tensor, *, epoch: int, view: int | torch.Tensor, count: int) -> torch.Tensor:
    """``count`` uniform numbers per sample for one epoch and view.

    Args:
        streams: (N,) int64 from `stream_keys`, on any device.
        epoch: 0 to 2^32 - 1.
        view: index of the view, or one per sample (N,).
        count: numbers per sample.

    Returns:
        (N, count) float32 in [0, 1), multiples of 2^-24, the same on every device.

    Raises:
        ConfigError: the streams are not int64, or epoch, view or count is out of range.

    Example:
        >>> first = uniforms(torch.tensor([7, 8]), epoch=0, view=0, count=3)
        >>> bool((first == uniforms(torch.tensor([7, 8]), epoch=0, view=0, count=5)[:, :3]).all())
        True
    """
    if streams.dtype != torch.int64 or streams.ndim != 1:
        raise ConfigError(f"streams are {streams.dtype} of {streams.ndim} axes, allowed: int64 of one axis")
    check_range("epoch", epoch, 0, _MASK)
    check_range("count", count, 1)
    if isinstance(view, int):
        check_range("view", view, 0, _MASK)
    views = torch.as_tensor(view, dtype=torch.int64, device=streams.device).expand(len(streams))
    if streams.device.type != "cpu":
        return batched_uniforms(streams, epoch, views, count)
    from mi_core.philox import fill_uniforms  # numba takes its time to import

    drawn = torch.empty(len(streams), count)
    fill_uniforms(streams.contiguous().numpy(), epoch, views.contiguous().numpy(), drawn.numpy())
    return drawn


def batched_uniforms(streams: torch.Tensor, epoch: int, views: torch.Tensor, count: int) -> torch.Tensor:
    """`uniforms` as tensor operations, as accelerators draw them; ``views`` (N,) int64."""
    blocks = -(-count // 4)
    shape = (len(streams), blocks)
    key = [((streams >> shift) & _MASK)[:, None].expand(shape) for shift in (0, 32)]
    zero = torch.zeros(shape, dtype=torch.int64, device=streams.device)
    counter = [zero + torch.arange(blocks, device=streams.device), zero + views[:, None], zero + epoch, zero]
    words = torch.stack(philox(counter, key), dim=2).reshape(len(streams), 4 * blocks)[:, :count]
    return (words >> 8).to(torch.float32) * 2.0**-24


def philox(counter: Sequence[torch.Tensor], key: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Philox-4x32-10: four counter words and two key words to four random words, elementwise.

    All words are unsigned 32-bit numbers held in int64 tensors of one shape.
    """
    even = torch.stack([counter[0], counter[2]])  # both products of a round at once: half the operations
    odd = torch.stack([counter[3], counter[1]])
    keys = torch.stack([key[1], key[0]])
    factors = even.new_tensor(_MULTIPLIERS).reshape(2, *[1] * (even.ndim - 1))
    weyl = even.new_tensor(_WEYL).flip(0).reshape(factors.shape)
    mask, shift = even.new_tensor(_MASK), even.new_tensor(32)  # tensors, as a number would be turned into one each time
    for _ in range(_ROUNDS):
        # c0, c1, c2, c3 = high(c2) ^ c1 ^ k0, low(c2), high(c0) ^ c3 ^ k1, low(c0)
        product = even * factors  # of 32 bits each: all 64 bits are there, the sign among them
        even = (((product >> shift) & mask) ^ odd ^ keys).flip(0)
        odd = product & mask
        keys = (keys + weyl) & mask
    return [even[0], odd[1], even[1], odd[0]]
