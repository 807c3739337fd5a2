"""Fresh networks of every kind of encoder from elsewhere, each with the preprocessing it was trained with.

``kind:name`` says what it is; `LOADERS` is the table of kinds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from mi_core.adoption.code import OnnxGraph
from mi_core.adoption.layouts.names import State
from mi_core.adoption.model_folder import CONTENTS, Definition, Read, definition, folder_kind, json_of, unpacked
from mi_core.adoption.published import (
    PUBLISHED,
    Preprocessing,
    import_timm,
    open_clip_preprocessing,
    open_clip_tags,
    split_name,
    timm_preprocessing,
    torchvision_weights,
)
from mi_core.adoption.transformers_models import is_of_captions, preprocessing_of, split_model, weights_of
from mi_core.adoption.weight_sources import read_weights_of
from mi_core.checks import ConfigError
from mi_core.encoders import build_backbone
from mi_core.encoders.clip import OpenCLIPText, SplitTower, import_open_clip, split_tower

USUAL_SIDE = 224  # of images, where nobody says it
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
    found = PUBLISHED["torchvision"](architecture, tag)
    preprocessing, notes = found.preprocessing, found.notes()
    own: dict[str, Any] = {"image_size": preprocessing.size} if architecture.startswith("vit_") else {}
    if architecture in ("googlenet", "inception_v3"):
        own = {"aux_logits": False, "init_weights": True}
    network = models.get_model(architecture, weights=None, **own)
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


def _renaming(logits: str, dropped: tuple[str, ...]) -> Callable[[State], State]:
    """Own names of weights: those under ``logits`` are the classifier's, those under ``dropped`` are left out."""

    def convert(state: State) -> State:
        kept = {key: value for key, value in state.items() if not key.startswith(dropped)}
        return {
            f"logits.{key.removeprefix(logits)}" if logits and key.startswith(logits) else f"backbone.{key}": value
            for key, value in kept.items()
        }

    return convert


def _timm(name: str, channels: int, image_size: int) -> Built:
    """A model of timm (the timm extra) without its classifier."""
    found, activation = PUBLISHED["timm"](*split_name(name)), timm_activation_note(name)
    return _of_timm(name, {}, found.preprocessing, found.notes(activation))


def _of_timm(name: str, settings: Mapping[str, Any], preprocessing: Preprocessing, notes: tuple[str, ...]) -> Built:
    try:
        network = import_timm().create_model(name, pretrained=False, num_classes=0, **settings)
    except Exception as error:
        raise ConfigError(f"timm cannot build {name}: {' '.join(str(error).split())[:160]}") from error
    classifier = network.pretrained_cfg.get("classifier")
    parts = (classifier,) if isinstance(classifier, str) else tuple(classifier or ())
    convert, own = _renaming("", tuple(f"{part}." for part in parts)), network.state_dict().keys()
    beside = tuple(f"{part.rpartition('.')[0]}." for part in parts if "." in part)

    def without_head(state: State) -> State:  # some heads hold a norm of their own, which goes with the classifier
        named = _with_names_of_timm(state, own, name)
        return convert({key: value for key, value in named.items() if key in own or not key.startswith(beside)})

    return Built(network, {}, preprocessing, without_head, notes=notes)


def _with_names_of_timm(state: State, own: Collection[str], name: str) -> State:
    """DINOv3 with Meta's names as timm names it; other weights as they are."""
    if "rope_embed.periods" not in state or "reg_token" not in own:
        return state
    renamed: State = {}
    for key, value in state.items():
        if key.startswith(("rope_embed.", "local_cls_norm.", "mask_token")) or key.endswith(".bias_mask"):
            continue  # computed, or of the training
        if key.endswith(".qkv.bias"):
            query, _, values = value.chunk(3)
            place = key.removesuffix("qkv.bias")
            if f"{place}q_bias" in own:
                renamed |= {f"{place}q_bias": query, f"{place}v_bias": values}
            elif bool(query.any()) or bool(values.any()):
                raise ConfigError(f"{key} is not 0, and {name} has no such biases; write load: timm:{name}_qkvb")
            continue
        renamed[re.sub(r"\.ls([12])\.gamma$", r".gamma_\1", key).replace("storage_tokens", "reg_token")] = value
    return renamed


