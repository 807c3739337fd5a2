"""Encoders from elsewhere: built by name, filled from a file of weights, with the preprocessing they were trained with.

``kind:name`` says what it is; `LOADERS` is the table of kinds. Files are data: safetensors, or what
``torch.load(weights_only=True)`` accepts. TorchScript and Python callables are code and need an explicit flag.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import safetensors
import safetensors.torch
from torch import nn

from mi_core.checks import ConfigError, check_choice
from mi_core.encoders import build_backbone
from mi_core.encoders.checkpoint import OUTPUTS, Encoder, channelwise, fingerprint, load_tensors, seeded
from mi_core.encoders.clip import activation_note, convert_open_clip, split_tower
from mi_core.encoders.code import code_backbone
from mi_core.encoders.layouts import Layout, recognise
from mi_core.encoders.layouts.files import Weights, read_weights
from mi_core.encoders.layouts.heads import State, head_module
from mi_core.encoders.layouts.looks import look_at
from mi_core.encoders.published import (
    PUBLISHED,
    Preprocessing,
    check_file,
    import_timm,
    split_name,
    torchvision_weights,
)
from mi_core.encoders.soundness import check_answers, check_weights

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Built:
    """A fresh network of some kind: backbone, the heads that its definition has, its own preprocessing."""

    backbone: nn.Module
    heads: Mapping[str, nn.Module]
    preprocessing: Preprocessing
    convert: Callable[[State], State] | None = None
    """Own names of weights for `Encoder`, where the kind defines them; None: `layouts.recognise` sorts them."""
    text: nn.Module | None = None
    """Texts to embeddings, where the kind has such a tower; left out if the file has no weights for it."""
    notes: tuple[str, ...] = ()
    """Remarks for readers of its outputs."""


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
    fresh: int | None = None,
) -> Adopted:
    """Build an encoder from elsewhere, and see that its weights and its answers are finite and of the right shape.

    Args:
        load: ``kind:name``, a kind of `LOADERS`; ``kind:name:tag`` names published weights (`published`).
        data: bytes of the weights file; None only for fresh weights, without the heads that such a file may hold.
        channels: of the images that come.
        image_size: side of the images that come, for kinds that take any size.
        preprocessing: fields of `Preprocessing` to set instead of the encoder's own.
        activations: of heads by output name, names of `layouts.ACTIVATIONS`, where the file does not tell whose it is.
        fresh: a seed of fresh weights for the same architecture, instead of those in the file.

    Raises:
        ConfigError: unknown kind or name, a package that is missing, weights that do not fit or are not finite, code
            without weights, or an encoder that does not answer.
        ShapeError: an answer is not one row per image.
    """
    kind, _, name = load.partition(":")
    check_choice("load", kind, LOADERS)
    if kind in CODE:
        adopted = _adopt_code(load, data, preprocessing or {})
    elif data is None and fresh is None:
        raise ConfigError(f"load = {load!r} needs weights, or a seed of fresh ones")
    elif not name:
        raise ConfigError(f"load = {load!r}: write {kind}:<name of the architecture>")
    elif activations and kind != "checkpoint":
        raise ConfigError(f"load = {load!r} defines its heads itself; leave heads out")
    else:
        adopted = _adopt_weights(load, data, channels, image_size, preprocessing or {}, fresh, activations)
    check_weights(adopted.encoder)
    check_answers(adopted.encoder, channels, image_size)
    return adopted


def _adopt_weights(
    load: str,
    data: bytes | None,
    channels: int,
    image_size: int,
    preprocessing: Mapping[str, Any],
    fresh: int | None,
    activations: Mapping[str, str] | None,
) -> Adopted:
    kind, _, name = load.partition(":")
    if data is not None:
        check_file(load, data)
    seed = 0 if fresh is None else fresh
    weights = Weights({}) if data is None else read_weights(data)
    side = _side(load, weights.state, preprocessing, image_size)
    built: Built = seeded(seed, lambda: _build(kind, name, channels, side))
    layout, tensors, own = Layout(f"{kind} state dict", {}, {}), State(), built.preprocessing
    if data is not None and built.convert is not None:
        tensors = built.convert(weights.state)
    elif data is not None:
        layout = recognise(weights.state, built.backbone, name=name, activations=activations)
        own = own.changed({part: tuple(values.flatten().tolist()) for part, values in layout.extras.items()})
        parts = {"backbone": layout.backbone, **layout.heads}
        tensors = {f"{part}.{key}": value for part, state in parts.items() for key, value in state.items()}
    final = own.changed(preprocessing)
    with_text = data is None or bool(_part(tensors, "text"))
    encoder = seeded(seed, lambda: _encoder(built, tensors, layout.activations, final, channels, with_text=with_text))
    if fresh is None:
        _fill(encoder, tensors, load, weights.state)
        words, used, ignored = layout.name, layout.used, (*layout.ignored, *weights.ignored)
    else:
        words, used, ignored = "fresh weights", "", ()
    words = "; ".join((words, *built.notes))
    mark = _mark(load, encoder, layout.activations)
    return Adopted(encoder, words, final, mark, used, ignored, layout.assumed, layout.activations)


def _side(load: str, state: State, preprocessing: Mapping[str, Any], image_size: int) -> int:
    """Side of the images that a backbone is built for: of a transformer the one that the file's positions are for."""
    if not load.startswith("checkpoint:") or "/" not in load:
        return image_size
    wanted, own = preprocessing.get("size"), look_at(state).side
    if wanted is not None and own not in (None, wanted):
        raise ConfigError(f"size = {wanted}, but the positions in the file are for images of {own} px; leave size out")
    return own or wanted or image_size


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
    state, given = safetensors.torch.load(data), activations or {}
    built = _build(kind, name, channels, _side(load, state, asdict(preprocessing), image_size))
    encoder = _encoder(built, state, given, preprocessing, channels, with_text=bool(_part(state, "text")))
    load_tensors(encoder, state)
    if _mark(load, encoder, given) != mark:
        raise ConfigError(f"load = {load!r}: the saved weights are damaged; redo with --force pretrain")
    return encoder


