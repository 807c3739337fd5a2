"""Encoders from elsewhere: built by name, filled from a file of weights, with the preprocessing they were trained with.

``kind:name`` says what it is; `LOADERS` is the table of kinds. Files are data: safetensors, or what
``torch.load(weights_only=True)`` accepts. TorchScript and Python callables are code and need an explicit flag.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import io
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import nn

from mi_core.checks import ConfigError, ShapeError, check_choice
from mi_core.encoders import build_backbone
from mi_core.encoders.checkpoint import OUTPUTS, Encoder, channelwise, fingerprint, load_tensors, seeded
from mi_core.encoders.clip import split_tower
from mi_core.encoders.layouts import Layout, State, head_module, look_at, recognise
from mi_core.encoders.layouts.files import Weights, read_weights

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Preprocessing:
    """How images reach a backbone: resized to ``size`` (None: as they come), then (x - mean) / std."""

    size: int | None
    interpolation: str
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def words(self) -> str:
        """In one line, for people."""
        size = "any size" if self.size is None else f"{self.size} px, {self.interpolation}"
        mean, std = (", ".join(f"{value:.4g}" for value in values) for values in (self.mean, self.std))
        return f"{size}, mean {mean}, std {std}"


@dataclass(frozen=True)
class Built:
    """A fresh network of some kind: backbone, the heads that its definition has, its own preprocessing."""

    backbone: nn.Module
    heads: Mapping[str, nn.Module]
    preprocessing: Preprocessing
    convert: Callable[[State], State] | None = None
    """Own names of weights for `Encoder`, where the kind defines them; None: `layouts.recognise` sorts them."""
    text: nn.Module | None = None
    """What turns texts into embeddings, where the kind has it; left out if the file has no weights for it."""


@dataclass(frozen=True)
class Adopted:
    """An encoder from elsewhere, in evaluation mode, with what was recognised in its file.

    Args:
        encoder: itself.
        layout: whose file it is, in words.
        preprocessing: how images reach it.
        fingerprint: identity of the encoder: of its weights, and of what else makes it the network that it is.
        used: keys of the file by part, in words; empty where the kind of loader defines them.
        ignored: what else the file holds, each with the reason why it is left out.
        assumed: what stands in no file, such as an activation, and who says so.
        activations: of its heads by output name, where the file's layers leave places for them.
    """

    encoder: Encoder
    layout: str
    preprocessing: Preprocessing
    fingerprint: str
    used: str = ""
    ignored: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    activations: Mapping[str, str] = field(default_factory=dict)


def adopt(
    load: str,
    data: bytes | None,
    *,
    channels: int,
    image_size: int,
    preprocessing: Mapping[str, Any] | None = None,
    activations: Mapping[str, str] | None = None,
    backbone_only: bool = False,
    fresh: int | None = None,
) -> Adopted:
    """Build an encoder from elsewhere.

    Args:
        load: ``kind:name``, a kind of `LOADERS`.
        data: bytes of the weights file; None only for fresh weights, without the heads that such a file may hold.
        channels: of the images that come.
        image_size: side of the images that come, for kinds that take any size.
        preprocessing: fields of `Preprocessing` to set instead of the encoder's own.
        activations: of heads by output name, names of `layouts.ACTIVATIONS`, where the file does not tell whose it is.
        backbone_only: leave the heads of a ``checkpoint:`` aside.
        fresh: a seed of fresh weights for the same architecture, instead of those in the file.

    Raises:
        ConfigError: unknown kind or name, a package that is missing, weights that do not fit, or code without weights.
    """
    kind, _, name = load.partition(":")
    build = LOADERS[check_choice("load", kind, LOADERS)]
    if kind in CODE:
        return _adopt_code(load, data, preprocessing)
    if data is None and fresh is None:
        raise ConfigError(f"load = {load!r} needs weights, or a seed of fresh ones")
    if not name:
        raise ConfigError(f"load = {load!r}: write {kind}:<name of the architecture>")
    if activations and kind != "checkpoint":
        raise ConfigError(f"load = {load!r} defines its heads itself; leave heads out")
    seed = 0 if fresh is None else fresh
    weights = Weights({}) if data is None else read_weights(data)
    side = _side(load, weights.state, preprocessing or {}, image_size)
    built: Built = seeded(seed, lambda: build(name, channels, side))
    settings = asdict(built.preprocessing)
    heads, tensors = dict(built.heads), State()
    found = Layout(f"{kind} state dict", {}, {})
    if data is not None and built.convert is not None:
        tensors = built.convert(weights.state)
    elif data is not None:
        how: Any = {"activations": activations, "backbone_only": backbone_only}
        found = recognise(weights.state, built.backbone, name=name, **how)
        heads = seeded(seed, lambda: _heads(found.heads, found.activations))
        settings |= {part: tuple(values.flatten().tolist()) for part, values in found.extras.items()}
        tensors = {f"backbone.{key}": tensor for key, tensor in found.backbone.items()}
        tensors |= {f"{head}.{key}": value for head, own in found.heads.items() for key, value in own.items()}
    final = Preprocessing(**(settings | dict(preprocessing or {})))
    text = built.text if (fresh is not None and data is None) or _part(tensors, "text") else None
    encoder = _encoder(built.backbone, heads, final, channels, text).eval()
    mark = _mark(load, encoder, found.activations)
    if fresh is not None:
        return Adopted(encoder, "fresh weights", final, mark, assumed=found.assumed, activations=found.activations)
    _fill(encoder, tensors, load, weights.state)
    mark = _mark(load, encoder, found.activations)
    ignored = (*found.ignored, *weights.ignored)
    return Adopted(encoder, found.name, final, mark, found.used, ignored, found.assumed, found.activations)


def _side(load: str, state: State, preprocessing: Mapping[str, Any], image_size: int) -> int:
    """Side of the images that a backbone is built for: of a transformer the one that the file's positions are for."""
    if not load.startswith("checkpoint:") or "/" not in load:
        return image_size
    wanted, own = preprocessing.get("size"), look_at(state).side
    if wanted is not None and own not in (None, wanted):
        raise ConfigError(f"size = {wanted}, but the positions in the file are for images of {own} px; leave size out")
    return own or wanted or image_size


