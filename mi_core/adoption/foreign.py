"""Encoders from elsewhere: built by name, filled from a file of weights, with the preprocessing they were trained with.

``kind:name`` says what it is; `builders.LOADERS` is the table of kinds. Files are data: safetensors, or what
``torch.load(weights_only=True)`` accepts. TorchScript and Python callables are code and need an explicit flag.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import safetensors
import safetensors.torch
from torch import nn

from mi_core.adoption.builders import FOLDERS, LOADERS, WHOLE, Built
from mi_core.adoption.code import OnnxGraph, code_backbone, file_mark
from mi_core.adoption.layouts import Layout, inner, listed, recognise
from mi_core.adoption.layouts.files import Weights, read_weights
from mi_core.adoption.layouts.heads import head_module
from mi_core.adoption.layouts.looks import look_at
from mi_core.adoption.layouts.names import State, released_names
from mi_core.adoption.model_folder import CONTENTS, Definition, definition, folder_kind, without_weights
from mi_core.adoption.published import PUBLISHED, Preprocessing, check_file, import_timm
from mi_core.adoption.soundness import Answers, check_answers, check_weights
from mi_core.checks import ConfigError, check_choice
from mi_core.encoders.checkpoint import OUTPUTS, Encoder, channelwise, fingerprint_of, load_tensors, seeded

_DECODER = re.compile(r"decoder_|mask_token$|predictor\.(predictor_|mask_token$)")


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
        files: the small files that define it, where it is published as a folder.
        answers: what trying it out has shown of them.
    """

    encoder: Encoder
    layout: str
    preprocessing: Preprocessing
    fingerprint: str
    used: str = ""
    ignored: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    activations: Mapping[str, str] = field(default_factory=dict)
    files: Definition = field(default_factory=dict, repr=False)
    answers: Answers = field(default_factory=Answers)


def adopt(
    load: str,
    data: bytes | None,
    *,
    channels: int,
    image_size: int,
    preprocessing: Mapping[str, Any] | None = None,
    activations: Mapping[str, str] | None = None,
    fresh: int | None = None,
    weights_key: str | None = None,
) -> Adopted:
    """Build an encoder from elsewhere, and see that its weights and its answers are finite and of the right shape.

    Args:
        load: ``kind:name``, a kind of `LOADERS`; ``kind:name:tag`` names published weights (`published`).
        data: bytes of the weights file, or of a folder (`model_folder.packed`); None only for fresh weights, without
            the heads that such a file may hold.
        channels: of the images that come.
        image_size: side of the images that come, for kinds that take any size.
        preprocessing: fields of `Preprocessing` to set instead of the encoder's own.
        activations: of heads by output name, names of `layouts.ACTIVATIONS`, where the file does not tell whose it is.
        fresh: a seed of fresh weights for the same architecture, instead of those in the file.
        weights_key: of the entry of the file that holds the weights, as `read_weights` takes it; None: the usual one.

    Raises:
        ConfigError: unknown kind or name, a package that is missing, weights that do not fit or are not finite, code
            without weights, or an encoder that does not answer.
        ShapeError: an answer is not one row per image.
    """
    kind, _, name = load.partition(":")
    check_choice("load", kind, LOADERS)
    if kind in WHOLE:
        adopted = _adopt_whole(load, data, preprocessing or {}, channels)
    elif data is None and fresh is None:
        raise ConfigError(f"load = {load!r} needs weights, or a seed of fresh ones")
    elif not name and folder_kind(load) is None:
        raise ConfigError(f"load = {load!r}: write {kind}:<name of the architecture>")
    elif activations and kind != "checkpoint":
        raise ConfigError(f"load = {load!r} defines its heads itself; leave heads out")
    else:
        adopted = _adopt_weights(load, data, channels, image_size, preprocessing or {}, fresh, activations, weights_key)
    check_weights(adopted.encoder)
    return replace(adopted, answers=check_answers(adopted.encoder, channels, image_size))


