"""The number of attention heads, which no shape tells, and DINOv2's parts that a plain transformer can hold.

Layer scale (Touvron et al., ICCV 2021) multiplies what a linear layer gives, so it is folded into that layer. Registers
(Darcet et al., ICLR 2024) are further class tokens without a position.
"""

from __future__ import annotations

import math
import re

import torch
from torch import nn

from mi_core.adoption.layouts.heads import State
from mi_core.adoption.layouts.table import Known
from mi_core.checks import ConfigError

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
    starts = {key.partition("blocks.")[0] for key in state if _CHUNK.search(key)}
    whole = tuple(f"{start}blocks." for start in starts if all(map(_CHUNK.search, _blocks(state, start))))
    new = {key: _CHUNK.sub(r"\1", key) if key.startswith(whole) else key for key in state}
    return {new[key]: tensor for key, tensor in state.items()} if len(set(new.values())) == len(state) else state


def _blocks(state: State, start: str) -> list[str]:
    return [key for key in state if key.startswith(f"{start}blocks.")]


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
    heads = _attention_heads(backbone)
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


def _attention_heads(backbone: nn.Module) -> int | None:
    return next((module.num_heads for module in backbone.modules() if isinstance(module, nn.MultiheadAttention)), None)


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
