"""The command ``encoder-audit`` as a process: it makes sure that the package is its own, and ends without teardown."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

PACKAGES = ("pipelines", "mi_core")


def hidden(packages: tuple[str, ...] = PACKAGES) -> str:
    """The folder or file that Python would import in place of a package of this tool; empty: there is none."""
    root = Path(__file__).resolve().parent
    for name in packages:
        spec = find_spec(name)
        place = Path((spec and spec.origin) or "")
        if spec is not None and place.resolve().parent != root / name:
            return str(place.parent if place.name == "__init__.py" else place)
    return ""


def main() -> None:
    """Entry point of the console script."""
    if place := hidden():
        sys.stderr.write(
            f"encoder-audit: {place} has the name of a package of encoder-audit and stands before it on Python's path: "
            "take its folder out of PYTHONPATH, or rename it\n"
        )
        sys.exit(2)
    from pipelines.cli.process import run

    run()