def untrained(
    load: str, adopted: Adopted, *, channels: int, image_size: int, preprocessing: Mapping[str, Any]
) -> Encoder | None:
    """The same network as an adopted encoder with fresh weights, for a test that it works; None: it is code of others.

    Args:
        load, channels, image_size, preprocessing: as for `adopt`.
        adopted: what that returned.
    """
    if load.partition(":")[0] in WHOLE:
        return None
    bare, side = without_weights(adopted.files), adopted.encoder.size or image_size
    return adopt(load, bare, channels=channels, image_size=side, preprocessing=preprocessing, fresh=0).encoder


def _adopt_weights(
    load: str,
    data: bytes | None,
    channels: int,
    image_size: int,
    preprocessing: Mapping[str, Any],
    fresh: int | None,
    activations: Mapping[str, str] | None,
    weights_key: str | None,
) -> Adopted:
    kind, _, name = load.partition(":")
    if data is not None:
        check_file(load, data)
    seed, files = 0 if fresh is None else fresh, definition(data)
    bare = data is None or (bool(files) and fresh is not None)
    weights = Weights({}) if bare else read_weights(data or b"", weights_key)
    weights = replace(weights, state=released_names(weights.state)) if kind == "checkpoint" else weights
    side = _side(load, weights.state, preprocessing, image_size)
    built: Built = seeded(seed, lambda: _build(load, channels, side, files))
    layout, tensors, own = Layout(f"{kind} state dict", {}, {}), State(), built.preprocessing
    assumed: tuple[str, ...] = ()
    if not bare and built.convert is not None:
        if kind in ("torchvision", "timm"):
            state, beside = inner(weights.state, built.backbone.state_dict())
            unread = {key: "a decoder, which is no part of the encoder" for key in state if _DECODER.match(key)}
            state = {key: one for key, one in state.items() if key not in unread}
            weights = replace(weights, state=state, ignored=(*weights.ignored, *beside, *listed(unread)))
        tensors = built.convert(weights.state)
    elif not bare:
        layout = recognise(weights.state, built.backbone, name=name, activations=activations)
        own = own.changed({part: tuple(values.flatten().tolist()) for part, values in layout.extras.items()})
        parts = {"backbone": layout.backbone, **layout.heads}
        tensors = {f"{part}.{key}": value for part, state in parts.items() for key, value in state.items()}
        if not layout.extras and not {"mean", "std"} <= preprocessing.keys():
            words = replace(own, size=None).words().removeprefix("any size, ")
            assumed = (f"normalisation assumed: {own.interpolation}, {words}",)
    final = own.changed(preprocessing)
    with_text = bare or bool(_part(tensors, "text"))
    encoder = seeded(seed, lambda: _encoder(built, tensors, layout.activations, final, channels, with_text=with_text))
    if fresh is None:
        _fill(encoder, tensors, load, weights.state)
        words, used, ignored = layout.name, layout.used, (*layout.ignored, *weights.ignored)
    else:
        words, used, ignored = "fresh weights", "", ()
    words = "; ".join((words, *built.notes))
    mark = _mark(load, encoder.state_dict(), layout.activations, files)
    return Adopted(encoder, words, final, mark, used, ignored, (*layout.assumed, *assumed), layout.activations, files)


def _side(load: str, state: State, preprocessing: Mapping[str, Any], image_size: int) -> int:
    """Side of the images that a backbone is built for: of a transformer the one that the file's positions are for."""
    if not load.startswith("checkpoint:") or "/" not in load:
        return image_size
    wanted, own = preprocessing.get("size"), look_at(state).side
    if wanted is not None and own not in (None, wanted):
        raise ConfigError(f"size = {wanted}, but the positions in the file are for images of {own} px; leave size out")
    return own or wanted or image_size


def saved_mark(load: str, data: bytes, activations: Mapping[str, str]) -> str | None:
    """The fingerprint of an encoder of `adopt`, from what was saved of it alone; no network is built.

    Args:
        load: as `adopt` takes it.
        data: as `rebuild` takes it.
        activations: of its heads by output name.

    Returns:
        64 hex digits; None: a Python function, of which nothing is saved.

    Raises:
        safetensors.SafetensorError: these are no weights.
    """
    kind = load.partition(":")[0]
    if kind in WHOLE:
        return None if kind == "python" else file_mark(load, data)
    return _mark(load, safetensors.torch.load(data), activations, definition(data))


