"""Masked autoencoders as the package transformers saves them (`ViTMAEForPreTraining`), by the names of MAE's own code.

That package keeps queries, keys and values apart, and renamed its layers in version 5; both names are known here.
"""

from __future__ import annotations

import re

import torch

from mi_core.adoption.layouts.heads import State

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
