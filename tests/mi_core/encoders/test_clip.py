"""Image towers of open_clip, split where the space shared with texts begins, give the whole tower's embedding."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from mi_core.adoption.builders import activation_note, convert_open_clip
from mi_core.checks import ConfigError
from mi_core.encoders.clip import CLIPBackbone, SplitTower, split_tower, take_projection

open_clip = pytest.importorskip("open_clip")
OPENAI = {name: torch.tensor(1) for name in ("input_resolution", "context_length", "vocab_size")}


def residual() -> Any:
    from open_clip.modified_resnet import ModifiedResNet

    return ModifiedResNet(layers=[1, 1, 1, 1], output_dim=6, heads=4, image_size=64, width=8)


def of_timm(model: str, pool: str, proj: str | None) -> Any:
    from open_clip.timm_model import TimmModel

    return TimmModel(model, embed_dim=6, image_size=64, pool=pool, proj=proj)


@pytest.mark.parametrize(
    ("tower", "key", "widths"),
    [
        (residual, "attnpool.c_proj", (256, 6)),  # RN50 and larger
        (lambda: of_timm("test_convnext", "", "linear"), "head", (64, 6)),  # ConvNeXt
        (lambda: of_timm("test_convnext", "", "mlp"), "head", (64, 6)),
        (lambda: of_timm("test_vit", "token", None), "trunk.head", (64, 6)),  # EVA
        (lambda: of_timm("test_vit3", "map", "none"), "", (96, 96)),  # SigLIP: no projection of its own
    ],
)
def test_the_parts_are_the_tower(tower: Any, key: str, widths: tuple[int, int]) -> None:
    torch.manual_seed(0)
    whole = tower().eval()
    side = 160 if key in ("trunk.head", "", "head") else 64
    images = torch.rand(2, 3, side, side)
    state = {f"visual.{name}": value for name, value in whole.state_dict().items()}
    with torch.no_grad():
        expected = whole(images)
    split = tower().eval()
    projection, found = take_projection(split)
    assert found == key
    parts = SplitTower(CLIPBackbone(split, None), projection, key, None)
    weights = convert_open_clip(state, parts, "any")
    own = nn.ModuleDict({"backbone": parts.backbone, "projection": parts.projection})
    own.load_state_dict(weights)
    with torch.no_grad():
        embedding = own["backbone"](images)
        torch.testing.assert_close(own["projection"](embedding), expected, rtol=1e-4, atol=1e-5)
    assert (embedding.shape[1], expected.shape[1]) == widths
    assert ("backbone and projection are the same, the tower ends in the shared space" in parts.notes) == (key == "")


def test_openai_s_own_files_need_quickgelu() -> None:
    parts = split_tower("ViT-S-32-alt")
    with pytest.raises(ConfigError, match="the file is OpenAI's own, .* set load = 'open_clip:ViT-B-32-quickgelu'"):
        convert_open_clip(OPENAI, parts, "ViT-B-32")
    assert convert_open_clip(OPENAI | {"visual.conv1.weight": torch.ones(1)}, parts, "ViT-B-32-quickgelu") == {
        "backbone.tower.conv1.weight": torch.ones(1)
    }


def test_what_activation_a_file_needs_is_refused_or_told() -> None:
    assert activation_note("ViT-B-32", "laion2b_s34b_b79k") == activation_note("ViT-B-32-quickgelu", "openai") == ""
    with pytest.raises(ConfigError, match="openai of ViT-B-32 need load = 'open_clip:ViT-B-32-quickgelu:openai'"):
        activation_note("ViT-B-32", "openai")
    with pytest.raises(ConfigError, match="need load = 'open_clip:ViT-B-32:laion2b_s34b_b79k'"):
        activation_note("ViT-B-32-quickgelu", "laion2b_s34b_b79k")
    assert activation_note("ViT-B-32", "").startswith("taken to have GELU, which no file tells; weights with QuickGELU")
    assert "openai, laion400m_e31" in activation_note("ViT-B-32", "")
    assert "taken to have QuickGELU" in activation_note("ViT-B-32-quickgelu", "")
    assert activation_note("ViT-B-16-SigLIP", "") == ""