def _open_clip(name: str, channels: int, image_size: int) -> Built:
    """An open_clip model (the clip extra): backbone before, projection after its projection, and its text side."""
    architecture, tag = split_name(name)
    found, activation = PUBLISHED["open_clip"](architecture, tag), activation_note(architecture, tag)
    return _of_open_clip(architecture, found.preprocessing, found.notes(activation))


def _of_open_clip(architecture: str, preprocessing: Preprocessing, notes: tuple[str, ...]) -> Built:
    parts = split_tower(architecture)
    return Built(
        parts.backbone,
        {"projection": parts.projection},
        preprocessing,
        lambda state: convert_open_clip(state, parts, architecture),
        parts.text,
        (*notes, *parts.notes),
    )


def _transformers(name: str, channels: int, image_size: int) -> Built:
    """An image encoder of transformers: a repository of the Hub, or a folder (the hub extra)."""
    raise ConfigError(f"transformers:{name} is defined by its folder; give that as weights")


def _transformers_folder(files: Definition) -> Built:
    (backbone, heads, text, more), (preprocessing, notes) = split_model(files), preprocessing_of(files)
    return Built(backbone, heads, preprocessing, lambda state: weights_of(files, state), text, (*notes, *more))


def _open_clip_folder(files: Definition) -> Built:
    found = open_clip_preprocessing(json_of(files, "open_clip_config.json"))
    with unpacked(files) as place:
        return _of_open_clip(f"local-dir:{place}", found.preprocessing, found.notes())


def _timm_folder(files: Definition) -> Built:
    config = json_of(files, "config.json")
    found, own = timm_preprocessing(config), config.get("pretrained_cfg", config)
    settings = {"pretrained_cfg": own, **config.get("model_args", {})}
    return _of_timm(str(config["architecture"]), settings, found.preprocessing, found.notes())


def usual_settings(load: str, weights: str | None, size: int | None, read: Read) -> tuple[bool, dict[str, Any]]:
    """Training by captions (bool), and the way of images to an encoder, as the data section of a config has it.

    Args:
        load: ``kind:name``; anything else: the encoder has no name.
        weights, read: as `weight_sources.read_weights_of`.
        size: side of the images; None: the published one, else `USUAL_SIDE`.

    Returns:
        Whether it learned from captions; and fields of the data section, none where a config takes them from the name.

    Raises:
        ConfigError: there is no such folder or model, or its images are not square.
    """
    (kind, _, name), folder = load.partition(":"), folder_kind(load)
    data = read_weights_of(load, weights, read, bare=True).content if folder or kind == "onnx" else None
    files = definition(data)
    if size is None and kind == "onnx" and data is not None:
        size = OnnxGraph(data, name).side
    captioned = load.startswith("open_clip:") or (load.startswith("transformers:") and is_of_captions(files))
    if size is not None:
        return captioned, {"image_size": size}
    if folder == "transformers":
        return captioned, preprocessing_of(files)[0].decoding()
    if folder is not None:
        rules = {"open_clip": open_clip_preprocessing, "timm": timm_preprocessing}[folder]
        return captioned, rules(json_of(files, CONTENTS[folder].config)).preprocessing.decoding()
    return captioned, {} if kind in PUBLISHED else {"image_size": USUAL_SIDE}


FOLDERS: dict[str, Callable[[Definition], Built]] = {
    "transformers": _transformers_folder,
    "open_clip": _open_clip_folder,
    "timm": _timm_folder,
}
"""Builders of models that are published as a folder, by kind."""


def _code(name: str, channels: int, image_size: int) -> Built:
    """Code of others, or an ONNX graph: images (B, C, H, W) float32 in [0, 1] to embeddings (B, D), array or tensor."""
    raise ConfigError(f"{name!r} is code: it has no architecture to build")


LOADERS: dict[str, Callable[[str, int, int], Built]] = {
    "checkpoint": _checkpoint,
    "torchvision": _torchvision,
    "timm": _timm,
    "open_clip": _open_clip,
    "transformers": _transformers,
    "torchscript": _code,
    "python": _code,
    "onnx": _code,
}
CODE = ("torchscript", "python")
"""Kinds that run code of others: they need the flag ``trust_code``."""
WHOLE = (*CODE, "onnx")
"""Kinds that bring a network with its weights, so that there is none with fresh ones."""


