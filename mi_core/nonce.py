"""Nonces: numbers that nobody can foresee, from which the views of an audit follow beside the pixels."""

from __future__ import annotations

import secrets

SYSTEM, GIVEN, SEED = "operating system", "given", "seed"
"""Where a nonce comes from."""


def new_nonce() -> str:
    """A nonce of 128 bits from the operating system, as 32 hex digits."""
    return secrets.token_hex(16)