def _heads(weights: Mapping[str, State], activations: Mapping[str, str]) -> dict[str, nn.Module]:
    return {output: head_module(own, activations.get(output, "none")) for output, own in weights.items() if own}


def _mark(load: str, encoder: Encoder, activations: Mapping[str, str]) -> str:
    """The fingerprint of an encoder; networks of equal weights that compute something else have another."""
    own = fingerprint(encoder)
    if not load.startswith("checkpoint:"):
        return own
    return hashlib.sha256(f"{own}:{load}:{sorted(activations.items())}".encode()).hexdigest()


def rebuild(
    load: str,
    data: bytes,
    preprocessing: Preprocessing,
    *,
    channels: int,
    image_size: int,
    mark: str,
    activations: Mapping[str, str] | None = None,
) -> Encoder:
    """The encoder of `adopt` from its description and what `checkpoint.weights_bytes` saved of it (or its code).

    Raises:
        ConfigError: as `adopt`, or its fingerprint is no longer ``mark``.
    """
    kind, _, name = load.partition(":")
    if kind in CODE:
        adopted = _adopt_code(load, data, asdict(preprocessing))
        if adopted.fingerprint != mark:
            raise ConfigError(f"load = {load!r}: the code is no longer what was adopted; redo with --force pretrain")
        return adopted.encoder
    state = safetensors.torch.load(data)
    built = LOADERS[kind](name, channels, _side(load, state, asdict(preprocessing), image_size))
    found = {head: own for head in OUTPUTS[1:] if (own := _part(state, head))}
    own_heads = _heads({head: own for head, own in found.items() if head not in built.heads}, activations or {})
    modules = {head: built.heads.get(head) or own_heads[head] for head in found}
    encoder = _encoder(built.backbone, modules, preprocessing, channels, built.text if _part(state, "text") else None)
    load_tensors(encoder, state)
    if _mark(load, encoder, activations or {}) != mark:
        raise ConfigError(f"load = {load!r}: the saved weights are damaged; redo with --force pretrain")
    return encoder.eval()


