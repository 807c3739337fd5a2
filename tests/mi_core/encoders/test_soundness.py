"""Weights and answers that are not finite, or of another shape, are found before an encoder is used."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from mi_core.checks import ConfigError, ShapeError
from mi_core.encoders.checkpoint import Encoder
from mi_core.encoders.code import CodeBackbone
from mi_core.encoders.soundness import check_answers, check_weights


def encoder(function: Callable[[torch.Tensor], object], *, size: int | None = None) -> Encoder:
    mean, std = torch.zeros(1, 1, 1, 1), torch.ones(1, 1, 1, 1)
    return Encoder(CodeBackbone(function), {}, mean, std, size=size).eval()


def test_weights_that_are_not_finite_are_named() -> None:
    layer = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    check_weights(layer)
    for place, bad, name in (("0.weight", torch.inf, "0.weight"), ("1.running_var", torch.nan, "1.running_var")):
        spoiled = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
        spoiled.state_dict()[place].view(-1)[0] = bad
        with pytest.raises(ConfigError, match=f"{name} holds 1 values that are NaN or infinite, of"):
            check_weights(spoiled)


def test_a_mask_may_be_infinite() -> None:
    layer = nn.Linear(2, 2)
    layer.register_buffer("mask", torch.full((2, 2), -torch.inf))
    check_weights(layer)


def test_answers_that_are_embeddings_pass() -> None:
    check_answers(encoder(lambda images: images.flatten(1)), 1, 8)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda images: images, r"backbone: \(2, 1, 8, 8\) for 2 images, expected an embedding \(2, D\)"),
        (lambda images: images.flatten(1)[:1], r"backbone: \(1, 64\) for 2 images"),
        (
            lambda images: images.flatten(1).std(dim=1, keepdim=True) ** -1,
            "the embedding of a grey image is NaN or inf",
        ),
        (lambda images: (images.flatten(1) - 0.5).log(), "embedding of a grey image"),
        (nn.Linear(3, 3).eval(), "it does not answer an image of 1 x 8 x 8: .*mat1 and mat2"),
        (lambda images: "embedding", "returned a str"),
    ],
)
def test_other_answers_are_refused(function: Callable[[torch.Tensor], object], message: str) -> None:
    with pytest.raises((ConfigError, ShapeError), match=message):
        check_answers(encoder(function), 1, 8)


def test_it_is_asked_at_its_own_size() -> None:
    seen: list[int] = []

    def function(images: torch.Tensor) -> torch.Tensor:
        seen.append(images.shape[-1])
        return images.flatten(1)

    check_answers(encoder(function, size=16), 1, 8)
    assert seen == [16]
