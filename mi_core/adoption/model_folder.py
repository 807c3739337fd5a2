"""Models that are published as a folder of files, as transformers, open_clip and timm do on the Hugging Face Hub.

A folder holds weights, a config, and rules for images and texts. `packed` makes one safetensors file of it, whose
metadata holds the small files. That file alone rebuilds the model.

The folder of a model that answers in words (LLaVA, PaliGemma, Qwen-VL) is read as if it held its image tower alone: a
config of the tower, and its weights without their prefix. The language model and the layer between the two are left
out.
"""

from __future__ import annotations

import base64
import json
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import safetensors.torch
import torch
from torch import nn

from mi_core.adoption.layouts.files import read_weights
from mi_core.checks import ConfigError

Read = Callable[[str], bytes | None]
"""The content of a file by its path, or by its name in a folder; None: there is no such file."""
Definition = Mapping[str, bytes]
"""The small files of a folder by name."""

_TOKENIZER = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "spiece.model",
)
_FOLDER = "folder"  # one word, since safetensors writes several in any order


@dataclass(frozen=True)
class Contents:
    """Names of files in a folder.

    Args:
        config: the file that defines the network; every folder has it.
        beside: other small files that a folder may have.
        weights: of which a folder has one, whole or in parts; the first is taken.
    """

    config: str
    beside: tuple[str, ...]
    weights: tuple[str, ...]


CONTENTS: dict[str, Contents] = {
    "transformers": Contents(
        "config.json",
        ("preprocessor_config.json", "processor_config.json", *_TOKENIZER),
        ("model.safetensors", "pytorch_model.bin"),
    ),
    "open_clip": Contents(
        "open_clip_config.json", _TOKENIZER, ("open_clip_model.safetensors", "open_clip_pytorch_model.bin")
    ),
    "timm": Contents("config.json", (), ("model.safetensors", "pytorch_model.bin")),
}
"""Files of a folder by the kind of its model."""
_LOADS = re.compile(r"(transformers|open_clip:hf-hub|timm:hf[-_]hub)(?::(?P<place>.*))?")
_PLACE = re.compile(r"(?P<name>[^/@:]+/[^/@:]+)(@(?P<revision>[^/@]+))?")


@dataclass(frozen=True)
class Repository:
    """A repository of the Hub, and its revision: a branch, a tag or a commit; None: its main branch."""

    name: str
    revision: str | None = None


def folder_kind(load: str) -> str | None:
    """The kind of a model that is published as a folder; None for all others.

    Examples:
        >>> folder_kind("open_clip:hf-hub:org/name"), folder_kind("open_clip:ViT-B-32")
        ('open_clip', None)
    """
    found = _LOADS.fullmatch(load)
    return None if found is None else found[1].partition(":")[0]


def repository(load: str) -> Repository:
    """The repository that a model names: ``transformers:org/name``, ``open_clip:hf-hub:org/name@revision``.

    Raises:
        ConfigError: it names none.
    """
    found = _LOADS.fullmatch(load)
    place = None if found is None else _PLACE.fullmatch(found["place"] or "")
    if place is None:
        start = load.rpartition(":")[0] if "/" in load else load
        raise ConfigError(
            f"load = {load!r} names no repository of the Hub; write {start or load}:org/name or "
            f"{start or load}:org/name@revision, or give a folder as weights"
        )
    return Repository(place["name"], place["revision"])


def packed(kind: str, read: Read, *, weights: bool = True) -> bytes:
    """A folder in one safetensors file; of a model that answers in words its image tower alone (`TOWERS`).

    Args:
        kind: of the model, a key of `CONTENTS`.
        read: gives its files.
        weights: whether those are packed too.

    Raises:
        ConfigError: the folder has no config or no weights, or weights that cannot be read.
    """
    names = CONTENTS[kind]
    files = {name: content for name in (names.config, *names.beside) if (content := read(name)) is not None}
    if names.config not in files:
        raise ConfigError(f"there is no {names.config}, which defines a model of {kind}")
    whole = json_of(files, names.config) if kind == "transformers" else {}
    tower = TOWERS.get(str(whole.get("model_type")))  # None: it is a model that does not answer in words
    if tower is not None:
        files = {name: content for name, content in files.items() if name not in _TOKENIZER}
        files[names.config] = tower.config(whole)
    tensors = _tensors(names.weights, read, tower) if weights else {}
    if weights and tower is not None and not tensors:
        raise ConfigError(f"there are no weights of its image tower, whose names begin with {tower.prefix}.")
    return _one_file(tensors, files)


def with_definition(weights: bytes, files: Definition) -> bytes:
    """Safetensors bytes, with the small files of a folder in their metadata."""
    return _one_file(safetensors.torch.load(weights), files) if files else weights


def without_weights(files: Definition) -> bytes | None:
    """A packed folder without its weights; None where there are no files."""
    return _one_file({}, files) if files else None


def definition(data: bytes | None) -> Definition:
    """The small files in a packed folder; none in any other file."""
    if data is None or len(data) < 9 or data[8:9] != b"{":
        return {}
    size = int.from_bytes(data[:8], "little")
    if size > len(data) - 8:
        return {}
    try:
        told = json.loads(data[8 : 8 + size]).get("__metadata__", {})
    except ValueError:
        return {}
    files = json.loads(told.get(_FOLDER, "{}"))
    return {name: base64.b64decode(text) for name, text in files.items()}


