"""Run notebooks. As a program: run those of docs/ that are named, or all, and keep the outputs in them."""

from __future__ import annotations

import os
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "notebooks"
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def executed(path: Path, folder: Path) -> Any:
    """A notebook with the outputs of a run in a folder; nothing in them tells when or where."""
    notebook = nbformat.read(path, as_version=4)
    settings = {"timeout": 2400, "record_timing": False, "resources": {"metadata": {"path": str(folder)}}}
    with _this_package():
        NotebookClient(notebook, kernel_name="python3", **settings).execute()
    notebook.metadata = nbformat.from_dict(METADATA)
    return notebook


@contextmanager
def _this_package() -> Iterator[None]:
    """Processes take the package of this repository, and the commands of this environment."""
    paths = {"PYTHONPATH": str(ROOT), "PATH": sysconfig.get_path("scripts")}
    joined = {name: os.pathsep.join(filter(None, (own, os.environ.get(name)))) for name, own in paths.items()}
    with mock.patch.dict(os.environ, joined):
        yield


if __name__ == "__main__":
    for name in sys.argv[1:] or sorted(path.stem for path in FOLDER.glob("*.ipynb")):
        with tempfile.TemporaryDirectory() as place:
            nbformat.write(executed(FOLDER / f"{name}.ipynb", Path(place)), FOLDER / f"{name}.ipynb")
