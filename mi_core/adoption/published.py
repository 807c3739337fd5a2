"""Names of models, and their published preprocessing: size, crop, interpolation, mean and std.

Read from torchvision, timm and open_clip by name, without building the model. ``name:tag`` names one of the published
weights of an architecture; timm writes ``name.tag``.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib.util
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from mi_core.adoption.model_folder import folder_kind
from mi_core.checks import ConfigError, import_extra
from mi_core.encoders import parse_backbone
from mi_core.encoders.clip import import_open_clip, open_clip_config

SHORTEST, SQUASH = "shortest", "squash"


@dataclass(frozen=True)
class Preprocessing:
    """The way of images to a backbone: resized to ``size`` (None: as they come), then (x - mean) / std.

    Args:
        size: side of the images that the backbone takes.
        interpolation: of the resizing.
        mean, std: of the normalisation, pixels in [0, 1].
        resize: side before the centre crop of the published transform; None: nothing is published.
        fit: ``shortest``: the shorter side becomes ``resize``. ``squash``: both sides do. None: nothing is published.

    Raises:
        ConfigError: mean or std are those of no pixels in [0, 1].
    """

    size: int | None
    interpolation: str
    mean: tuple[float, ...]
    std: tuple[float, ...]
    resize: int | None = None
    fit: str | None = None

    def __post_init__(self) -> None:
        for name in ("mean", "std"):
            if fault := normalisation_fault(name, getattr(self, name)):
                raise ConfigError(fault)

    def words(self) -> str:
        """In one line, for people."""
        mean, std = (", ".join(f"{value:.4g}" for value in values) for values in (self.mean, self.std))
        size = "any size" if self.size is None else f"{self.size} px, {self.interpolation}"
        sides = "shorter side" if self.fit == SHORTEST else "both sides"
        cut = ", centre crop" if self.fit == SHORTEST or self.resize != self.size else ""
        crop = f", {sides} to {self.resize}{cut}" if self.size is not None and self.fit else ""
        return f"{size}{crop}, mean {mean}, std {std}"

    def decoding(self) -> dict[str, Any]:
        """The fields of a config's data section that decode as the published transform does."""
        crop = {"fit": self.fit, "resize": self.resize} if self.fit else {}
        return {"image_size": self.size, "interpolation": self.interpolation, **crop}

    def changed(self, settings: Mapping[str, Any]) -> Preprocessing:
        """The same with some fields set; another ``size`` scales the side before the crop."""
        new = replace(self, **settings)
        if self.size and self.resize and new.size and new.size != self.size and "resize" not in settings:
            return replace(new, resize=math.floor(new.size * self.resize / self.size))
        return new


def normalisation_fault(name: str, values: Sequence[float]) -> str:
    """Why ``mean`` or ``std`` cannot be that of pixels in [0, 1]; empty: it can.

    Example:
        >>> normalisation_fault("mean", (123.7,))
        'mean = [123.7], but pixels are in [0, 1]; divide values for pixels of 0 to 255 by 255'
    """
    if any(value > 1 for value in values):
        return f"{name} = {list(values)}, but pixels are in [0, 1]; divide values for pixels of 0 to 255 by 255"
    low = any(value <= 0 for value in values) if name == "std" else any(value < -1 for value in values)
    return f"{name} = {list(values)}, allowed: {'above 0' if name == 'std' else 'at least -1'}" if low else ""


@dataclass(frozen=True)
class Published:
    """The settings of some published weights, and what has to be said about the choice (empty: nothing)."""

    preprocessing: Preprocessing
    note: str = ""

    def notes(self, more: str = "") -> tuple[str, ...]:
        """Remarks on an encoder: this one, and one more; empty ones are left out."""
        return tuple(filter(None, (self.note and f"preprocessing {self.note}", more)))


def published(load: str) -> Published | None:
    """The published preprocessing of a model, by ``kind:name`` or ``kind:name:tag``.

    Returns:
        None for kinds that publish nothing, and for models whose folder says it (`model_folder`).

    Raises:
        ConfigError: no such model or tag, a package that is missing, or images that are not square.
    """
    kind, _, name = load.partition(":")
    return PUBLISHED[kind](*split_name(name)) if kind in PUBLISHED and folder_kind(load) is None else None


def split_name(name: str) -> tuple[str, str]:
    """Architecture and tag of published weights (empty: none named)."""
    architecture, _, tag = name.partition(":")
    return architecture, tag


def torchvision_weights(name: str, tag: str) -> Any:
    """The entry of torchvision for published weights; without a tag its default.

    Raises:
        ConfigError: no such classification model, or no such weights.
    """
    from torchvision import models

    if name not in models.list_models(module=models):
        raise ConfigError(f"torchvision has no classification model {name!r}; see torchvision.models.list_models()")
    known = models.get_model_weights(name)
    if tag and tag not in known.__members__:
        raise ConfigError(f"torchvision has no weights {tag!r} of {name}, allowed: {', '.join(known.__members__)}")
    return known[tag] if tag else known.DEFAULT


def _torchvision(name: str, tag: str) -> Published:
    chosen = torchvision_weights(name, tag)
    rule = chosen.transforms()
    known = Preprocessing(
        int(rule.crop_size[0]),
        rule.interpolation.value,
        tuple(rule.mean),
        tuple(rule.std),
        int(rule.resize_size[0]),
        SHORTEST,
    )
    others = [entry.name for entry in type(chosen) if _differs(entry.transforms(), rule)]
    note = f"as for {chosen.name}; for other weights write torchvision:{name}:{others[0]}" if others and not tag else ""
    return Published(known, note)


