"""Recognises whose checkpoint a file of weights is: which keys are the backbone, which the heads, which neither.

The official MoCo v1, v2 and v3 layouts, SimCLR-style ``encoder.*`` and ``backbone.*`` state dicts (also where the
backbone is a sequence of layers), timm's and torchvision's names, and the checkpoints this package writes. The naming
whose keys fit the wanted backbone best is taken; everything it leaves over is said.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import nn

from mi_core.checks import ConfigError

State = dict[str, torch.Tensor]

_CONTAINERS = ("state_dict", "model_state_dict", "model", "net", "network", "student", "teacher")
_WRAPPERS = ("module.", "_orig_mod.", "model.")
# prefix of the backbone: (what it tells, heads by output name: prefixes, the first that is there)
_HEADS = ("projection.", "projection_head.", "projector.", "proj_head.", "g.")
_CLASSIFIERS = ("fc.", "classifier.1.", "heads.head.", "head.")
_PREFIXES: dict[str, tuple[str, dict[str, tuple[str, ...]]]] = {
    "encoder_q.": ("MoCo v1 or v2", {"projection": ("encoder_q.fc.",)}),
    "encoder_q.net.": ("MoCo CIFAR demo", {"projection": ("encoder_q.net.9.",)}),
    "base_encoder.": (
        "MoCo v3",
        {"projection": ("base_encoder.fc.", "base_encoder.head."), "prediction": ("predictor.",)},
    ),
    "backbone.": (
        "backbone.*",
        {"projection": (*_HEADS, "backbone.fc."), "prediction": ("prediction.", "predictor."), "logits": ("logits.",)},
    ),
    "encoder.": ("encoder.*", {"projection": (*_HEADS, "encoder.fc."), "logits": ("fc.",)}),
    "f.": ("f.*", {"projection": _HEADS}),
    "": ("plain", {"logits": _CLASSIFIERS}),
}
_IGNORED = re.compile(
    r"(encoder_k|momentum_encoder|queue|queue_ptr|pointer|steps|key_backbone|key_projection|classifier|mean|std)(\.|$)"
)
_RESNET = ("conv1", "bn1", "relu", "maxpool", "layer1", "layer2", "layer3", "layer4", "avgpool")


@dataclass(frozen=True)
class Layout:
    """Weights sorted by what they are.

    Args:
        name: the layout in words.
        backbone: weights by the names that the wanted backbone has.
        heads: weights of each head by output name, under the indices of its layers.
        extras: ``mean`` and ``std`` of the normalisation, where the checkpoint holds them (this package's do).
    """

    name: str
    backbone: State
    heads: dict[str, State]
    extras: State = field(default_factory=dict)


def unwrap(loaded: object) -> State:
    """The tensors of a loaded checkpoint, whatever container they are in.

    Raises:
        ConfigError: there is no dictionary of tensors.
    """
    while isinstance(loaded, Mapping):
        inner = [loaded[name] for name in _CONTAINERS if isinstance(loaded.get(name), Mapping)]
        if not inner:
            break
        loaded = inner[0]
    if not isinstance(loaded, Mapping):
        raise ConfigError(f"the file holds a {type(loaded).__name__}, not a state dict")
    state = {str(name): tensor for name, tensor in loaded.items() if isinstance(tensor, torch.Tensor)}
    if not state:
        raise ConfigError(f"the file holds no tensor; its keys are {sorted(map(str, loaded))[:5]}")
    for wrapper in _WRAPPERS:
        if all(name.startswith(wrapper) for name in state):
            state = {name.removeprefix(wrapper): tensor for name, tensor in state.items()}
    return state


def recognise(state: State, backbone: nn.Module) -> Layout:
    """Sort the weights of a checkpoint for a backbone.

    Args:
        state: from `unwrap`.
        backbone: of the wanted architecture; its weights are not touched.

    Raises:
        ConfigError: no naming fits; the message tells the closest one with its first missing and unexpected keys
            and shapes that differ.

    Example:
        >>> layer = nn.Linear(2, 3)
        >>> recognise({"backbone.weight": layer.weight, "backbone.bias": layer.bias}, layer).name
        'backbone.* state dict'
    """
    wanted = backbone.state_dict()
    found = [
        (len(wanted.keys() & names.keys()), prefix, naming, names)
        for prefix in _PREFIXES
        if any(name.startswith(prefix) for name in state)
        for naming, rename in _NAMINGS.items()
        for names in [_renamed(state, prefix, rename)]
    ]
    _, prefix, naming, names = max(found, key=lambda entry: entry[0])
    words, head_prefixes = _PREFIXES[prefix]
    heads: dict[str, State] = {}
    used = {names[name] for name in names if name in wanted}
    for output, prefixes in head_prefixes.items():
        chosen = next((start for start in prefixes if any(key.startswith(start) for key in state)), None)
        if chosen is not None:
            keys = [key for key in state if key.startswith(chosen) and key not in used]
            if keys and not (output == "logits" and heads):
                heads[output] = _layers({key.removeprefix(chosen): state[key] for key in keys})
                used |= set(keys)
    kind = "checkpoint" if words.startswith("MoCo") else "state dict"
    if words == "MoCo v1 or v2" and "projection" in heads:
        words = "MoCo v1" if "2.weight" not in heads["projection"] else "MoCo v2"
    layout = f"{words} {kind}" + (f" with {naming} names" if naming else "")
    left = [key for key in state if key not in used]
    own = {name: state[key] for name, key in names.items() if name in wanted}
    _check_fit(layout, own, wanted, left, prefix)
    return Layout(layout, own, heads, {name: state[name] for name in ("mean", "std") if name in left})


def head_module(state: State) -> nn.Sequential:
    """A head of the layers that the names and shapes of its weights tell, ReLU where a number has no weights.

    Args:
        state: weights under the indices of the layers, as in `Layout.heads`.

    Raises:
        ConfigError: a layer is neither linear nor a batch norm.

    Example:
        >>> head_module({"0.weight": torch.ones(3, 2), "2.weight": torch.ones(1, 3), "2.bias": torch.ones(1)})
        Sequential(
          (0): Linear(in_features=2, out_features=3, bias=False)
          (1): ReLU(inplace=True)
          (2): Linear(in_features=3, out_features=1, bias=True)
        )
    """
    layers: list[nn.Module] = []
    last = max(int(name.split(".")[0]) for name in state)
    for index in range(last + 1):
        own = {name.partition(".")[2]: tensor for name, tensor in state.items() if name.startswith(f"{index}.")}
        if not own:
            layers.append(nn.ReLU(inplace=True))
        elif "running_mean" in own:
            layers.append(nn.BatchNorm1d(len(own["running_mean"]), affine="weight" in own))
        elif "weight" in own and own["weight"].ndim == 2:
            layers.append(nn.Linear(own["weight"].shape[1], own["weight"].shape[0], bias="bias" in own))
        else:
            raise ConfigError(f"layer {index} of the head holds {sorted(own)}, neither linear nor batch norm")
    return nn.Sequential(*layers)


def torchvision_vit_key(name: str) -> str:
    """timm's name of a weight of a vision transformer as torchvision calls it.

    Example:
        >>> torchvision_vit_key("blocks.3.attn.qkv.weight")
        'encoder.layers.encoder_layer_3.self_attention.in_proj_weight'
    """
    name = re.sub(r"^blocks\.(\d+)\.", r"encoder.layers.encoder_layer_\1.", name)
    for old, new in _VIT_NAMES:
        name = re.sub(old, new, name)
    return name


_VIT_NAMES = (
    (r"^cls_token$", "class_token"),
    (r"^pos_embed$", "encoder.pos_embedding"),
    (r"^patch_embed\.proj\.", "conv_proj."),
    (r"^norm\.", "encoder.ln."),
    (r"\.norm([12])\.", r".ln_\1."),
    (r"\.attn\.qkv\.(weight|bias)$", r".self_attention.in_proj_\1"),
    (r"\.attn\.proj\.", ".self_attention.out_proj."),
    (r"\.mlp\.fc1\.", ".mlp.0."),
    (r"\.mlp\.fc2\.", ".mlp.3."),
)


def _sequence_key(names: Iterable[str]) -> Callable[[str], str]:
    """Names of a ResNet whose layers stand in a sequence: numbers to names."""
    by_number = {str(number): name for number, name in enumerate(names)}

    def rename(name: str) -> str:
        number, _, rest = name.partition(".")
        return f"{by_number[number]}.{rest}" if number in by_number else name

    return rename


_NAMINGS: dict[str, Callable[[str], str]] = {
    "": lambda name: name,
    "timm": torchvision_vit_key,
    "numbered": _sequence_key(_RESNET),
    "numbered (no max-pooling)": _sequence_key(name for name in _RESNET if name != "maxpool"),
}


def _renamed(state: State, prefix: str, rename: Callable[[str], str]) -> dict[str, str]:
    """New name to key of the file, for the keys under a prefix."""
    return {rename(key.removeprefix(prefix)): key for key in state if key.startswith(prefix)}


def _layers(state: State) -> State:
    """Weights of a head under the indices of its layers: a name before the index is dropped, a bare layer is 0."""
    result = {}
    for name, tensor in state.items():
        match = re.search(r"(?:^|\.)(\d+\..+)$", name)
        result[match[1] if match else f"0.{name}"] = tensor
    return result


def _check_fit(layout: str, own: State, wanted: Mapping[str, torch.Tensor], left: list[str], prefix: str) -> None:
    missing = [name for name in wanted if name not in own and not name.endswith("num_batches_tracked")]
    unexpected = [key for key in left if key.startswith(prefix) and not _IGNORED.match(key.removeprefix(prefix))]
    shapes = [
        f"{name} {tuple(tensor.shape)} instead of {tuple(wanted[name].shape)}"
        for name, tensor in own.items()
        if tensor.shape != wanted[name].shape
    ]
    if missing or unexpected or shapes:
        raise ConfigError(
            f"weights do not fit the backbone; recognised: {layout}; missing {missing[:3]} ({len(missing)}), "
            f"unexpected {unexpected[:3]} ({len(unexpected)}), wrong shape {shapes[:3]} ({len(shapes)})"
        )