def json_of(files: Definition, name: str) -> dict[str, Any]:
    """The object in a JSON file of a folder. Raises ConfigError: it is none."""
    try:
        found = json.loads(files[name])
    except ValueError as error:
        raise ConfigError(f"{name} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{name} holds no settings")
    return found


@contextmanager
def unpacked(files: Definition) -> Iterator[Path]:
    """A temporary folder with the small files, for packages that read folders."""
    with tempfile.TemporaryDirectory() as place:
        for name, content in files.items():
            (Path(place) / name).write_bytes(content)
        yield Path(place)


def _one_file(tensors: Mapping[str, torch.Tensor], files: Definition) -> bytes:
    told = json.dumps({name: base64.b64encode(content).decode() for name, content in files.items()}, sort_keys=True)
    own = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    return safetensors.torch.save(own, metadata={_FOLDER: told})


def _tensors(names: tuple[str, ...], read: Read, tower: Tower | None = None) -> dict[str, torch.Tensor]:
    """The weights of a folder, or of a tower in it, from one file or from the parts that an index lists."""
    for name in names:
        content = read(name)
        if content is not None:
            return _weights_in(content, tower)
        index = read(f"{name}.index.json")
        if index is not None:
            places = json_of({name: index}, name).get("weight_map", {})
            parts = sorted({part for key, part in places.items() if tower is None or tower.name(key) is not None})
            found: dict[str, torch.Tensor] = {}
            for part in parts:
                if (content := read(part)) is None:
                    raise ConfigError(f"there is no {part}, which the index of the weights lists")
                found |= _weights_in(content, tower)
            return found
    raise ConfigError(f"there are no weights: none of {', '.join(names)}")


def _weights_in(content: bytes, tower: Tower | None) -> dict[str, torch.Tensor]:
    """Weights of a file; those of a tower as it names them, copied, so that what they were read from can go."""
    state = read_weights(content).state
    if tower is None:
        return state
    return {name: tensor.clone() for key, tensor in state.items() if (name := tower.name(key)) is not None}


@dataclass(frozen=True)
class Tower:
    """The image tower of a model.

    Args:
        kind: the ``model_type`` of the tower, where its config does not say.
        prefix: of its weights; that of the whole model may stand before it.
    """

    kind: str
    prefix: str

    def config(self, whole: Mapping[str, Any]) -> bytes:
        """The config of the tower.

        Raises:
            ConfigError: that of the model has none.
        """
        own = whole.get("vision_config")
        if not isinstance(own, dict):
            raise ConfigError(f"config.json of a {whole['model_type']} has no vision_config, which defines its tower")
        said = own.get("model_type")
        known = self.kind if said in (None, whole["model_type"]) else str(said)  # Qwen's tower has the model's own name
        named = {"model_type": known, "architectures": [_CLASSES[known]] if known in _CLASSES else []}
        return json.dumps({**own, **named}, sort_keys=True).encode()

    def name(self, whole: str) -> str | None:
        """The name of a weight within the tower; None: it is of another part."""
        found = re.fullmatch(rf"(?:model\.)?{re.escape(self.prefix)}\.(.+)", whole)
        return None if found is None else found[1]


_CLASSES = {"clip_vision_model": "CLIPVisionModel"}  # without the layer behind it that CLIP's own tower has
TOWERS = {
    "llava": Tower("clip_vision_model", "vision_tower"),
    "llava_next": Tower("clip_vision_model", "vision_tower"),
    "llava_onevision": Tower("siglip_vision_model", "vision_tower"),
    "paligemma": Tower("siglip_vision_model", "vision_tower"),
    "qwen2_vl": Tower("qwen2_vl_vision", "visual"),
    "qwen2_5_vl": Tower("qwen2_5_vl_vision", "visual"),
}
"""Towers by the ``model_type`` of the whole model."""


class PackedTower(nn.Module):
    """A tower of Qwen-VL for square images of one side: (B, 3, S, S) to the vectors that its language model reads.

    The tower itself takes the patches of all images in one row, those that it merges one after another, and every
    patch twice, for it takes films of two images.
    """

    def __init__(self, tower: nn.Module) -> None:
        super().__init__()
        self.tower = tower
        self.config: Any = tower.config

    @property
    def block(self) -> int:
        """Side of a block of merged patches, in pixels."""
        return int(self.config.patch_size * self.config.spatial_merge_size)

    def forward(self, pixel_values: torch.Tensor) -> SimpleNamespace:
        """Vectors (B, L, D) of the L blocks of each image, row by row; nothing is pooled.

        Raises:
            ConfigError: blocks do not fill the image.
        """
        count, channels, side, _ = pixel_values.shape
        patch, merge, block = self.config.patch_size, self.config.spatial_merge_size, self.block
        if side % block:
            raise ConfigError(f"it takes images whose side is a multiple of {block} px, not {side}; set size")
        blocks = side // block
        parts = pixel_values.reshape(count, channels, blocks, merge, patch, blocks, merge, patch)
        patches = parts.permute(0, 2, 5, 3, 6, 1, 4, 7)[..., None, :, :]  # blocks, patches in one, channels, time
        rows = patches.expand(*patches.shape[:6], self.config.temporal_patch_size, patch, patch)
        grid = torch.tensor([[1, blocks * merge, blocks * merge]] * count, device=pixel_values.device)
        answer = self.tower(rows.reshape(count * (blocks * merge) ** 2, -1), grid_thw=grid)
        vectors = answer.pooler_output.reshape(count, blocks * blocks, -1)
        return SimpleNamespace(last_hidden_state=vectors, pooler_output=None)
