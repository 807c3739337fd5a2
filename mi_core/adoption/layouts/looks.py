"""Describes a file of weights by its names and shapes: the layout, the network, and the line that loads it.

The number of attention heads, which no shape tells, and DINOv2's parts that a plain transformer can hold.

Layer scale (Touvron et al., ICCV 2021) multiplies what a linear layer gives, so it is folded into that layer. Registers
(Darcet et al., ICLR 2024) are further class tokens without a position.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from mi_core.adoption.layouts.names import NAMINGS, State, renamed, without_end
from mi_core.adoption.layouts.table import ENDS, LAYOUTS, Known
from mi_core.checks import ConfigError

_DEPTHS: dict[tuple[tuple[int, ...], bool], int] = {
    ((2, 2, 2, 2), False): 18,
    ((3, 4, 6, 3), False): 34,
    ((3, 4, 6, 3), True): 50,
    ((3, 4, 23, 3), True): 101,
    ((3, 8, 36, 3), True): 152,
}
_HERE = (18, 50)
_MARKS = ("patch_embed.proj.weight", "conv_proj.weight", "conv1.weight", "features.0.0.weight")  # of a first layer
_MOBILE = {"features.0.0.weight", "features.2.conv.1.0.weight", "features.18.1.weight"}  # MobileNetV2, by torchvision
_TRANSFORMERS = {
    "plain": {(192, 12): "deit-tiny", (768, 12): "vit-b", (1024, 24): "vit-l", (1280, 32): "vit-h"},
    "layer scale": {(384, 12): "dinov2-s", (768, 12): "dinov2-b", (1024, 24): "dinov2-l"},
    "4 registers": {(384, 12): "dinov2-s-reg", (768, 12): "dinov2-b-reg", (1024, 24): "dinov2-l-reg"},
}
_DINOV3 = {
    (width, depth): f"timm:vit_{name}_patch16_dinov3"
    for width, depth, name in (
        (384, 12, "small"), (768, 12, "base"), (1024, 24, "large"), (1280, 32, "huge_plus"), (4096, 40, "7b"),
    )
}  # fmt: skip
_WITHOUT_TOKEN = {(768, 12): "vit-b-gap", (1024, 24): "vit-l-gap", (1280, 32): "vit-h-gap"}
_GIANT = (1408, 40, 16)  # I-JEPA's, whose hidden layers are not four times as wide
_SMALL = {6: "deit-s", 12: "vit-s"}  # of width 384 with 12 layers, by the number of attention heads


@dataclass(frozen=True)
class Look:
    """Description of a file of weights.

    Args:
        words: layout and network.
        load: the line that takes it, where there is one.
        side: of the images that the positions of a transformer are for.
    """

    words: str
    load: str | None = None
    side: int | None = None

    def sentence(self) -> str:
        """The description for messages, and the line that loads the file."""
        return f"the file looks like {self.words}" + (f"; write load: {self.load}" if self.load else "")


def look_at(state: State) -> Look:
    """Describe weights by their names and shapes.

    Example:
        >>> look_at({"0.weight": torch.ones(3, 2)}).words
        'a plain state dict of an unknown network (first key 0.weight)'
    """
    keys = plain(state)[0]
    starts = (without_end(key.removesuffix(mark), ENDS) for mark in _MARKS for key in keys if key.endswith(f".{mark}"))
    for start in ("", *dict.fromkeys(one for one in starts if one and "student" not in one)):
        found = _network({key.removeprefix(start): one for key, one in state.items() if key.startswith(start)})
        if found is not None:
            return found
    name = next((known.name for known in LAYOUTS if known.fits(keys)), "state dict")
    return Look(f"a {name} of an unknown network (first key {min(keys, default='none')})")


def _network(state: State) -> Look | None:
    """A network of which nothing stands before the names of a known layout; None: it is not known."""
    state, merged = plain(state)
    for known in (known for known in LAYOUTS if known.fits([*state, *merged])):
        for naming in NAMINGS:
            shapes = {name: state[key].shape for name, key in renamed(state, known.prefix, naming).items()}
            mobile = Look("a MobileNetV2", "checkpoint:mobilenetv2-imagenet") if shapes.keys() >= _MOBILE else None
            network = _residual(shapes) or mobile or _transformer(known, shapes, scaled=bool(merged))
            if network is not None:
                return Look(f"a {known.name} of {network.words}", network.load, network.side)
    return None


def _residual(shapes: Mapping[str, torch.Size]) -> Look | None:
    """A residual network by torchvision's names."""
    if not {"conv1.weight", "layer1.0.conv2.weight", "layer4.0.conv1.weight"} <= shapes.keys():
        return None
    blocks = tuple(_count(shapes, rf"layer{stage}\.(\d+)\.") for stage in range(1, 5))
    depth = _DEPTHS.get((blocks, "layer1.0.conv3.weight" in shapes))
    out, _, _, side = shapes["conv1.weight"]
    cifar, usual = side == 3, (out, shapes["layer1.0.conv2.weight"][0]) == (64, 64)
    words = f"a ResNet-{depth}" if depth else f"a residual network of {blocks} blocks"
    words += " with the CIFAR stem" if cifar else " with the ImageNet stem" if side == 7 else ""
    if not usual:
        return Look(f"{words}, of another width")
    if depth in _HERE and side in (3, 7):
        return Look(words, f"checkpoint:resnet{depth}" + ("" if cifar else "-imagenet"))
    return Look(words)


