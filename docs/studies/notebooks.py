"""Run notebooks. As a program: run those of docs/ that are named, or all, and keep the outputs in them."""

from __future__ import annotations

import os
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "notebooks"
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def executed(path: Path, folder: Path) -> Any:
    """A notebook with the outputs of a run in a folder; nothing in them tells when or where."""
    notebook = nbformat.read(path, as_version=4)
    settings = {"timeout": 2400, "record_timing": False, "resources": {"metadata": {"path": str(folder)}}}
    NotebookClient(notebook, kernel_name="python3", **settings).execute(env=_environment())
    notebook.metadata = nbformat.from_dict(METADATA)
    return notebook


def _environment() -> dict[str, str]:
    """This process's environment, with the package of this repository and the commands of this Python first."""
    first = {"PYTHONPATH": str(ROOT), "PATH": sysconfig.get_path("scripts")}
    joined = {name: os.pathsep.join(filter(None, (own, os.environ.get(name)))) for name, own in first.items()}
    return {**os.environ, **joined}


if __name__ == "__main__":
    for name in sys.argv[1:] or sorted(path.stem for path in FOLDER.glob("*.ipynb")):
        with tempfile.TemporaryDirectory() as place:
            nbformat.write(executed(FOLDER / f"{name}.ipynb", Path(place)), FOLDER / f"{name}.ipynb")
