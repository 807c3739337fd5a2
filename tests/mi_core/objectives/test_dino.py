"""DINO: its loss against a loop from the paper and against lightly, its centre, its teacher, and what learns."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from mi_core.checks import ConfigError, ShapeError
from mi_core.encoders import build_backbone
from mi_core.encoders.heads import Prototypes
from mi_core.objectives.dino import DINO, DINOParameters, dino_loss

SMALL = {"projection_hidden": 32, "projection_width": 8, "prototypes": 24}


def scores(seed: int, batch: int = 6, count: int = 7) -> torch.Tensor:
    return torch.randn(batch, count, generator=torch.Generator().manual_seed(seed))


def network(**settings: float) -> DINO:
    torch.manual_seed(0)
    return DINO(build_backbone("conv4", 1, 8), DINOParameters(**SMALL | settings))  # type: ignore[arg-type]


def test_the_loss_equals_the_paper() -> None:
    student, teacher, centre = scores(0), scores(1), scores(2)[0]

    def softmax(row: list[float], temperature: float) -> list[float]:
        powers = [math.exp(value / temperature) for value in row]
        return [power / sum(powers) for power in powers]

    total = 0.0
    for one, other in zip(student.tolist(), teacher.tolist(), strict=True):
        wanted = softmax([value - its for value, its in zip(other, centre.tolist(), strict=True)], 0.2)
        total -= sum(p * math.log(q) for p, q in zip(wanted, softmax(one, 0.5), strict=True))
    assert dino_loss(student, teacher, centre, 0.5, 0.2).item() == pytest.approx(total / 6, rel=1e-5)


def test_loss_and_centre_equal_lightly() -> None:
    loss = pytest.importorskip("lightly.loss")
    made = network()
    referee = loss.DINOLoss(output_dim=24, warmup_teacher_temp=0.04, teacher_temp=0.04)
    for step in range(3):
        views = torch.randn(6, 2, 1, 8, 8, generator=torch.Generator().manual_seed(step))
        with torch.no_grad():
            students, teachers = made.answer(views)
            torch.testing.assert_close(made(views), referee(teachers, students, epoch=50), rtol=1e-5, atol=1e-6)
        centre = referee.center
        torch.testing.assert_close(made.centre, getattr(centre, "value", centre).reshape(-1), rtol=1e-5, atol=1e-6)


def test_the_centre_stands_still_in_evaluation() -> None:
    made = network().eval()
    made(torch.randn(6, 2, 1, 8, 8))
    assert not made.centre.any()


def test_no_gradient_flows_into_the_teacher() -> None:
    student, teacher = scores(3).requires_grad_(), scores(4).requires_grad_()
    dino_loss(student, teacher, torch.zeros(7), 0.1, 0.04).backward()
    assert student.grad is not None
    assert teacher.grad is None


def test_the_teacher_has_all_heads_and_follows() -> None:
    made = network(momentum=0.5)
    assert made.copied == ("projection", "prototypes")
    followers = [made.key_backbone, made.key_projection, made.key_prototypes]
    before = made.key_prototypes.weight_v.clone()
    with torch.no_grad():
        made.prototypes.weight_v.add_(1.0)
    made.after_step(0.5)  # momentum .75
    torch.testing.assert_close(made.key_prototypes.weight_v, before + 0.25)
    made.restart()
    torch.testing.assert_close(made.key_prototypes.weight_v, made.prototypes.weight_v)
    assert not any(weight.requires_grad for part in followers for weight in part.parameters())


def test_prototypes_are_cosines_and_those_of_weight_norm() -> None:
    layer = Prototypes(8, 5)
    rows = scores(5, 4, 8)
    expected = nn.functional.cosine_similarity(rows[:, None], layer.weight_v[None], dim=2)
    torch.testing.assert_close(layer(rows), expected)
    normed = nn.utils.parametrizations.weight_norm(nn.Linear(8, 5, bias=False))
    with torch.no_grad():
        layer.weight_g.copy_(normed.parametrizations.weight.original0)
        layer.weight_v.copy_(normed.parametrizations.weight.original1)
    torch.testing.assert_close(layer(rows), normed(nn.functional.normalize(rows, dim=1)))


def test_bad_input_is_refused() -> None:
    with pytest.raises(ShapeError, match="teacher has shape"):
        dino_loss(scores(0), scores(1)[:3], torch.zeros(7), 0.1, 0.04)
    with pytest.raises(ShapeError, match="centre has shape"):
        dino_loss(scores(0), scores(1), torch.zeros(6), 0.1, 0.04)
    for wrong in ({"temperature": 0.0}, {"prototypes": 1}, {"momentum": 1.5}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            DINOParameters(**wrong)  # type: ignore[arg-type]
