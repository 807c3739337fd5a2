"""Names of architectures of encoders from elsewhere, looked up without building one or importing its package."""

from __future__ import annotations

import difflib
import importlib.util
import re
from functools import cache
from pathlib import Path

from mi_core.adoption.model_folder import folder_kind
from mi_core.checks import ConfigError
from mi_core.encoders import parse_backbone


def check_architecture(load: str, channels: int, image_size: int) -> None:
    """Look an architecture up: in the table of backbones, or in the files of the package that has it.

    Args:
        load: ``kind:name`` as `mi_core.adoption.foreign.adopt` takes it.
        channels: of the images that come.
        image_size: side of the images that come.

    Raises:
        ConfigError: there is none of that name. A package that is not installed here is not asked.
    """
    kind, _, name = load.partition(":")
    if kind == "checkpoint":
        parse_backbone(name, channels, image_size)
    elif kind == "python" and not all(name.partition(":")):
        raise ConfigError(f"load = {load!r}: write python:module:function")
    elif kind in _PACKAGES and folder_kind(load) is None:
        known = _names(kind)
        bare = name.partition("." if kind == "timm" else ":")[0]  # names may end in a tag of published weights
        if known and bare not in known:
            near = difflib.get_close_matches(bare, known, 3)
            hint = f"; did you mean {' or '.join(near)}?" if near else f"; see {_PACKAGES[kind]}.list_models()"
            raise ConfigError(f"load = {load!r}: {kind} has no model {name!r}{hint}")


_PACKAGES = {"torchvision": "torchvision.models", "timm": "timm", "open_clip": "open_clip"}
_REGISTERED = re.compile(r"@register_model(?:\(\))?\s+(?:@[^\n]+\s+)*def (\w+)\(")
_RENAMED = re.compile(r"""^\s+['"](\w+)['"]:""", re.MULTILINE)


@cache
def _names(kind: str) -> frozenset[str]:
    """Models of an installed package, read off its files; empty where it is not installed."""
    package = importlib.util.find_spec(kind)
    folders = package.submodule_search_locations if package is not None else None
    if not folders:
        return frozenset()
    folder = Path(folders[0])
    if kind == "open_clip":
        return frozenset(path.stem for path in (folder / "model_configs").glob("*.json"))
    names: set[str] = set()
    for path in (folder / "models").glob("*.py"):
        text = path.read_text(encoding="utf-8")
        names.update(_REGISTERED.findall(text))
        if kind == "timm":  # names of before, which it still takes
            names.update(_RENAMED.findall(text.partition("register_model_deprecations(")[2]))
    return frozenset(names)