_OPENAI = ("input_resolution", "context_length", "vocab_size")  # numbers beside the weights in OpenAI's own files
_QUICK = "-quickgelu"


def convert_open_clip(state: State, parts: SplitTower, name: str) -> State:
    """Weights of a whole model, of open_clip's or of OpenAI's own names, for an encoder of its parts.

    Raises:
        ConfigError: they are OpenAI's own, which need QuickGELU, and the architecture has GELU.
    """
    twin = _twin(name)
    if all(part in state for part in _OPENAI) and twin is not None and not name.endswith(_QUICK):
        raise ConfigError(f"the file is OpenAI's own, whose weights need QuickGELU: set load = 'open_clip:{twin}'")
    state = {key: value for key, value in state.items() if key not in _OPENAI}
    tower = {key.removeprefix("visual."): value for key, value in state.items() if key.startswith("visual.")}
    if parts.projection_key == "proj" and "proj" in tower:
        tower["proj.weight"] = tower.pop("proj").T
    weights = _text_weights(state, parts.text) if parts.text is not None else {}
    for place, value in tower.items():
        own = parts.projection_key and place.startswith(f"{parts.projection_key}.")
        name = f"projection{place.removeprefix(parts.projection_key)}" if own else f"backbone.tower.{place}"
        weights[name] = value
    return weights


def _text_weights(state: State, text: OpenCLIPText) -> State:
    """Weights of the text side under the names that the model has, whichever of open_clip's two they come in."""
    own = text.model.state_dict()
    rest = {key: value for key, value in state.items() if not key.startswith("visual.")}
    if "positional_embedding" in rest and "positional_embedding" not in own:
        rest = import_open_clip().model.convert_to_custom_text_state_dict(rest)
    scalars = {key: value.reshape(own[key].shape) for key, value in rest.items() if key in own and value.numel() == 1}
    return {f"text.model.{key}": value for key, value in (rest | scalars).items()}


def activation_note(name: str, tag: str) -> str:
    """A remark that the file's activation cannot be told; empty where it is known or makes no difference.

    Raises:
        ConfigError: the published weights of this tag have the other activation; the architecture to write is named.
    """
    twin = _twin(name)
    if twin is None:
        return ""
    quick = name.endswith(_QUICK)
    of_quick = [known for known, entry in open_clip_tags(name.removesuffix(_QUICK)).items() if entry.get("quick_gelu")]
    if tag:
        if (tag in of_quick) != quick:
            raise ConfigError(f"the weights {tag} of {name} need load = 'open_clip:{twin}:{tag}'")
        return ""
    return _activation_in_words(of_quick, f"open_clip:{twin}")


def timm_activation_note(name: str) -> str:
    """The same of timm's names, which may end in a tag: timm itself takes weights with the other activation."""
    timm, plain = import_timm(), name.partition(".")[0].replace("_quickgelu", "")
    quick = plain.replace("_clip_", "_clip_quickgelu_")
    if quick == plain or not timm.is_model(quick) or not timm.is_model(plain):
        return ""
    of_quick = [known.partition(".")[2] for known in timm.list_pretrained(f"{quick}.*")]
    return _activation_in_words(of_quick, f"timm:{quick if name.partition('.')[0] == plain else plain}")


def _activation_in_words(of_quick: list[str], twin: str) -> str:
    """The activation that a name has, the weights that have the other, by their tags, and the name for these."""
    own, other, which = ("GELU", "QuickGELU", ", ".join(of_quick))
    if "quickgelu" not in twin:
        own, other, which = "QuickGELU", "GELU", "all others"
    return f"taken to have {own}, which no file tells; weights with {other} ({which}) need {twin}"


def _twin(name: str) -> str | None:
    """The architecture with the other activation, where open_clip has one."""
    twin = name.removesuffix(_QUICK) if name.endswith(_QUICK) else f"{name}{_QUICK}"
    return twin if twin in import_open_clip().list_models() else None
