"""One hash for identities: of samples, roles and random streams."""

from __future__ import annotations

import hashlib


def digest64(*parts: str | int) -> int:
    """An unsigned 64-bit hash of a tuple of texts and integers; no two different tuples share their encoding.

    Example:
        >>> digest64("a", "bc") == digest64("ab", "c")
        False
    """
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        encoded = (b"i%d" % part) if isinstance(part, int) else b"s" + part.encode()
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return int.from_bytes(digest.digest(), "little")