def _build(kind: str, name: str, channels: int, image_size: int) -> Built:
    """The fresh network of a kind. Raises ConfigError: it has published preprocessing, for colour, and C is not 3."""
    if kind in PUBLISHED and channels != 3:
        raise ConfigError(f"{kind}:{name} takes colour images; set data.channels=3, not {channels}")
    return LOADERS[kind](name, channels, image_size)


def _part(state: State, name: str) -> State:
    return {key.removeprefix(f"{name}."): value for key, value in state.items() if key.startswith(f"{name}.")}


def _fitting(head: nn.Module, own: State) -> nn.Module:
    """A linear head with as many outputs as its weights have, for a classifier with classes of its own."""
    weight = own.get("weight")
    if not isinstance(head, nn.Linear) or weight is None or weight.shape[1:] != head.weight.shape[1:]:
        return head
    return nn.Linear(head.in_features, len(weight), bias=head.bias is not None)


def _encoder(
    built: Built,
    tensors: State,
    activations: Mapping[str, str],
    preprocessing: Preprocessing,
    channels: int,
    *,
    with_text: bool,
) -> Encoder:
    """An encoder in evaluation mode with the heads that its kind defines or its weights ``tensors`` tell."""
    heads: dict[str, nn.Module] = {}
    for output in OUTPUTS[1:]:
        own = _part(tensors, output)
        if output in built.heads:
            heads[output] = _fitting(built.heads[output], own)
        elif own:
            heads[output] = head_module(own, activations.get(output, "none"))
    mean, std = (channelwise(values, channels) for values in (preprocessing.mean, preprocessing.std))
    size, interpolation = preprocessing.size, preprocessing.interpolation
    text = built.text if with_text else None
    return Encoder(built.backbone, heads, mean, std, size=size, interpolation=interpolation, text=text).eval()


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

    architecture, tag = split_name(name)
    torchvision_weights(architecture, tag)
    preprocessing, notes = _published("torchvision", name)
    network = models.get_model(architecture, weights=None, **_arguments(architecture, preprocessing))
    if hasattr(network, "transform_input"):
        network.transform_input = True  # as torchvision does with its weights of these two networks
    linear = [entry for entry in network.named_modules() if isinstance(entry[1], nn.Linear)]
    if not linear:  # a classifier that convolves, averages and only then is linear in nothing
        network.classifier = nn.AdaptiveAvgPool2d(1)
        convert = _renaming("", ("classifier.",))
        return Built(network, {}, preprocessing, convert, notes=(*notes, "no logits: its classifier convolves"))
    place, last = linear[-1]
    network.set_submodule(place, nn.Identity())
    convert = _renaming(f"{place}.", _AUXILIARY if hasattr(network, "transform_input") else ())
    return Built(network, {"logits": last}, preprocessing, convert, notes=notes)


