"""A small masked autoencoder of the package transformers."""

from __future__ import annotations

from typing import Any

import pytest

SIDE, PATCH = 12, 4


def small_vit_mae(*, decoder_width: int, decoder_heads: int, normalised: bool) -> Any:
    """Its backbone is that of vit-tiny/4. Skips the test where transformers is missing or has other names."""
    transformers = pytest.importorskip("transformers")
    settings = transformers.ViTMAEConfig(
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=512,
        image_size=SIDE,
        patch_size=PATCH,
        decoder_hidden_size=decoder_width,
        decoder_num_hidden_layers=2,
        decoder_num_attention_heads=decoder_heads,
        decoder_intermediate_size=4 * decoder_width,
        mask_ratio=0.75,
        norm_pix_loss=normalised,
        layer_norm_eps=1e-6,
    )
    model = transformers.ViTMAEForPreTraining(settings).eval()
    if not hasattr(model.vit, "layers"):
        pytest.skip("older versions have other names")
    return model
