"""The hash of inputs: two pieces of work with the same hash are the same."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def digest(*parts: Any) -> str:
    """Sha256 (64 hex digits) of values as JSON."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()
