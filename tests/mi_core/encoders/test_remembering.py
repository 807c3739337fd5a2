"""A backbone that remembers answers as it would have, and is asked for what is new alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from mi_core.encoders.checkpoint import Encoder
from mi_core.encoders.remembering import Memory, remembering


class Counting(nn.Module):
    """A linear map that counts the images it is asked for."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.map = nn.Linear(12, 5)
        with torch.no_grad():
            self.map.weight.copy_(torch.randn(5, 12, generator=torch.Generator().manual_seed(seed)))
            self.map.bias.zero_()
        self.asked = 0

    def forward(self, images: torch.Tensor) -> Any:
        self.asked += len(images)
        return self.map(images.flatten(1))


def encoder_of(seed: int, head: float) -> Encoder:
    heads = {"logits": nn.Linear(5, 2)}
    with torch.no_grad():
        heads["logits"].weight.fill_(head)
        heads["logits"].bias.zero_()
    return Encoder(Counting(seed), heads, torch.zeros(1, 3, 1, 1), torch.ones(1, 3, 1, 1)).eval()


IMAGES = torch.rand(8, 3, 2, 2, generator=torch.Generator().manual_seed(0))


def test_heads_change_and_the_backbone_is_asked_once() -> None:
    memory = Memory()
    with torch.no_grad():
        for head, asked in ((1.0, IMAGES[:5]), (2.0, IMAGES), (3.0, IMAGES.flip(0))):
            plain, encoder = encoder_of(0, head), encoder_of(0, head)
            backbone = encoder.backbone
            found = remembering(encoder, memory)(asked)
            for output, expected in plain(asked).items():
                torch.testing.assert_close(found[output], expected)
            assert backbone.asked == {1.0: 5, 2.0: 3, 3.0: 0}[head]


def test_another_backbone_and_another_image_are_others() -> None:
    memory = Memory()
    with torch.no_grad():
        first = remembering(encoder_of(0, 1.0), memory)(IMAGES)["backbone"]
        other = encoder_of(1, 1.0)
        counted = other.backbone
        assert not torch.allclose(remembering(other, memory)(IMAGES)["backbone"], first)
        assert counted.asked == 8
        nearly = IMAGES.clone()
        nearly[3, 0, 0, 0] += 1e-6
        again = encoder_of(0, 1.0)
        counted = again.backbone
        remembering(again, memory)(nearly)
        assert counted.asked == 1


def test_gradients_are_those_of_the_backbone_itself() -> None:
    """Of images whose answers are remembered too; and nothing that holds a gradient is kept."""
    memory = Memory()
    encoder = remembering(encoder_of(0, 1.0), memory)
    with torch.no_grad():
        encoder(IMAGES)
    kept = len(memory.answers)
    nearly = IMAGES + 1e-3

    def gradient(of: Encoder) -> torch.Tensor:
        images = torch.cat([IMAGES, nearly]).requires_grad_(True)
        (found,) = torch.autograd.grad(of(images)["logits"].square().sum(), images)
        return found

    torch.testing.assert_close(gradient(encoder), gradient(encoder_of(0, 1.0)))
    assert len(memory.answers) == kept


def test_a_full_memory_keeps_no_more_and_forgets_nothing_true() -> None:
    memory = Memory(limit_bytes=3 * (5 * 4 + 16))
    with torch.no_grad():
        for _ in range(2):
            encoder = encoder_of(0, 1.0)
            counted = encoder.backbone
            torch.testing.assert_close(
                remembering(encoder, memory)(IMAGES)["logits"], encoder_of(0, 1.0)(IMAGES)["logits"]
            )
        assert counted.asked == 5
        assert len(memory.answers) == 3
