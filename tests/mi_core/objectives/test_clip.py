"""CLIP's and SigLIP's losses against loops; text towers; trainings on pairs; supervised training."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from mi_core.checks import ConfigError, ShapeError
from mi_core.encoders import build_backbone
from mi_core.objectives import clip
from mi_core.objectives.supervised import Supervised, SupervisedParameters
from tests.raising import refused


def rows(count: int, width: int, seed: int) -> torch.Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed))


def test_image_text_info_nce_equals_the_paper() -> None:
    """Figure 3 of CLIP: cross-entropy along both axes of the scaled cosines, averaged."""
    images, texts = rows(4, 5, 1), 3 * rows(4, 5, 2)
    cosines = [[float(F.cosine_similarity(image, text, dim=0)) for text in texts] for image in images]
    total = 0.0
    for row in range(4):
        of_image = [math.exp(7.0 * cosines[row][other]) for other in range(4)]
        of_text = [math.exp(7.0 * cosines[other][row]) for other in range(4)]
        total -= math.log(of_image[row] / sum(of_image)) + math.log(of_text[row] / sum(of_text))
    assert float(clip.image_text_info_nce(images, texts, torch.tensor(7.0))) == pytest.approx(total / 8, rel=1e-5)
    refused(ShapeError, "texts has shape", clip.image_text_info_nce, images, texts[:3], torch.tensor(1.0))


def test_byte_tokens() -> None:
    tokens = clip.byte_tokens(["é", "abcdefgh"], 5)
    assert tokens.tolist() == [[0xC3, 0xA9, clip.END, clip.PAD, clip.PAD], [97, 98, 99, 100, clip.END]]


def test_the_text_tower_reads_up_to_the_end_and_no_further() -> None:
    torch.manual_seed(0)
    tower = clip.TextTransformer(16, 8, layers=2, heads=2, length=12).eval()
    short, long = clip.byte_tokens(["a cat"], 8), clip.byte_tokens(["a cat"], 12)
    torch.testing.assert_close(tower(short), tower(long))  # padding is not read
    assert not torch.allclose(tower(short), tower(clip.byte_tokens(["a bat"], 8)))


def test_clip_learns_pairs_and_keeps_its_scale() -> None:
    torch.manual_seed(0)
    parameters = clip.CLIPParameters(projection_width=16, text_width=32, text_layers=1)
    network = clip.CLIP(build_backbone("conv4", 3, 8), parameters).train()
    captions = ["a red square", "a blue circle", "two green dots", "nothing at all"]
    tokens = clip.CLIP.encode_targets(parameters, [None] * 4, captions)
    images = rows(4, 3 * 64, 0).reshape(4, 1, 3, 8, 8)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2)
    first = last = 0.0
    for step in range(30):
        loss = network(images, tokens)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        network.after_step(step / 30)
        first, last = first or loss.item(), loss.item()
    assert last < 0.3 * first
    with torch.no_grad():
        network.scale.fill_(9.0)
    network.after_step(1.0)
    assert network.scale.exp().item() == pytest.approx(100, rel=1e-5)


def test_clip_settings() -> None:
    with pytest.raises(ConfigError, match="training image 1 has no caption; give data.captions"):
        clip.CLIP.encode_targets(clip.CLIPParameters(), [0, 1], ["a dog", " "])
    refused(ConfigError, "text_tower = 'bert', allowed: bytes, open_clip", clip.CLIPParameters, text_tower="bert")
    refused(ConfigError, "needs text_weights", clip.CLIPParameters, text_tower="open_clip:RN50")
    refused(ConfigError, "text_width = 30 is not divisible by text_heads = 4", clip.CLIPParameters, text_width=30)
    refused(ConfigError, "is no file", clip.frozen_text_embeddings, "ViT-B-32", "nowhere.pt", ["a dog"])


def test_a_frozen_tower_of_open_clip(tmp_path: Path) -> None:
    open_clip = pytest.importorskip("open_clip")
    torch.manual_seed(1)
    model = open_clip.create_model("ViT-S-32-alt", pretrained=None).eval()
    torch.save(model.state_dict(), tmp_path / "tower.pt")
    parameters = clip.CLIPParameters(text_tower="open_clip:ViT-S-32-alt", text_weights=str(tmp_path / "tower.pt"))
    captions = ["a dog", "a cat", "a dog"]
    targets = clip.CLIP.encode_targets(parameters, [None] * 3, captions)
    assert targets is not None
    with torch.no_grad():
        expected = model.encode_text(open_clip.get_tokenizer("ViT-S-32-alt")(captions))
    torch.testing.assert_close(targets, expected)
    network = clip.CLIP(build_backbone("conv4", 3, 8), parameters)
    assert torch.isfinite(network(rows(3, 192, 0).reshape(3, 1, 3, 8, 8), targets))


def test_supervised_is_cross_entropy_on_the_backbone() -> None:
    torch.manual_seed(0)
    network = Supervised(build_backbone("conv4", 3, 8), SupervisedParameters(classes=4)).eval()
    images, labels = rows(3, 192, 0).reshape(3, 1, 3, 8, 8), torch.tensor([0, 3, 1])
    logits = network.logits(network.backbone(images[:, 0])).detach()
    expected = -sum(math.log(float(logits[row].softmax(0)[label])) for row, label in enumerate(labels)) / 3
    assert network(images, labels).item() == pytest.approx(expected, rel=1e-5)
    encoded = Supervised.encode_targets(SupervisedParameters(4), [3, 0], ["", ""])
    assert encoded.tolist() == [3, 0]
    with pytest.raises(ConfigError, match="label 4 of training image 1 is not within 0 to 3; set parameters.classes"):
        Supervised.encode_targets(SupervisedParameters(4), [0, 4], ["", ""])
    with pytest.raises(ConfigError, match="label None of training image 0"):
        Supervised.encode_targets(SupervisedParameters(4), [None], [""])


def test_the_loss_equals_the_paper() -> None:
    generator = torch.Generator().manual_seed(0)
    images, texts = (torch.randn(5, 4, generator=generator) for _ in range(2))
    total = 0.0
    for i, image in enumerate(images.tolist()):
        for j, text in enumerate(texts.tolist()):
            cosine = sum(x * y for x, y in zip(image, text, strict=True)) / math.hypot(*image) / math.hypot(*text)
            sign = 1 if i == j else -1
            total -= math.log(1 / (1 + math.exp(-sign * (7 * cosine - 3))))
    found = clip.sigmoid_loss(images, texts, torch.tensor(7.0), torch.tensor(-3.0))
    assert found.item() == pytest.approx(total / 5, rel=1e-5)
    refused(ShapeError, "texts has shape", clip.sigmoid_loss, images, texts[:3], torch.tensor(1.0), torch.tensor(0.0))


def test_pairs_are_learned_with_scale_and_bias() -> None:
    torch.manual_seed(0)
    parameters = clip.SigLIPParameters(projection_width=16, text_width=16, text_heads=2, text_layers=1, text_length=8)
    assert parameters.temperature == 0.1
    network = clip.SigLIP(build_backbone("conv4", 1, 8), parameters)
    images = (torch.rand(12, 1, 1, 8, 8) - 0.5) / 0.3
    captions = clip.SigLIP.encode_targets(parameters, [None] * 12, [f"thing {row}" for row in range(12)])
    optimizer = torch.optim.Adam(network.parameters(), lr=5e-3)
    losses = []
    for _ in range(60):
        loss = network(images, captions)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        network.after_step(0.5)
        losses.append(loss.item())
    assert losses[-1] < 0.3 * losses[0]
    assert network.bias.item() != -10
    assert network.bias.grad is not None
    assert network.scale.grad is not None
