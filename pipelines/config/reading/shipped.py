"""Configs that come with the package, by their names: ``cifar10``, ``audit-encoder``, ``lpla-cifar10``."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from pipelines.errors import UserError
from pipelines.files import storage

FOLDER = str(files("pipelines") / "configs")


@cache
def shipped() -> dict[str, str]:
    """Name to file of every config that comes with the package; those of papers last."""
    paths = [path for folder in (FOLDER, f"{FOLDER}/papers") for path in storage.list_files(folder, recursive=False)]
    return {path.rpartition("/")[2].removesuffix(".yaml"): path for path in paths if path.endswith(".yaml")}


def config_file(name: str, folder: str = "") -> str:
    """The file that a name stands for: one that is there, with or without ``.yaml``, before one of the package.

    Args:
        name: of a config, or the path of a file.
        folder: to which a path is relative; empty: the current one.

    Raises:
        UserError: there is neither; it lists the names.
    """
    place = name if not folder or name.startswith("/") or storage.is_uri(name) else f"{folder}/{name}"
    for path in (place, f"{place}.yaml"):
        if storage.exists(path) and not storage.is_folder(path):
            return path
    bare = name.removesuffix(".yaml").removeprefix("papers/")
    if bare in shipped():
        return shipped()[bare]
    raise UserError(
        f"{place} is no file; give an existing config file, a run folder with its config.yaml, or one of "
        f"{', '.join(shipped())}"
    )
