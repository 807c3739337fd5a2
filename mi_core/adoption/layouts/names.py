"""Names of the same weights in other definitions of a network: timm's transformers, residual networks in a sequence.

Masked autoencoders as the package transformers saves them (`ViTMAEForPreTraining`), by the names of MAE's own code.

That package keeps queries, keys and values apart, and renamed its layers in version 5; both names are known here.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from itertools import accumulate

import torch

State = dict[str, torch.Tensor]
"""Weights by name."""

_RESNET = ("conv1", "bn1", "relu", "maxpool", "layer1", "layer2", "layer3", "layer4", "avgpool")
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


def _sequence_key(names: Iterable[str]) -> Callable[[str], str]:
    """Names of a ResNet whose layers stand in a sequence: numbers to names."""
    by_number = {str(number): name for number, name in enumerate(names)}

    def rename(name: str) -> str:
        number, _, rest = name.partition(".")
        return f"{by_number[number]}.{rest}" if number in by_number else name

    return rename


NAMINGS: dict[str, Callable[[str], str]] = {
    "": lambda name: name,
    "timm": torchvision_vit_key,
    "numbered": _sequence_key(_RESNET),
    "numbered (no max-pooling)": _sequence_key(name for name in _RESNET if name != "maxpool"),
}
"""Ways to name the weights of a backbone: from the name in a file to torchvision's."""


def renamed(keys: Iterable[str], prefix: str, naming: str) -> dict[str, str]:
    """New name to key of the file, for the keys under a prefix.

    Example:
        >>> renamed(["f.0.weight", "g.0.weight"], "f.", "numbered")
        {'conv1.weight': 'f.0.weight'}
    """
    return {NAMINGS[naming](key.removeprefix(prefix)): key for key in keys if key.startswith(prefix)}


def prefixes_of(keys: Collection[str], wanted: Iterable[str], namings: Iterable[str] = ("",)) -> list[str]:
    """The prefixes under which a file has all wanted names, in one of some namings.

    Example:
        >>> prefixes_of(["net.f.weight", "net.f.bias", "head.weight"], ["weight", "bias"])
        ['net.f.']
    """
    names = {name for name in wanted if not name.endswith("num_batches_tracked")}
    counts = Counter(prefix for key in keys for prefix in accumulate(f"{part}." for part in key.split(".")[:-1]))
    enough = [prefix for prefix, count in counts.items() if count >= len(names)]
    return [one for one in enough if any(names <= renamed(keys, one, naming).keys() for naming in namings)]


def without_end(prefix: str, ends: Collection[str]) -> str:
    """A prefix without the last of its parts if that is one of some.

    Example:
        >>> without_end("teacher.backbone.", ["backbone."]), without_end("net.", ["backbone."])
        ('teacher.', 'net.')
    """
    start, _, last = prefix.removesuffix(".").rpartition(".")
    return prefix if f"{last}." not in ends else f"{start}." if start else ""


_MARK = "decoder.decoder_embed.weight"
_NAMES = (
    (r"^vit\.embeddings\.cls_token$", "cls_token"),
    (r"^vit\.embeddings\.position_embeddings$", "pos_embed"),
    (r"^vit\.embeddings\.patch_embeddings\.projection\.", "patch_embed.proj."),
    (r"^vit\.layernorm\.", "norm."),
    (r"^vit\.(encoder\.layer|layers)\.", "blocks."),
    (r"^decoder\.decoder_layers\.", "decoder_blocks."),
    (r"^decoder\.", ""),
    (r"\.layernorm_before\.", ".norm1."),
    (r"\.layernorm_after\.", ".norm2."),
    (r"\.attention\.(output\.dense|o_proj)\.", ".attn.proj."),
    (r"\.(intermediate\.dense|mlp\.fc1)\.", ".mlp.fc1."),
    (r"\.(output\.dense|mlp\.fc2)\.", ".mlp.fc2."),
)
_PART = re.compile(r"\.attention\.(?:attention\.)?(query|key|value|[qkv]_proj)\.")


def released_names(state: State) -> State:
    """The weights of such a file under the names of MAE's own code; those of other files as they are."""
    if _MARK not in state:
        return state
    named: State = {}
    apart: dict[str, State] = {}
    for key, weight in state.items():
        name = key
        for old, new in _NAMES:
            name = re.sub(old, new, name)
        if part := _PART.search(name):
            apart.setdefault(_PART.sub(".attn.qkv.", name), {})[part[1][0]] = weight
        else:
            named[name] = weight
    for name, parts in apart.items():
        if parts.keys() == set("qkv"):
            named[name] = torch.cat([parts[one] for one in "qkv"])
    return named
