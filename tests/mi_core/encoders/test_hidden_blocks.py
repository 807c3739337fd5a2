"""I-JEPA: its masks, and its error against one that is put together from PyTorch's own layers, block after block."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mi_core.checks import ConfigError, ShapeError
from mi_core.encoders import build_backbone
from mi_core.encoders.checkpoint import seeded
from mi_core.encoders.hidden_blocks import block_masks, mask_numbers, prediction_errors
from mi_core.encoders.tokens import feature_map
from mi_core.objectives.i_jepa import IJEPA, IJEPAParameters

SMALL = IJEPAParameters(predictor_width=32, predictor_layers=2, predictor_heads=2)
SIDE, GRID = 24, 6


def small() -> Any:
    """A network after some steps: its target encoder, positions and mask token differ."""
    made = seeded(0, lambda: IJEPA(build_backbone("vit-tiny-gap/4", 3, SIDE), SMALL)).eval()
    with torch.no_grad():
        for weight in made.parameters():
            weight.add_(0.05 * torch.randn(weight.shape, generator=generator(weight.numel())))
    return made


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(count: int = 3) -> torch.Tensor:
    return torch.rand(count, 3, SIDE, SIDE, generator=generator(1)) - 0.5


def numbers(count: int, side: int = GRID, seed: int = 2) -> torch.Tensor:
    return torch.rand(count, mask_numbers(side), generator=generator(seed))


def standard_layers(blocks: nn.Sequential, width: int, heads: int) -> nn.Sequential:
    """The same blocks as layers that PyTorch itself defines, which norm first."""
    layers = []
    for block in blocks:
        own: Any = block
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, 0.0, "gelu", layer_norm_eps=1e-6, batch_first=True, norm_first=True
        )
        pairs = {"self_attn": own.self_attention, "norm1": own.ln_1, "norm2": own.ln_2}
        for part, source in (pairs | {"linear1": own.mlp[0], "linear2": own.mlp[3]}).items():
            getattr(layer, part).load_state_dict(source.state_dict())
        layers.append(layer.eval())
    return nn.Sequential(*layers)


def patches_of(backbone: Any, image: torch.Tensor) -> torch.Tensor:
    """Embedded patches with positions (L, D), patch by patch from the weights of the first layer."""
    rows = []
    for place in range(GRID**2):
        top, left = 4 * (place // GRID), 4 * (place % GRID)
        patch = image[:, top : top + 4, left : left + 4]
        embedded = (backbone.conv_proj.weight * patch).sum(dim=(1, 2, 3)) + backbone.conv_proj.bias
        rows.append(embedded + backbone.encoder.pos_embedding[0, place])
    return torch.stack(rows)


@torch.no_grad()
def test_the_error_is_that_of_section_3() -> None:
    """One image and one block at a time: encode the context, predict the block, compare with the target's states."""
    network: Any = small()
    context, blocks = block_masks(numbers(3), GRID)
    wanted = feature_map(network.key_backbone, images())
    found = prediction_errors(network.backbone, network.decoder, images(), context, blocks, wanted)
    encode = standard_layers(network.backbone.encoder.layers, 128, 4)
    target = standard_layers(network.key_backbone.encoder.layers, 128, 4)
    predict, norm = standard_layers(network.decoder.blocks, 32, 2), partial(F.layer_norm, eps=1e-5)
    for row, image in enumerate(images()):
        states = network.backbone.encoder.ln(encode(patches_of(network.backbone, image)[context[row]][None]))[0]
        whole = network.key_backbone.encoder.ln(target(patches_of(network.key_backbone, image)[None]))[0]
        errors = []
        for block in blocks[row]:
            known = network.decoder.embed(states) + network.decoder.positions[0, context[row]]
            asked = network.decoder.mask_token[0] + network.decoder.positions[0, block]
            told = network.decoder.norm(predict(torch.cat([known, asked])[None]))[0, -len(block) :]
            away = (network.decoder.numbers(told) - norm(whole[block], (128,))).abs()
            errors.append(torch.where(away < 1, away**2 / 2, away - 0.5).mean())
        torch.testing.assert_close(found[row], torch.stack(errors).mean(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(network(images()[:, None], numbers(3)), found.mean())


@torch.no_grad()
def test_what_is_hidden_is_not_seen() -> None:
    """Pixels outside the context change nothing but the states that are wanted."""
    network, (context, blocks) = small(), block_masks(numbers(3), GRID)
    wanted = feature_map(network.key_backbone, images())
    before = prediction_errors(network.backbone, network.decoder, images(), context, blocks, wanted)
    for seen in (False, True):
        changed = images().clone()
        for row in range(3):
            for place in range(GRID**2):
                if (place in context[row].tolist()) == seen:
                    top, left = 4 * (place // GRID), 4 * (place % GRID)
                    changed[row, :, top : top + 4, left : left + 4] += 1.0
        after = prediction_errors(network.backbone, network.decoder, changed, context, blocks, wanted)
        assert torch.equal(after, before) != seen


@pytest.mark.parametrize("side", [2, 3, 6, 8, 14, 16])
def test_masks_are_rectangles_of_the_paper_s_sizes_and_hide_the_blocks(side: int) -> None:
    sizes = set()
    for seed in range(40):
        context, blocks = block_masks(numbers(9, side, seed), side)
        assert blocks.shape[:2] == (9, 4)
        for seen, own in zip(context.tolist(), blocks, strict=True):
            assert len(set(seen)) == len(seen) >= 1
            assert side < 6 or not set(seen) & set(own.flatten().tolist())
            for block in own:
                rows, columns = block // side, block % side
                height, width = (int(one.max() - one.min()) + 1 for one in (rows, columns))
                assert len(set(block.tolist())) == len(block) == height * width
                sizes.add((height, width))
    shares = [height * width / side**2 for height, width in sizes]
    assert all(side < 14 or 0.12 <= share <= 0.22 for share in shares)
    assert side < 14 or {height > width for height, width in sizes} == {True, False}
    assert all(height < side and width < side for height, width in sizes)


def test_blocks_lie_anywhere_and_contexts_lose_patches_by_chance() -> None:
    """Each corner that a block can have is as likely; no place of a context is favoured by the cut to one length."""
    drawn = numbers(4000, 8)
    context, blocks = block_masks(drawn, 8)
    height = int((blocks[0, 0] // 8).max() - (blocks[0, 0] // 8).min()) + 1
    corners = torch.bincount(blocks[:, :, 0].flatten() // 8, minlength=8)[: 8 - height + 1].float()
    expected = corners.sum() / len(corners)
    assert ((corners - expected).abs() < 5 * expected.sqrt()).all()
    seen = torch.zeros(64).scatter_add(0, context.flatten(), torch.ones(context.numel())).reshape(8, 8)
    lengths = context.numel()
    assert (seen - seen.flip(0)).abs().max() < 5 * math.sqrt(lengths / 64)
    assert (seen - seen.flip(1)).abs().max() < 5 * math.sqrt(lengths / 64)


def test_training_lowers_the_error_and_the_target_follows() -> None:
    network = seeded(0, lambda: IJEPA(build_backbone("vit-tiny-gap/4", 3, SIDE), SMALL)).train()
    before = network.key_backbone.conv_proj.weight.clone()
    optimizer = torch.optim.AdamW([weight for weight in network.parameters() if weight.requires_grad], lr=1e-3)
    losses = []
    for step in range(40):
        loss = network(images(16)[:, None], numbers(16, seed=100 + step))
        optimizer.zero_grad()
        loss.backward()
        assert network.key_backbone.conv_proj.weight.grad is None
        optimizer.step()
        network.after_step((step + 1) / 80)
        losses.append(loss.item())
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])
    leader, follower = network.backbone.conv_proj.weight, network.key_backbone.conv_proj.weight
    assert 0 < (follower - before).norm() < (leader - before).norm()
    held = follower.clone()
    network.after_step(1.0)
    assert torch.equal(follower, held)  # a momentum of 1 at the end


def test_the_embedding_is_the_mean_of_the_patches() -> None:
    backbone: Any = build_backbone("vit-tiny-gap/4", 3, SIDE)
    assert "class_token" not in backbone.state_dict()
    assert backbone.encoder.pos_embedding.shape == (1, GRID**2, 128)
    with torch.no_grad():
        states = feature_map(backbone, images())
        assert states.shape == (3, GRID**2, 128)
        torch.testing.assert_close(backbone(images()), states.mean(dim=1))


def test_mistakes_are_named() -> None:
    with pytest.raises(
        ConfigError, match="VisionTransformer cannot leave patches out to rebuild states; take a vision"
    ):
        IJEPA(build_backbone("vit-tiny/4", 3, SIDE), SMALL)
    with pytest.raises(ConfigError, match="momentum = 1.5"):
        IJEPAParameters(momentum=1.5)
    with pytest.raises(ShapeError, match="numbers has shape"):
        block_masks(torch.rand(2, 5), GRID)
    network, (context, blocks) = small(), block_masks(numbers(3), GRID)
    with pytest.raises(ShapeError, match="wanted has shape"):
        prediction_errors(network.backbone, network.decoder, images(), context, blocks, torch.rand(2, 36, 128))