_AUXILIARY = ("aux1.", "aux2.", "AuxLogits.")  # classifiers that torchvision's Inception networks have in training


def _arguments(architecture: str, preprocessing: Preprocessing) -> dict[str, Any]:
    """Arguments of torchvision's builder, where its own weights need other ones than the default."""
    if architecture.startswith("vit_"):
        return {"image_size": preprocessing.size}
    return {"aux_logits": False, "init_weights": True} if architecture in ("googlenet", "inception_v3") else {}


def _renaming(logits: str, dropped: tuple[str, ...]) -> Callable[[State], State]:
    """Own names of weights: those under ``logits`` are the classifier's, those under ``dropped`` are left out."""

    def convert(state: State) -> State:
        kept = {key: value for key, value in state.items() if not key.startswith(dropped)}
        return {
            f"logits.{key.removeprefix(logits)}" if logits and key.startswith(logits) else f"backbone.{key}": value
            for key, value in kept.items()
        }

    return convert


def _published(kind: str, name: str) -> tuple[Preprocessing, tuple[str, ...]]:
    """Preprocessing that is published for a name, and what has to be said about it."""
    entry = PUBLISHED[kind](*split_name(name))
    return entry.preprocessing, ((f"preprocessing {entry.note}",) if entry.note else ())


def _timm(name: str, channels: int, image_size: int) -> Built:
    """A model of timm (the timm extra) without its classifier."""
    preprocessing, notes = _published("timm", name)
    try:
        network = import_timm().create_model(name, pretrained=False, num_classes=0)
    except Exception as error:
        raise ConfigError(f"timm cannot build {name}: {' '.join(str(error).split())[:160]}") from error
    classifier = network.pretrained_cfg.get("classifier")
    parts = (classifier,) if isinstance(classifier, str) else tuple(classifier or ())
    convert, own = _renaming("", tuple(f"{part}." for part in parts)), network.state_dict().keys()
    beside = tuple(f"{part.rpartition('.')[0]}." for part in parts if "." in part)

    def without_head(state: State) -> State:  # some heads hold a norm of their own, which goes with the classifier
        return convert({key: value for key, value in state.items() if key in own or not key.startswith(beside)})

    return Built(network, {}, preprocessing, without_head, notes=notes)


def _open_clip(name: str, channels: int, image_size: int) -> Built:
    """An open_clip model (the clip extra): backbone before, projection after its projection, and its text side."""
    architecture, tag = split_name(name)
    preprocessing, notes = _published("open_clip", name)
    activation = activation_note(architecture, tag)
    parts = split_tower(architecture)
    return Built(
        parts.backbone,
        {"projection": parts.projection},
        preprocessing,
        lambda state: convert_open_clip(state, parts, architecture),
        parts.text,
        (*notes, *([activation] if activation else []), *parts.notes),
    )


def _code(name: str, channels: int, image_size: int) -> Built:
    """Code of others: images (B, C, H, W) float32 in [0, 1], and returns embeddings (B, D), an array or a tensor."""
    raise ConfigError(f"{name!r} is code: it has no architecture to build")


def _adopt_code(load: str, data: bytes | None, preprocessing: Mapping[str, Any]) -> Adopted:
    final = Preprocessing(None, "bilinear", (0.0,), (1.0,)).changed(preprocessing)
    backbone, mark = code_backbone(load, data)
    mean, std = (channelwise(values, len(values)) for values in (final.mean, final.std))
    encoder = Encoder(backbone, {}, mean, std, size=final.size, interpolation=final.interpolation).eval()
    return Adopted(encoder, load.replace(":", " ", 1), final, mark)


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