def _part(state: State, name: str) -> State:
    return {key.removeprefix(f"{name}."): value for key, value in state.items() if key.startswith(f"{name}.")}


def _encoder(
    backbone: nn.Module,
    heads: Mapping[str, nn.Module],
    preprocessing: Preprocessing,
    channels: int,
    text: nn.Module | None,
) -> Encoder:
    mean, std = (channelwise(values, channels) for values in (preprocessing.mean, preprocessing.std))
    how = {"size": preprocessing.size, "interpolation": preprocessing.interpolation}
    return Encoder(backbone, heads, mean, std, text=text, **how)  # type: ignore[arg-type]


def _fill(encoder: Encoder, tensors: State, load: str, state: State) -> None:
    own = encoder.state_dict()
    counters = {key: value for key, value in own.items() if key.endswith("num_batches_tracked")}
    complete = {**counters, **tensors, "mean": own["mean"], "std": own["std"]}
    try:
        load_tensors(encoder, complete)
    except ConfigError as error:
        raise ConfigError(f"{error}; asked for {load}; {look_at(state).sentence()}") from error


def _checkpoint(name: str, channels: int, image_size: int) -> Built:
    """A state dict of a backbone of this package, whose layout is recognised: MoCo, SimCLR style, torchvision, own."""
    backbone = build_backbone(name, channels, image_size)
    fixed = image_size if "/" in name else None
    mean, std = (IMAGENET_MEAN, IMAGENET_STD) if channels == 3 else ((0.5,), (0.5,))
    return Built(backbone, {}, Preprocessing(fixed, "bilinear", mean, std))


def _torchvision(name: str, channels: int, image_size: int) -> Built:
    """A classification model of torchvision: the embedding is what its last linear layer reads."""
    from torchvision import models

    if name not in models.list_models(module=models):
        raise ConfigError(f"torchvision has no classification model {name!r}; see torchvision.models.list_models()")
    network = models.get_model(name, weights=None)
    place, last = [entry for entry in network.named_modules() if isinstance(entry[1], nn.Linear)][-1]
    parent, _, attribute = place.rpartition(".")
    setattr(network.get_submodule(parent), attribute, nn.Identity())
    known = models.get_model_weights(name).DEFAULT.transforms()
    size, interpolation = int(known.crop_size[0]), known.interpolation.value
    preprocessing = Preprocessing(size, interpolation, tuple(known.mean), tuple(known.std))

    def convert(state: State) -> State:
        head = {"weight": "logits.weight", "bias": "logits.bias"}
        return {
            head[key.removeprefix(f"{place}.")] if key.startswith(f"{place}.") else f"backbone.{key}": value
            for key, value in state.items()
        }

    return Built(network, {"logits": last}, preprocessing, convert)


def _timm(name: str, channels: int, image_size: int) -> Built:
    """A model of timm (the timm extra) without its classifier."""
    try:
        import timm
    except ImportError as error:
        raise ConfigError("load = 'timm:...' needs timm: pip install 'encoder-audit[timm]'") from error
    if not timm.is_model(name):
        raise ConfigError(f"timm has no model {name!r}; see timm.list_models()")
    network = timm.create_model(name, pretrained=False, num_classes=0)
    known = timm.data.resolve_model_data_config(network)
    classifier = network.pretrained_cfg.get("classifier")
    dropped = (classifier,) if isinstance(classifier, str) else tuple(classifier or ())
    preprocessing = Preprocessing(known["input_size"][1], known["interpolation"], known["mean"], known["std"])

    def convert(state: State) -> State:
        kept = (key for key in state if not key.startswith(tuple(f"{part}." for part in dropped)))
        return {f"backbone.{key}": state[key] for key in kept}

    return Built(network, {}, preprocessing, convert)


