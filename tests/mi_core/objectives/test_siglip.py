"""The sigmoid loss against a loop from the paper, and a training on pairs."""

from __future__ import annotations

import math

import pytest
import torch

from mi_core.checks import ShapeError
from mi_core.encoders import build_backbone
from mi_core.objectives.clip import SigLIP, SigLIPParameters, sigmoid_loss


def test_the_loss_equals_the_paper() -> None:
    generator = torch.Generator().manual_seed(0)
    images, texts = (torch.randn(5, 4, generator=generator) for _ in range(2))
    total = 0.0
    for i, image in enumerate(images.tolist()):
        for j, text in enumerate(texts.tolist()):
            cosine = sum(x * y for x, y in zip(image, text, strict=True)) / math.hypot(*image) / math.hypot(*text)
            sign = 1 if i == j else -1
            total -= math.log(1 / (1 + math.exp(-sign * (7 * cosine - 3))))
    found = sigmoid_loss(images, texts, torch.tensor(7.0), torch.tensor(-3.0))
    assert found.item() == pytest.approx(total / 5, rel=1e-5)
    with pytest.raises(ShapeError, match="texts has shape"):
        sigmoid_loss(images, texts[:3], torch.tensor(1.0), torch.tensor(0.0))


def test_pairs_are_learned_with_scale_and_bias() -> None:
    torch.manual_seed(0)
    parameters = SigLIPParameters(projection_width=16, text_width=16, text_heads=2, text_layers=1, text_length=8)
    assert parameters.temperature == 0.1
    network = SigLIP(build_backbone("conv4", 1, 8), parameters)
    images = (torch.rand(12, 1, 1, 8, 8) - 0.5) / 0.3
    captions = SigLIP.encode_targets(parameters, [None] * 12, [f"thing {row}" for row in range(12)])
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