def _transformer(known: Known, shapes: Mapping[str, torch.Size], *, scaled: bool) -> Look | None:
    """A vision transformer by torchvision's names."""
    if "conv_proj.weight" not in shapes or len(shapes["conv_proj.weight"]) != 4:
        return None
    width, _, patch = shapes["conv_proj.weight"][:3]
    depth = _count(shapes, r"encoder\.layers\.encoder_layer_(\d+)\.")
    size = f"({depth} layers, width {width}, patches of {patch} px)"
    if "rope_embed.periods" in shapes:
        return Look(f"DINOv3 with Meta's names {size}", _DINOV3.get((width, depth)))
    if "class_token" not in shapes:
        name = _WITHOUT_TOKEN.get((width, depth))
        load = f"checkpoint:{name}/{patch}" if name else None
        if name == "vit-b-gap" and patch == 16:
            load = f"{load} (12 attention heads, I-JEPA's) or timm:vit_base_patch16_gap_224 (16)"
        elif (width, depth, patch) == _GIANT:
            load = "timm:vit_giant_patch16_gap_224"
        side = math.isqrt(shapes.get("encoder.pos_embedding", (0, 0))[1]) * patch or None
        return Look(f"a vision transformer without a class token, as I-JEPA's are, {size}", load, side)
    tokens = shapes["class_token"][1]
    positions = shapes.get("encoder.pos_embedding", (0, tokens))[1] - tokens
    side = math.isqrt(positions) * patch or None
    words = f"a vision transformer ({depth} layers, width {width}, patches of {patch} px, images of {side} px)"
    if tokens > 1:
        words += f" with {tokens - 1} registers"
    kind = f"{tokens - 1} registers" if tokens > 1 else "layer scale" if scaled else "plain"
    name = _TRANSFORMERS.get(kind, {}).get((width, depth))
    small = (kind, width, depth) == ("plain", 384, 12)
    if small:
        name = _SMALL.get(known.attention.get(width, 0))
    if "encoder.layers.encoder_layer_0.mlp.0.weight" not in shapes:
        name, words = None, words + ", whose hidden layers are gated"
    load = f"checkpoint:{name}/{patch}" if name else None
    if small and load is None:
        load = f"checkpoint:deit-s/{patch} (DeiT, timm, DINO: 6 attention heads) or checkpoint:moco-vit-s/{patch} (12)"
    return Look(words, load, side)


def _count(shapes: Mapping[str, torch.Size], pattern: str) -> int:
    return len({match[1] for name in shapes if (match := re.match(pattern, name))})


_SCALE = re.compile(r"^(.*blocks\.\d+\.)ls([12])\.gamma$")
_CHUNK = re.compile(r"(?<![^.])(blocks\.)\d+\.(?=\d+\.)")
_SCALED = {"1": "attn.proj", "2": "mlp.fc2"}
_UNSAID = "vit-s"  # the one name here that others give to two networks of equal shapes
_BY_HEADS = {6: "deit-s", 12: "moco-vit-s"}


