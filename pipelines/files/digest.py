"""The hash that says that two pieces of work have the same inputs."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def digest(*parts: Any) -> str:
    """Sha256 (64 hex digits) of JSON-able values: the hash that says two pieces of work have the same inputs."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()
