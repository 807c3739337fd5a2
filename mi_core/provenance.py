"""When and with which packages a result was made."""

from __future__ import annotations

import platform
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version

from mi_core.plugins import packages

PACKAGES = ("encoder-audit", "torch", "torchvision", "ray", "numpy", "pyarrow", "scikit-learn", "pillow")


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that numbers depend on, as far as they are installed."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found | packages()


def now() -> str:
    """The time in UTC, ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")
