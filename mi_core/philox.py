"""The random numbers of `streams` on the CPU, as machine code: Philox-4x32-10, with one sample after the other."""

from __future__ import annotations

from typing import Any

import numpy as np

from mi_core.runtime import compiled

_MASK, _SHIFT = np.uint64(0xFFFFFFFF), np.uint64(32)
_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_UNIT = np.float32(2.0**-24)


@compiled
def fill_uniforms(streams: Any, epoch: int, views: Any, result: Any) -> None:
    """Fill ``result`` (N, count) float32 as `streams.uniforms` says, for streams and views (N,) int64."""
    for row in range(len(streams)):
        stream = np.uint64(streams[row])
        for block in range((result.shape[1] + 3) // 4):
            first, second, third, fourth = np.uint64(block), np.uint64(views[row]), np.uint64(epoch), np.uint64(0)
            low, high = stream & _MASK, stream >> _SHIFT
            for _ in range(10):
                left, right = _MULTIPLIERS[0] * first, _MULTIPLIERS[1] * third
                first, second = (right >> _SHIFT) ^ second ^ low, right & _MASK
                third, fourth = (left >> _SHIFT) ^ fourth ^ high, left & _MASK
                low, high = (low + _WEYL[0]) & _MASK, (high + _WEYL[1]) & _MASK
            for place, word in enumerate((first, second, third, fourth)):
                if 4 * block + place < result.shape[1]:
                    result[row, 4 * block + place] = np.float32(word >> np.uint64(8)) * _UNIT
