"""The decoder of a masked autoencoder in a file: under the names of MAE's released code, or of this package."""

from __future__ import annotations

import re

import torch
from torch import nn

from mi_core.adoption.layouts.heads import State
from mi_core.adoption.layouts.names import torchvision_vit_key
from mi_core.encoders.masked import PixelDecoder

_OWN = "decoder."
_BLOCK = re.compile(r"^decoder_blocks\.(\d+)\.(.+)$")
_OUTSIDE = {
    "mask_token": "mask_token",
    "decoder_pos_embed": "positions",
    "decoder_embed.weight": "embed.weight",
    "decoder_embed.bias": "embed.bias",
    "decoder_norm.weight": "norm.weight",
    "decoder_norm.bias": "norm.bias",
    "decoder_pred.weight": "pixels.weight",
    "decoder_pred.bias": "pixels.bias",
}
_BLOCK_WEIGHTS = 12  # of two norms, attention and two layers
_HEAD = 32  # width of an attention head in all released decoders, which no shape tells: 16 of 512


def decoder_weights(state: State) -> tuple[State, set[str]]:
    """Weights of the decoder by the names of `PixelDecoder`, and the keys of the file that they are from.

    Both are empty where the file has no whole decoder.
    """
    own = {key.removeprefix(_OWN): key for key in state if key.startswith(_OWN)}
    if "heads" in own:
        return {name: state[key] for name, key in own.items()}, set(own.values())
    names = {_OUTSIDE[key]: key for key in state if key in _OUTSIDE}
    for key in state:
        if match := _BLOCK.match(key):
            inside = torchvision_vit_key(f"blocks.0.{match[2]}").removeprefix("encoder.layers.encoder_layer_0.")
            names[f"blocks.{match[1]}.{inside}"] = key
    blocks = len(names) - len(_OUTSIDE)
    whole = set(_OUTSIDE.values()) <= names.keys() and blocks and blocks % _BLOCK_WEIGHTS == 0
    if not whole or state["decoder_embed.weight"].shape[0] % _HEAD:
        return {}, set()
    found = {name: state[key] for name, key in names.items()}
    heads = torch.tensor(found["embed.weight"].shape[0] // _HEAD)
    return found | {"heads": heads}, set(names.values())


def decoder_module(state: State) -> nn.Module:
    """A decoder for weights of `decoder_weights`, fresh."""
    width, embedded = state["embed.weight"].shape
    layers = len({name.split(".")[1] for name in state if name.startswith("blocks.")})
    side = round((state["positions"].shape[1] - 1) ** 0.5)
    pixels, heads = len(state["pixels.weight"]), int(state["heads"])
    return PixelDecoder(embedded, side, pixels, decoder_width=width, layers=layers, heads=heads)
