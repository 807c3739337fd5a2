"""Masked autoencoders: against the definition in transformers, and what hidden patches may and may not change."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mi_core.checks import ConfigError, ShapeError
from mi_core.encoders import build_backbone
from mi_core.encoders.checkpoint import seeded
from mi_core.encoders.masked import PatchDecoder, masked_errors, patch_pixels, sine_positions, visible_patches
from mi_core.objectives.mae import MAE, MAEParameters
from tests.mi_core.vit_mae import PATCH, SIDE, small_vit_mae

SMALL = MAEParameters(decoder_width=32, decoder_layers=2, decoder_heads=4)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def small(objective: type[MAE] = MAE) -> MAE:
    return seeded(0, lambda: objective(build_backbone(f"vit-tiny/{PATCH}", 3, SIDE), SMALL)).eval()  # type: ignore[no-any-return]


def images(count: int = 5) -> torch.Tensor:
    return torch.rand(count, 3, SIDE, SIDE, generator=generator(1)) - 0.5


def orders(count: int = 5) -> torch.Tensor:
    return torch.rand(count, 9, generator=generator(2)).argsort(dim=1)


def names_there(name: str) -> str:
    """What transformers calls a weight of ours, but for the joined weights of attention."""
    parts = (
        ("encoder.layers.encoder_layer_", "layers."),
        ("encoder.pos_embedding", "embeddings.position_embeddings"),
        ("encoder.ln.", "layernorm."),
        ("class_token", "embeddings.cls_token"),
        ("conv_proj.", "embeddings.patch_embeddings.projection."),
        ("decoder.embed.", "decoder.decoder_embed."),
        ("decoder.norm.", "decoder.decoder_norm."),
        ("decoder.numbers.", "decoder.decoder_pred."),
        ("decoder.positions", "decoder.decoder_pos_embed"),
        ("decoder.blocks.", "decoder.decoder_layers."),
        ("self_attention.out_proj.", "attention.o_proj."),
        (".ln_1.", ".layernorm_before."),
        (".ln_2.", ".layernorm_after."),
        (".mlp.0.", ".mlp.fc1."),
        (".mlp.3.", ".mlp.fc2."),
        ("backbone.", "vit."),
    )
    for ours, theirs in parts:
        name = name.replace(ours, theirs)
    return name


def in_transformers(network: MAE) -> dict[str, torch.Tensor]:
    """Our weights as a model of transformers has them, with queries, keys and values apart."""
    state = {}
    for name, weight in network.state_dict().items():
        if ".in_proj_" in name:
            for part, own in zip("qkv", weight.chunk(3), strict=True):
                state[names_there(name.replace("self_attention.in_proj_", f"attention.{part}_proj."))] = own
        elif name != "decoder.heads":
            state[names_there(name)] = weight
    return state


def test_the_error_is_that_of_transformers() -> None:
    there, network = small_vit_mae(decoder_width=32, decoder_heads=4, normalised=True), small()
    with torch.no_grad():
        for part in (network.backbone, network.decoder):
            for weight in part.parameters():
                if weight.requires_grad:
                    weight.add_(0.02 * torch.randn(weight.shape, generator=generator(3)))
    there.load_state_dict(in_transformers(network))
    noise = torch.rand(5, 9, generator=generator(2))
    with torch.no_grad():
        found = masked_errors(network.backbone, network.decoder, images(), noise.argsort(dim=1), network.visible)
        expected = [there(one[None], noise=its[None]).loss for one, its in zip(images(), noise, strict=True)]
        torch.testing.assert_close(found, torch.stack(expected), rtol=1e-4, atol=1e-5)
        loss = network(images()[:, None], noise)
        torch.testing.assert_close(loss, there(images(), noise=noise).loss, rtol=1e-4, atol=1e-5)


def test_positions_are_those_of_transformers() -> None:
    module = pytest.importorskip("transformers.models.vit_mae.modeling_vit_mae")
    if not hasattr(module, "build_2d_sinusoidal_position_embedding"):
        pytest.skip("older versions have another function")
    rows_first = module.build_2d_sinusoidal_position_embedding(3, 3, 128, cls_token=True)
    as_released = torch.cat([rows_first[:, 64:], rows_first[:, :64]], dim=1)[None]
    torch.testing.assert_close(small().backbone.encoder.pos_embedding.detach(), as_released)
    torch.testing.assert_close(sine_positions(3, 128), as_released)


def test_what_is_hidden_is_never_seen_and_is_all_that_counts() -> None:
    """Pixels of hidden patches change the error through the target alone, so not where a patch is scaled."""
    network, order, shown = small(), orders(), images()
    with torch.no_grad():
        before = masked_errors(network.backbone, network.decoder, shown, order, 3)
        scaled = shown.clone()
        for row in range(5):
            for patch in order[row, 3:].tolist():
                top, left = PATCH * (patch // 3), PATCH * (patch % 3)
                scaled[row, :, top : top + PATCH, left : left + PATCH] *= 3.0
        torch.testing.assert_close(
            masked_errors(network.backbone, network.decoder, scaled, order, 3), before, rtol=1e-3, atol=1e-3
        )
        noisy = shown + torch.randn(shown.shape, generator=generator(4))
        assert ((masked_errors(network.backbone, network.decoder, noisy, order, 3) - before).abs() > 1e-3).all()


def test_the_order_within_what_is_visible_and_within_what_is_hidden_does_not_count() -> None:
    network, order = small(), orders()
    other = torch.cat([order[:, :3].flip(1), order[:, 3:].flip(1)], dim=1)
    with torch.no_grad():
        found = [masked_errors(network.backbone, network.decoder, images(), one, 3) for one in (order, other)]
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


def test_patches_are_the_pixels_row_by_row() -> None:
    picture = torch.arange(2 * 3 * 4 * 6.0).reshape(2, 3, 4, 6)
    found = patch_pixels(picture, 2)
    assert found.shape == (2, 6, 12)
    for row, patch, y, x, colour in torch.cartesian_prod(*map(torch.arange, (2, 6, 2, 2, 3))).tolist():
        expected = picture[row, colour, 2 * (patch // 3) + y, 2 * (patch % 3) + x]
        assert found[row, patch, (2 * y + x) * 3 + colour] == expected


def test_training_lowers_the_error() -> None:
    network = small().train()
    shown = images(32)
    optimizer = torch.optim.AdamW([weight for weight in network.parameters() if weight.requires_grad], lr=2e-3)
    losses = []
    for step in range(60):
        loss = network(shown[:, None], torch.rand(32, network.draws, generator=generator(100 + step)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-5:]) < 0.97 * sum(losses[:5])


def test_the_class_token_s_position_is_nought_and_others_differ() -> None:
    positions = sine_positions(4, 16)
    assert positions.shape == (1, 17, 16)
    assert not positions[0, 0].any()
    assert len({tuple(row) for row in positions[0, 1:].tolist()}) == 16
    with pytest.raises(ConfigError, match="a width that 4 divides, not 18"):
        sine_positions(4, 18)


def test_some_patch_is_visible_and_some_is_hidden() -> None:
    assert [visible_patches(4, share) for share in (0.01, 0.5, 0.99)] == [3, 2, 1]


def test_mistakes_are_named() -> None:
    with pytest.raises(
        ConfigError,
        match="type Conv4 cannot leave patches out to rebuild pixels; take a vision transformer without registers",
    ):
        MAE(build_backbone("conv4", 3, SIDE), SMALL)
    with pytest.raises(
        ConfigError, match="cannot leave patches out to rebuild pixels; take a vision transformer without registers"
    ):
        MAE(build_backbone("dinov2-s-reg/4", 3, 8), SMALL)
    network = small()
    with pytest.raises(ShapeError, match="order has shape"):
        masked_errors(network.backbone, network.decoder, images(), orders(4), 3)
    with pytest.raises(ConfigError, match="visible patches = 9"):
        masked_errors(network.backbone, network.decoder, images(), orders(), 9)
    with pytest.raises(ConfigError, match="masked = 1"):
        MAEParameters(masked=1.0)


def test_a_decoder_says_how_many_heads_it_has() -> None:
    assert isinstance(small().decoder, PatchDecoder)
    assert small().decoder.state_dict()["heads"] == 4
    assert isinstance(nn.Module.state_dict(small().decoder)["positions"], torch.Tensor)