def _open_clip(name: str, channels: int, image_size: int) -> Built:
    """An open_clip model (the clip extra): backbone before, projection after its projection, and its text side."""
    parts = split_tower(name)
    known = parts.preprocessing
    size = known["size"] if isinstance(known["size"], int) else known["size"][0]
    preprocessing = Preprocessing(size, known["interpolation"], tuple(known["mean"]), tuple(known["std"]))

    def convert(state: State) -> State:
        tower = {key.removeprefix("visual."): value for key, value in state.items() if key.startswith("visual.")}
        weights = {f"backbone.tower.{key}": value for key, value in tower.items() if key != "proj"}
        weights |= {f"text.model.{key}": value for key, value in state.items() if not key.startswith("visual.")}
        return weights | ({"projection.weight": tower["proj"].T} if "proj" in tower else {})

    return Built(parts.backbone, {"projection": parts.projection}, preprocessing, convert, parts.text)


def _code(name: str, channels: int, image_size: int) -> Built:
    """Code that takes images (B, C, H, W), float32 in [0, 1], and returns embeddings (B, D), an array or a tensor."""
    raise ConfigError(f"{name!r} is code: it has no architecture to build")


class _Callable(nn.Module):
    """Code as a backbone."""

    def __init__(self, function: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        found = self.function(images)
        if isinstance(found, np.ndarray):
            found = torch.from_numpy(found)
        if not isinstance(found, torch.Tensor):
            raise ShapeError(f"the encoder returned a {type(found).__name__}, expected an array or tensor (B, D)")
        return found.to(images.device)


def _adopt_code(load: str, data: bytes | None, preprocessing: Mapping[str, Any] | None) -> Adopted:
    kind, _, name = load.partition(":")
    settings = {"size": None, "interpolation": "bilinear", "mean": (0.0,), "std": (1.0,)} | dict(preprocessing or {})
    final = Preprocessing(**settings)
    if kind == "torchscript":
        if data is None:
            raise ConfigError("load = 'torchscript' needs weights, the file that torch.jit.save wrote")
        try:
            function: Any = torch.jit.load(io.BytesIO(data), map_location="cpu")
        except RuntimeError as error:
            raise ConfigError(f"not a TorchScript file: {' '.join(str(error).split())[:120]}") from error
        mark = hashlib.sha256(data).hexdigest()
    else:
        function, mark = _imported(name)
    if isinstance(function, nn.Module):
        function = function.eval()
    mean, std = (torch.tensor(values).reshape(1, -1, 1, 1) for values in (final.mean, final.std))
    encoder = Encoder(_Callable(function), {}, mean, std, size=final.size, interpolation=final.interpolation).eval()
    return Adopted(encoder, f"{kind} {name}".strip(), final, mark)


def _imported(name: str) -> tuple[Any, str]:
    """A callable by ``module:function``, and a hash of the file that defines it."""
    module_name, colon, attribute = name.partition(":")
    if not colon:
        raise ConfigError(f"load = 'python:{name}': write python:module:function")
    try:
        module = importlib.import_module(module_name)
        function = getattr(module, attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"load = 'python:{name}': {error}; the module must be importable on every node") from error
    if not callable(function):
        raise ConfigError(f"load = 'python:{name}' is a {type(function).__name__}, not callable")
    source = inspect.getsource(module)
    weights = fingerprint(function) if isinstance(function, nn.Module) else ""
    return function, hashlib.sha256(f"{name}:{source}:{weights}".encode()).hexdigest()


LOADERS: dict[str, Callable[[str, int, int], Built]] = {
    "checkpoint": _checkpoint,
    "torchvision": _torchvision,
    "timm": _timm,
    "open_clip": _open_clip,
    "torchscript": _code,
    "python": _code,
}
CODE = ("torchscript", "python")
"""Kinds that run code of others: they need the flag ``trust_code``."""
