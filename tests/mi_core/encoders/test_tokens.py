"""Feature maps: their mean, or their class token, is the embedding that the encoder returns anyway."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mi_core.checks import ConfigError
from mi_core.encoders import build_backbone
from mi_core.encoders.checkpoint import seeded
from mi_core.encoders.tokens import feature_map, fixed_side


@pytest.mark.parametrize("name", ["conv4", "resnet8", "resnet18", "resnet18-imagenet", "vgg11-bn", "mobilenetv2"])
def test_the_mean_over_positions_is_the_embedding(name: str) -> None:
    backbone = seeded(0, lambda: build_backbone(name, 3, 32)).eval()
    images = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        tokens = feature_map(backbone, images)
        torch.testing.assert_close(tokens.mean(dim=1), backbone(images), rtol=1e-4, atol=1e-5)
    assert fixed_side(backbone) is None


def test_a_transformers_patches() -> None:
    backbone = seeded(0, lambda: build_backbone("vit-tiny/8", 3, 32)).eval()
    images = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        tokens = feature_map(backbone, images)
        states = backbone.encoder(  # type: ignore[operator, union-attr]
            torch.cat([backbone.class_token.expand(2, -1, -1), backbone._process_input(images)], dim=1)  # type: ignore
        )
    assert tokens.shape == (2, 16, 128)
    torch.testing.assert_close(states[:, 0], backbone(images))  # the class token is the embedding ...
    torch.testing.assert_close(states[:, 1:], tokens)  # ... and not among the patches
    assert fixed_side(backbone) == 32


def test_clips_patches() -> None:
    pytest.importorskip("open_clip")
    backbone = build_backbone("clip-vit-b/32", 3, 64).eval()
    with torch.inference_mode():
        tokens = feature_map(backbone, torch.rand(1, 3, 64, 64))
    assert tokens.shape == (1, 4, 768)
    assert fixed_side(backbone) == 64
    assert backbone(torch.rand(1, 3, 64, 64)).shape == (1, 768)  # the tower is left as it was


def test_none() -> None:
    with pytest.raises(ConfigError, match="a backbone of type Flatten gives no feature map; leave part-crop out"):
        feature_map(nn.Flatten(), torch.zeros(1, 3, 4, 4))
