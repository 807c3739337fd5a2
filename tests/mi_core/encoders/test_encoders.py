"""Backbones have the documented sizes; checkpoints round-trip and are refused when they do not fit."""

from __future__ import annotations

import pytest
import torch

from mi_core.checks import ConfigError
from mi_core.encoders import ENCODERS, build_backbone
from mi_core.encoders.checkpoint import Encoder, fingerprint, load_weights, seeded, weights_bytes
from mi_core.encoders.projection import projection_head


def encoder(seed: int = 0) -> Encoder:
    def build() -> Encoder:
        head = projection_head(128, 32, 16, batch_norm=True)
        return Encoder(build_backbone("conv4", 1), head, torch.tensor([0.5]), torch.tensor([0.25]))

    return seeded(seed, build).eval()


@pytest.mark.parametrize(
    ("name", "channels", "size", "width", "parameters"),
    [
        ("conv4", 1, 8, 128, 97_392),
        ("conv4", 3, 16, 128, 97_680),
        ("resnet8", 3, 32, 128, 307_360),
        (
            "resnet18",
            3,
            32,
            512,
            11_168_832,
        ),  # torchvision's 11,689,512 - 513,000 (fc) - 9,408 + 1,728 (stem)
        ("resnet18-imagenet", 3, 64, 512, 11_176_512),
        ("resnet18-imagenet", 1, 64, 512, 11_170_240),
    ],
)
def test_backbone_sizes(name: str, channels: int, size: int, width: int, parameters: int) -> None:
    backbone = build_backbone(name, channels).eval()
    assert sum(parameter.numel() for parameter in backbone.parameters()) == parameters
    assert backbone.width == width
    assert backbone(torch.rand(2, channels, size, size)).shape == (2, width)


def test_unknown_backbone_lists_the_known() -> None:
    with pytest.raises(ConfigError, match="resnet81.*allowed: " + ", ".join(sorted(ENCODERS))):
        build_backbone("resnet81", 3)


def test_cifar_stem_keeps_resolution() -> None:
    backbone = build_backbone("resnet18", 3)
    assert backbone.layer1(backbone.maxpool(backbone.conv1(torch.rand(1, 3, 32, 32)))).shape[-1] == 32


def test_encoder_normalises_once_and_projects_the_backbone() -> None:
    model = encoder()
    images = torch.rand(3, 1, 8, 8)
    embeddings = model(images)
    torch.testing.assert_close(embeddings["backbone"], model.backbone((images - 0.5) / 0.25))
    torch.testing.assert_close(embeddings["projection"], model.projection(embeddings["backbone"]))


def test_weights_round_trip() -> None:
    one, other = encoder(1), encoder(2)
    images = torch.rand(3, 1, 8, 8)
    assert not torch.equal(one(images)["projection"], other(images)["projection"])
    assert fingerprint(one) != fingerprint(other)
    load_weights(other, weights_bytes(one))
    assert torch.equal(one(images)["projection"], other(images)["projection"])
    assert fingerprint(one) == fingerprint(other)


def test_weights_of_another_layout_are_refused() -> None:
    wide = Encoder(build_backbone("conv4", 1), None, torch.tensor([0.5]), torch.tensor([0.5]))
    with pytest.raises(ConfigError, match=r"unexpected \['projection"):
        load_weights(wide, weights_bytes(encoder()))
    with pytest.raises(ConfigError, match=r"missing \['projection"):
        load_weights(encoder(), weights_bytes(wide))
    colour = Encoder(build_backbone("conv4", 3), None, torch.tensor([0.5]), torch.tensor([0.5]))
    with pytest.raises(ConfigError, match=r"wrong shape \['backbone.layers.conv1.weight \(16, 3, 3, 3\) instead of"):
        load_weights(wide, weights_bytes(colour))


def test_seeded_building_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    assert fingerprint(encoder(9)) == fingerprint(encoder(9))
    assert torch.equal(torch.rand(1), expected)