def plain(state: State) -> tuple[State, dict[str, str]]:
    """A transformer with layer scale or registers as a plain one that computes the same; else the weights as they are.

    Blocks in chunks, as FSDP trains them, ``blocks.<chunk>.<block>``, lose the number of the chunk.

    Returns:
        The weights, and for every key that became part of others the reason.
    """
    state = _without_chunks(state)
    result, merged = dict(state), dict[str, str]()
    for key, scale in state.items():
        match = _SCALE.match(key)
        layer = f"{match[1]}{_SCALED[match[2]]}" if match else ""
        if f"{layer}.weight" in state and f"{layer}.bias" in state:
            result[f"{layer}.weight"] = state[f"{layer}.weight"] * scale[:, None]
            result[f"{layer}.bias"] = state[f"{layer}.bias"] * scale
            merged[key] = "layer scale, folded into the layer before it"
    for key in [key for key in state if key.rpartition(".")[2] == "register_tokens"]:
        prefix = key.removesuffix("register_tokens")
        names = f"{prefix}cls_token", f"{prefix}pos_embed"
        if all(name in state for name in names):
            registers, (token, positions) = state[key], (state[name] for name in names)
            result[names[0]] = torch.cat([token, registers], dim=1)
            result[names[1]] = torch.cat([positions[:, :1], torch.zeros_like(registers), positions[:, 1:]], dim=1)
            merged[key] = "registers, which follow the class token"
    return {key: tensor for key, tensor in result.items() if key not in merged}, merged


def _without_chunks(state: State) -> State:
    """Weights whose blocks are numbered through; those of a transformer with other numbers stay as they are."""
    starts = {f"{key.partition('blocks.')[0]}blocks." for key in state if _CHUNK.search(key)}
    whole = tuple(start for start in starts if all(_CHUNK.search(key) for key in state if key.startswith(start)))
    new = {key: _CHUNK.sub(r"\1", key) if key.startswith(whole) else key for key in state}
    return {new[key]: tensor for key, tensor in state.items()} if len(set(new.values())) == len(state) else state


def attention(known: Known, backbone: nn.Module, name: str, positions: torch.Tensor | None) -> str | None:
    """The number of attention heads of a transformer, and who says so; None: the backbone is no transformer.

    Args:
        known: layout of the file.
        backbone: that is to be filled.
        name: of the backbone, as in ``checkpoint:<name>``; empty: not said.
        positions: (1, tokens, D) of the file, under torchvision's name.

    Raises:
        ConfigError: the file is known to have another number, or nobody says whether it has 6 or 12.
    """
    heads = next((one.num_heads for one in backbone.modules() if isinstance(one, nn.MultiheadAttention)), None)
    if heads is None:
        return None
    width = int(backbone.width)  # type: ignore[arg-type]
    stated, by = known.attention.get(width), f"a {known.name}"
    if width == 384 and positions is not None and _moco_positions(positions, getattr(backbone, "registers", 0)):
        stated, by = 12, "a file with the fixed positions of MoCo v3"
    base, slash, patch = name.partition("/")
    if stated is not None and stated != heads:
        raise ConfigError(
            f"{by} of width {width} has {stated} attention heads, {name or 'the backbone'} has {heads}; "
            f"write checkpoint:{_BY_HEADS.get(stated, 'vit-b')}{slash}{patch}"
        )
    if stated is None and base == _UNSAID and not known.own:
        raise ConfigError(
            "the number of attention heads stands in no file, and a transformer of width 384 has 6 (DeiT, timm, DINO) "
            f"or 12 (MoCo v3): write checkpoint:deit-s{slash}{patch} or checkpoint:moco-vit-s{slash}{patch}"
        )
    return f"{heads} attention heads, as {by if stated is not None else name or 'the backbone'} has"


def _moco_positions(positions: torch.Tensor, registers: int) -> bool:
    """True if positions are those that MoCo v3 fixes: sine and cosine of row and column, 0 for the class token."""
    patches, width = positions.shape[1] - 1 - registers, positions.shape[2]
    side = math.isqrt(patches)
    if side * side != patches or width % 4 or registers:
        return False
    rates = 10000.0 ** -(torch.arange(width // 4) / (width // 4))
    rows = torch.arange(side).repeat_interleave(side)[:, None] * rates
    columns = torch.arange(side).repeat(side)[:, None] * rates
    expected = torch.cat([rows.sin(), rows.cos(), columns.sin(), columns.cos()], dim=1)
    return torch.allclose(positions[0, 1:].float(), expected, atol=1e-2) and not positions[0, 0].any()