def check_file(load: str, data: bytes) -> None:
    """Raise ConfigError if a file is known to be other published weights, with another preprocessing, than named.

    The names of torchvision's files end with the first digits of their sha256.
    """
    kind, _, name = load.partition(":")
    if kind != "torchvision":
        return
    named, digest = torchvision_weights(*split_name(name)), hashlib.sha256(data).hexdigest()
    for entry in type(named):
        mark = entry.url.rpartition("-")[2].removesuffix(".pth")
        if mark and digest.startswith(mark) and _differs(entry.transforms(), named.transforms()):
            raise ConfigError(f"the file is {entry.name}: set load = 'torchvision:{split_name(name)[0]}:{entry.name}'")


def _differs(first: Any, second: Any) -> bool:
    """True if two of torchvision's transforms make different images."""
    parts = ("crop_size", "resize_size", "interpolation", "mean")
    return any(getattr(first, part) != getattr(second, part) for part in parts)


def import_timm() -> Any:
    """The timm package. Raises ConfigError naming the extra when it is missing."""
    return import_extra("timm", "load = 'timm:...'", "timm")


def _timm(name: str, tag: str) -> Published:
    timm = import_timm()
    if not timm.is_model(name) or tag:
        raise ConfigError(f"timm has no model {':'.join(filter(None, (name, tag)))!r}; see timm.list_models()")
    try:
        config = timm.get_pretrained_cfg(name, allow_unregistered=False)
    except RuntimeError as error:
        raise ConfigError(f"timm has no weights {name!r}; see timm.list_pretrained()") from error
    return _of_timm(name, {} if config is None else config.to_dict())


def timm_preprocessing(config: Mapping[str, Any]) -> Published:
    """The preprocessing in the ``config.json`` of a folder of timm. Raises ConfigError: images that are not square."""
    if not isinstance(config.get("architecture"), str):
        raise ConfigError("config.json names no architecture of timm")
    return _of_timm(config["architecture"], config.get("pretrained_cfg", config))


def _of_timm(name: str, settings: Mapping[str, Any]) -> Published:
    known = import_timm().data.resolve_data_config(pretrained_cfg=dict(settings))
    channels, height, width = known["input_size"]
    if height != width or channels != 3:
        raise ConfigError(f"timm:{name} takes {channels} x {height} x {width}; only square colour images are queried")
    resize = math.floor(height / known["crop_pct"])
    fit = {"center": SHORTEST, "squash": SQUASH}.get(known["crop_mode"])
    note = "" if fit else f"its own transform ({known['crop_mode']}) adds borders, which no setting of data does"
    mean, std = tuple(known["mean"]), tuple(known["std"])
    return Published(Preprocessing(height, known["interpolation"], mean, std, resize if fit else None, fit), note)


def open_clip_tags(architecture: str) -> dict[str, dict[str, Any]]:
    """Settings of all published weights of an architecture, by tag."""
    package = import_open_clip()
    tags = package.list_pretrained_tags_by_model(architecture)
    return {tag: dict(package.get_pretrained_cfg(architecture, tag)) for tag in tags}


def _open_clip(name: str, tag: str) -> Published:
    side = _open_clip_side(name, open_clip_config(name))
    tags = open_clip_tags(name)
    if tag and tag not in tags:
        allowed = ", ".join(tags) or "none"
        raise ConfigError(f"open_clip has no weights {tag!r} of {name}, allowed: {allowed}")
    settings = {known: _open_clip_settings(entry, side) for known, entry in tags.items() if tag in ("", known)}
    if not settings:
        return Published(_open_clip_settings({}, side))
    chosen, _ = Counter(settings.values()).most_common(1)[0]
    others = [known for known, entry in settings.items() if entry != chosen]
    note = f"as for most of its weights; for {others[0]} write open_clip:{name}:{others[0]}" if others else ""
    return Published(chosen, note)


def open_clip_preprocessing(config: Mapping[str, Any]) -> Published:
    """The preprocessing in the ``open_clip_config.json`` of a folder. Raises ConfigError: its images are not square."""
    model = config.get("model_cfg", config)
    if not isinstance(model.get("vision_cfg"), Mapping):
        raise ConfigError("open_clip_config.json has no model_cfg.vision_cfg")
    return Published(_open_clip_settings(config.get("preprocess_cfg", {}), _open_clip_side("hf-hub", model)))


def _open_clip_side(name: str, model: Mapping[str, Any]) -> int:
    return square_side(model["vision_cfg"].get("image_size", 224), f"open_clip:{name}")


def square_side(size: Any, asked: str = "it") -> int:
    """The side of images that ``asked`` takes: a number, or equal ones in a list or by name. Raises ConfigError."""
    sides = [size] if isinstance(size, int) else list(size.values() if isinstance(size, Mapping) else size)
    if len(set(sides)) != 1:
        raise ConfigError(f"{asked} takes images of {' x '.join(map(str, sides))} px; only square images are queried")
    return int(sides[0])


def _open_clip_settings(entry: Mapping[str, Any], side: int) -> Preprocessing:
    rule = import_open_clip().transform.PreprocessCfg()
    known = {part: entry.get(part) or getattr(rule, part) for part in ("interpolation", "mean", "std", "resize_mode")}
    fit = {"shortest": SHORTEST, "squash": SQUASH}.get(known["resize_mode"])
    mean, std = tuple(known["mean"]), tuple(known["std"])
    return Preprocessing(side, known["interpolation"], mean, std, side if fit else None, fit)


PUBLISHED: dict[str, Callable[[str, str], Published]] = {
    "torchvision": _torchvision,
    "timm": _timm,
    "open_clip": _open_clip,
}
"""Kinds of encoders whose publishers say how images reach them."""


def check_architecture(load: str, channels: int, image_size: int) -> None:
    """Look an architecture up: in the table of backbones, or in the files of the package that has it.

    Args:
        load: ``kind:name`` as `foreign.adopt` takes it.
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