def _mark(load: str, state: State, activations: Mapping[str, str], files: Definition) -> str:
    """The fingerprint of an encoder; networks of equal weights that compute something else have another."""
    own, folder = fingerprint_of(state), folder_kind(load)
    if folder is not None:
        config = hashlib.sha256(files[CONTENTS[folder].config]).hexdigest()  # equal weights may serve two networks
        return hashlib.sha256(f"{own}:{folder}:{config}".encode()).hexdigest()
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
    """The encoder of `adopt` from its description and what was saved of it: its code, or weights as safetensors.

    Weights are those of `checkpoint.weights_bytes`, `with_definition` of its files.

    Raises:
        ConfigError: as `adopt`, or its fingerprint is no longer ``mark``.
    """
    if load.partition(":")[0] in WHOLE:
        adopted = _adopt_whole(load, data, asdict(preprocessing), channels)
        if adopted.fingerprint != mark:
            raise ConfigError(f"load = {load!r}: the code is no longer what was adopted; redo with --force pretrain")
        return adopted.encoder
    state, given, files = safetensors.torch.load(data), activations or {}, definition(data)
    built = _build(load, channels, _side(load, state, asdict(preprocessing), image_size), files)
    encoder = _encoder(built, state, given, preprocessing, channels, with_text=bool(_part(state, "text")))
    load_tensors(encoder, state)
    if _mark(load, encoder.state_dict(), given, files) != mark:
        raise ConfigError(f"load = {load!r}: the saved weights are damaged; redo with --force pretrain")
    return encoder


def _build(load: str, channels: int, image_size: int, files: Definition) -> Built:
    """The fresh network of a kind. Raises ConfigError: it has published preprocessing, for colour, and C is not 3."""
    (kind, _, name), folder = load.partition(":"), folder_kind(load)
    if (folder or kind in PUBLISHED) and channels != 3:
        raise ConfigError(f"{load} takes colour images; set data.channels=3, not {channels}")
    if folder is not None:
        if not files:
            raise ConfigError(f"{load} is published as a folder, and this file is none; give the folder")
        return FOLDERS[folder](files)
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
    """Load weights, with the normalisation and the counters of batches that older files lack."""
    own = encoder.state_dict()
    counters = {key: value for key, value in own.items() if key.endswith("num_batches_tracked")}
    try:
        load_tensors(encoder, {**counters, **tensors, "mean": own["mean"], "std": own["std"]})
    except ConfigError as error:
        look = look_at(state)
        look = replace(look, load=_of_timm_for(load, look.side) or look.load)
        raise ConfigError(f"{error}; asked for {load}; {look.sentence()}") from error


def _of_timm_for(load: str, side: int | None) -> str | None:
    """The name that timm has for the same network and images of another side; None: it has none."""
    bare = load.partition(".")[0]
    known = re.sub(r"_\d+$", f"_{side}", bare)
    return known if known != bare and bare[:5] == "timm:" and import_timm().is_model(known[5:]) else None


def _adopt_whole(load: str, data: bytes | None, preprocessing: Mapping[str, Any], channels: int) -> Adopted:
    backbone, mark = code_backbone(load, data)
    final = Preprocessing(None, "bilinear", (0.0,), (1.0,)).changed(preprocessing)
    if isinstance(graph := backbone.function, OnnxGraph):
        if not {"mean", "std"} <= preprocessing.keys():
            raise ConfigError(
                "an ONNX file does not tell how images are normalised; set mean and std, 0 and 1 if it does that itself"
            )
        if graph.channels not in (None, channels):
            raise ConfigError(f"the graph takes {graph.channels} channels, and images have {channels}; set channels")
        if None not in (graph.side, final.size) and graph.side != final.size:
            raise ConfigError(f"size = {final.size}, but the graph takes images of {graph.side} px; leave size out")
        final = replace(final, size=graph.side or final.size)
    mean, std = (channelwise(values, len(values)) for values in (final.mean, final.std))
    encoder = Encoder(backbone, {}, mean, std, size=final.size, interpolation=final.interpolation).eval()
    return Adopted(encoder, load.replace(":", " ", 1), final, mark)
