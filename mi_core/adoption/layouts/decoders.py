"""The decoder of MAE or predictor of I-JEPA in a file: under the names of their released code, or of this package."""

from __future__ import annotations

import math
import re

import torch

from mi_core.adoption.layouts.heads import State
from mi_core.adoption.layouts.names import torchvision_vit_key
from mi_core.encoders.masked import CLASS_TOKENS, PatchDecoder

_OWN = "decoder."
_RELEASED = {"pixels": ("decoder", "pred"), "states": ("predictor", "proj")}
_BLOCK_WEIGHTS = 12  # of two norms, attention and two layers
_HEAD = 32  # width of an attention head in all released decoders of MAE, which no shape tells: 16 of 512
_HEADS = {768: 12, 1024: 16, 1280: 16, 1408: 16}  # of I-JEPA's predictor, those of the encoder of that width


def decoder_weights(state: State) -> tuple[State, set[str]]:
    """Weights of the decoder by the names of `PatchDecoder`, and the keys of the file that they are from.

    Both are empty where the file has no whole decoder.
    """
    own = {key.removeprefix(_OWN): key for key in state if key.startswith(_OWN)}
    if "heads" in own:
        return {name: state[key] for name, key in own.items()}, set(own.values())
    for rebuilt in _RELEASED:
        names = _released(state, rebuilt)
        found = {name: state[key] for name, key in names.items()}
        heads = _heads(found, rebuilt) if names else 0
        if heads:
            return found | {"heads": torch.tensor(heads)}, set(names.values())
    return {}, set()


def _released(state: State, rebuilt: str) -> dict[str, str]:
    """Keys of a file by the names of `PatchDecoder`; empty: it holds no whole decoder of that kind."""
    part, last = _RELEASED[rebuilt]
    below = f"{part}." if rebuilt == "states" else ""
    outside = {f"{below}mask_token": "mask_token", f"{below}{part}_pos_embed": "positions"}
    for theirs, ours in {"embed": "embed", "norm": "norm", last: "numbers"}.items():
        outside |= {f"{below}{part}_{theirs}.{one}": f"{ours}.{one}" for one in ("weight", "bias")}
    names = {outside[key]: key for key in state if key in outside}
    for key in state:
        if match := re.match(rf"{re.escape(below)}{part}_blocks\.(\d+)\.(.+)$", key):
            inside = torchvision_vit_key(f"blocks.0.{match[2]}").removeprefix("encoder.layers.encoder_layer_0.")
            names[f"blocks.{match[1]}.{inside}"] = key
    blocks = len(names) - len(outside)
    return names if set(outside.values()) <= names.keys() and blocks and blocks % _BLOCK_WEIGHTS == 0 else {}


def _heads(state: State, rebuilt: str) -> int:
    """Attention heads of a released decoder; 0: they are not known."""
    width, embedded = state["embed.weight"].shape
    heads = _HEADS.get(embedded, 0) if rebuilt == "states" else width // _HEAD
    return heads if heads and width % heads == 0 and (rebuilt == "states" or width % _HEAD == 0) else 0


def decoder_module(state: State) -> PatchDecoder:
    """A decoder for weights of `decoder_weights`, fresh."""
    width, embedded = state["embed.weight"].shape
    layers = len({name.split(".")[1] for name in state if name.startswith("blocks.")})
    positions, numbers, heads = state["positions"].shape[1], len(state["numbers.weight"]), int(state["heads"])
    side = math.isqrt(positions)
    rebuilds = next(one for one, tokens in CLASS_TOKENS.items() if side**2 + tokens == positions)
    return PatchDecoder(embedded, side, rebuilds, numbers, decoder_width=width, layers=layers, heads=heads)
