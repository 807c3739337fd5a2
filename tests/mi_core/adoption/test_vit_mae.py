"""Masked autoencoders of transformers as checkpoints: the embedding is theirs, by new names and old ones."""

from __future__ import annotations

import re

import pytest
import safetensors.torch
import torch

from mi_core.adoption.foreign import adopt
from mi_core.adoption.layouts.names import released_names
from mi_core.checks import ConfigError
from tests.mi_core.vit_mae import SIDE, small_vit_mae

OLDER = (
    (r"^vit\.layers\.", "vit.encoder.layer."),
    (r"\.attention\.q_proj\.", ".attention.attention.query."),
    (r"\.attention\.k_proj\.", ".attention.attention.key."),
    (r"\.attention\.v_proj\.", ".attention.attention.value."),
    (r"\.attention\.o_proj\.", ".attention.output.dense."),
    (r"\.mlp\.fc1\.", ".intermediate.dense."),
    (r"\.mlp\.fc2\.", ".output.dense."),
)
"""Names of version 5 to those of the files that were published before it."""


def older(name: str) -> str:
    for new, old in OLDER:
        name = re.sub(new, old, name)
    return name


def saved(*, normalised: bool) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """A small model of transformers with random weights, and its weights by version 5's names."""
    torch.manual_seed(0)
    model = small_vit_mae(decoder_width=64, decoder_heads=2, normalised=normalised)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:
                weight.add_(0.02 * torch.randn(weight.shape))
    return model, {name: weight.contiguous() for name, weight in model.state_dict().items()}


@pytest.mark.parametrize("renamed", [False, True])
def test_the_embedding_of_an_adopted_one_is_that_of_transformers(renamed: bool) -> None:
    there, state = saved(normalised=True)
    if renamed:
        state = {older(name): weight for name, weight in state.items()}
        assert "vit.encoder.layer.0.attention.attention.query.weight" in state
        assert "decoder.decoder_layers.1.attention.output.dense.bias" in state
    found = adopt("checkpoint:vit-tiny/4", safetensors.torch.save(state), channels=3, image_size=SIDE)
    assert found.layout == "MAE checkpoint with timm names"
    assert all("decoder" in words for words in found.ignored)
    images = torch.rand(3, 3, SIDE, SIDE)
    with torch.no_grad():
        there.vit.config.mask_ratio = 0.0
        embeddings = there.vit((images - found.encoder.mean) / found.encoder.std).last_hidden_state[:, 0]
    torch.testing.assert_close(found.encoder(images)["backbone"], embeddings, rtol=1e-4, atol=1e-4)


def test_other_files_keep_their_names() -> None:
    state = {"vit.embeddings.cls_token": torch.zeros(1), "decoder.heads": torch.zeros(1)}
    assert released_names(state) is state


def test_an_attention_in_part_is_missed() -> None:
    _, state = saved(normalised=True)
    part = {name: weight for name, weight in state.items() if "layers.3.attention.k_proj" not in name}
    with pytest.raises(ConfigError, match="missing"):
        adopt("checkpoint:vit-tiny/4", safetensors.torch.save(part), channels=3, image_size=SIDE)
