"""The start of a submitted job: are the packages there? Needs nothing but Python, 3.7 or newer."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec

OLDEST = (3, 11)
PACKAGES = (
    *("torch", "torchvision", "ray", "pyarrow", "webdataset", "numpy", "numba", "PIL", "simplejpeg"),
    *("yaml", "typer", "rich", "scipy", "sklearn", "safetensors", "matplotlib", "jinja2", "optuna", "tensorboard"),
    *("fsspec", "obstore", "duckdb", "jsonschema", "psutil", "pydantic"),
)  # as they are imported


def lacking(packages: Sequence[str]) -> str:
    """The lack that keeps a run from starting with this Python, in words; empty: none."""
    if sys.version_info < OLDEST:
        return f"is Python {sys.version_info[0]}.{sys.version_info[1]}; {OLDEST[0]}.{OLDEST[1]} is the oldest that does"
    missing = [name for name in packages if find_spec(name) is None]
    return "lacks " + ", ".join(missing) if missing else ""


def main() -> None:
    """Check, then run the audit; what is missing is one line and exit code 2."""
    fault = lacking(PACKAGES)
    if fault:
        sys.stderr.write(
            f"encoder-audit: the cluster's head runs this job with {sys.executable}, which {fault}; start Ray there "
            "from the environment where encoder-audit is installed (activate it, then ray start --head)\n"
        )
        sys.exit(2)
    from pipelines.cli.process import run  # not before: it imports those packages

    run("audit")


if __name__ == "__main__":
    main()
