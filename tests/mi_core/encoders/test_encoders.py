"""Backbones have the documented sizes; checkpoints round-trip and are refused when they do not fit."""

from __future__ import annotations

import pytest
import torch

from mi_core.checks import ConfigError
from mi_core.encoders import ENCODERS, Architecture, build_backbone
from mi_core.encoders.checkpoint import Encoder, channelwise, fingerprint, load_weights, seeded, weights_bytes
from mi_core.encoders.heads import projection_head
from tests.raising import refused


def normalisation(mean: float, std: float, channels: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    return channelwise((mean,), channels), channelwise((std,), channels)


def encoder(seed: int = 0) -> Encoder:
    def build() -> Encoder:
        head = projection_head((128, 32, 16), batch_norm=True)
        return Encoder(build_backbone("conv4", 1, 8), {"projection": head}, *normalisation(0.5, 0.25))

    return seeded(seed, build).eval()


@pytest.mark.parametrize(
    ("name", "channels", "size", "width", "parameters"),
    [
        ("conv4", 1, 8, 128, 97_392),
        ("conv4", 3, 16, 128, 97_680),
        ("keras-conv4", 3, 32, 128, 462_848),
        ("resnet8", 3, 32, 128, 307_360),
        ("resnet8-narrow", 3, 32, 32, 107_104),
        ("resnet8-wide", 3, 32, 256, 832_416),
        ("resnet18", 3, 32, 512, 11_168_832),  # torchvision's 11,689,512 - 513,000 (fc) - 9,408 + 1,728 (stem)
        ("resnet18-imagenet", 3, 64, 512, 11_176_512),
        ("resnet18-imagenet", 1, 64, 512, 11_170_240),
        ("resnet50", 3, 32, 2048, 23_500_352),  # 25,557,032 - 2,049,000 (fc) - 9,408 + 1,728 (stem)
        ("resnet50-imagenet", 3, 64, 2048, 23_508_032),
        ("vgg11-bn", 3, 32, 512, 9_225_984),  # torchvision's 132,868,840 - 123,642,856 (classifier)
        ("vgg11-bn", 1, 32, 512, 9_224_832),
        ("mobilenetv2", 3, 32, 1280, 2_223_872),  # torchvision's 3,504,872 - 1,281,000 (classifier)
        ("mobilenetv2-imagenet", 1, 64, 1280, 2_223_296),
        ("vit-tiny/4", 1, 8, 128, 796_288),
        ("vit-s/16", 3, 224, 384, 21_665_664),
        ("vit-b/16", 3, 224, 768, 85_798_656),  # torchvision's 86,567,656 - 769,000 (head)
    ],
)
def test_backbone_sizes(name: str, channels: int, size: int, width: int, parameters: int) -> None:
    with torch.device("meta" if parameters > 9_000_000 else "cpu"):  # shapes alone of what is large
        backbone = build_backbone(name, channels, size).eval()
        assert sum(parameter.numel() for parameter in backbone.parameters()) == parameters
        assert backbone.width == width
        assert backbone(torch.rand(2, channels, size, size)).shape == (2, width)


def test_unknown_backbone_lists_the_known() -> None:
    refused(ConfigError, "resnet81.*allowed: " + ", ".join(sorted(ENCODERS)), build_backbone, "resnet81", 3, 32)


def test_a_network_of_others_states_its_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENCODERS, "bare", Architecture("No width.", lambda shape: torch.nn.Flatten()))
    refused(ConfigError, "backbone = 'bare' makes a network without the attribute width", build_backbone, "bare", 3, 32)


def test_an_encoder_without_padding_needs_large_images() -> None:
    refused(ConfigError, "keras-conv4' needs images of 31 pixels or more, got 30", build_backbone, "keras-conv4", 3, 30)
    assert build_backbone("keras-conv4", 1, 31)(torch.rand(2, 1, 31, 31)).shape == (2, 128)


def test_patches_and_their_size() -> None:
    for name, message in (
        ("vit-s", "write vit-s/16 for patches of 16 pixels"),
        ("resnet18/4", "write resnet18, it has no patches"),
        ("vit-s/5", "the patch size must divide the image size 32"),
        ("vit-s/x", "the patch size must divide"),
        ("clip-vit-b/8", "has patches of 16 or 32 pixels"),
    ):
        refused(ConfigError, message, build_backbone, name, 3, 32)


def test_other_sizes_are_resized_for_the_backbone() -> None:
    model = encoder()
    model.size, model.interpolation = 8, "bicubic"
    images = torch.rand(2, 1, 20, 20)
    resized = torch.nn.functional.interpolate(images, (8, 8), mode="bicubic", antialias=True).clamp(0, 1)
    torch.testing.assert_close(model(images)["projection"], model(resized)["projection"])


def test_encoder_normalises_once_and_projects_the_backbone() -> None:
    model = encoder()
    images = torch.rand(3, 1, 8, 8)
    embeddings = model(images)
    torch.testing.assert_close(embeddings["backbone"], model.backbone((images - 0.5) / 0.25))
    torch.testing.assert_close(embeddings["projection"], model.projection(embeddings["backbone"]))


def test_weights_of_another_layout_are_refused() -> None:
    wide = Encoder(build_backbone("conv4", 1, 8), {}, *normalisation(0.5, 0.5))
    with pytest.raises(ConfigError, match=r"unexpected \['projection"):
        load_weights(wide, weights_bytes(encoder()))
    with pytest.raises(ConfigError, match=r"missing \['projection"):
        load_weights(encoder(), weights_bytes(wide))
    colour = Encoder(build_backbone("conv4", 3, 8), {}, *normalisation(0.5, 0.5, 3))
    with pytest.raises(ConfigError, match=r"backbone.layers.conv1.weight \(16, 3, 3, 3\) instead of \(16, 1, 3, 3\)"):
        load_weights(wide, weights_bytes(colour))


def test_seeded_building_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    assert fingerprint(encoder(9)) == fingerprint(encoder(9))
    assert torch.equal(torch.rand(1), expected)
