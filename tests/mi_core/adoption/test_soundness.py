"""Weights and answers that are not finite, or of another shape, are found before an encoder is used."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mi_core.adoption.code import CodeBackbone, embedding_of
from mi_core.adoption.soundness import check_answers, check_weights
from mi_core.checks import ConfigError, ShapeError
from mi_core.encoders.checkpoint import Encoder
from tests.raising import refused


def encoder(function: Callable[[torch.Tensor], object], *, size: int | None = None) -> Encoder:
    mean, std = torch.zeros(1, 1, 1, 1), torch.ones(1, 1, 1, 1)
    return Encoder(CodeBackbone(function), {}, mean, std, size=size).eval()


def test_weights_that_are_not_finite_are_named() -> None:
    layer = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    check_weights(layer)
    for place, bad, name in (("0.weight", torch.inf, "0.weight"), ("1.running_var", torch.nan, "1.running_var")):
        spoiled = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
        spoiled.state_dict()[place].view(-1)[0] = bad
        refused(ConfigError, f"{name} holds 1 values that are NaN or infinite, of", check_weights, spoiled)


def test_a_mask_may_be_infinite() -> None:
    layer = nn.Linear(2, 2)
    layer.register_buffer("mask", torch.full((2, 2), -torch.inf))
    check_weights(layer)


def test_answers_that_are_embeddings_pass() -> None:
    check_answers(encoder(lambda images: images.flatten(1)), 1, 8)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda images: images.sum(), r"backbone: \(\) for 2 images, expected an embedding \(B, D\)"),
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
    refused((ConfigError, ShapeError), message, check_answers, encoder(function), 1, 8)


def test_it_is_asked_at_its_own_size() -> None:
    seen: list[int] = []

    def function(images: torch.Tensor) -> torch.Tensor:
        seen.append(images.shape[-1])
        return images.flatten(1)

    check_answers(encoder(function, size=16), 1, 8)
    assert set(seen) == {16}


def hidden(function: Callable[[torch.Tensor], Any]) -> Callable[[torch.Tensor], Any]:
    """A function around another or a network, as programs write them."""

    def embed(images: torch.Tensor) -> Any:
        return function(images)

    return embed


def convolutions(width: int = 32) -> nn.Sequential:
    torch.manual_seed(0)
    deep = [
        part for _ in range(6) for part in (nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU())
    ]
    return nn.Sequential(nn.Conv2d(1, width, 3), *deep, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def blurred(images: torch.Tensor) -> torch.Tensor:
    """Noise of a fixed seed: the same batch gets the same answer, but an image gets that of its place."""
    return images.flatten(1) + torch.randn(len(images), 64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("function", "least", "most"),
    [
        (lambda images: F.dropout(images.flatten(1), 0.3, training=True), 0.3, 1.5),
        (lambda images: images.flatten(1) + 0.01 * torch.randn(len(images), 64), 0.005, 0.1),
        (nn.Sequential(nn.Flatten(), nn.Dropout(0.5)).train(), 0.3, 2.0),
    ],
)
def test_answers_that_differ_when_asked_again_are_told_with_the_size_of_the_difference(
    function: Callable[[torch.Tensor], object], least: float, most: float
) -> None:
    answers = check_answers(encoder(hidden(function)), 1, 8)
    assert answers.noisy and least < answers.noise["median"] <= answers.noise["largest"] < most
    assert f"the largest {answers.noise['largest']:.2g}" in answers.words()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_round_off_is_no_difference(dtype: torch.dtype) -> None:
    network = convolutions().eval().to(dtype)
    answers = check_answers(encoder(lambda images: network(images.to(dtype))), 1, 32)
    assert not answers.noisy and answers.words() == ""


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (convolutions().train(), "its BatchNorm2d is in training mode: asking changes it"),
        (nn.Sequential(convolutions().eval(), nn.BatchNorm1d(32).train()), "its BatchNorm1d is in training mode"),
        (
            nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64, track_running_stats=False)).eval(),
            "depends on the other images",
        ),
        (lambda images: images.flatten(1) - images.flatten(1).mean(dim=0), "depends on the other images of the batch"),
        (blurred, "depends on the other images of the batch, by 1"),
    ],
)
def test_answers_that_depend_on_the_batch_are_refused(network: Callable[..., torch.Tensor], message: str) -> None:
    """Also of a network that a function hides; its statistics, mode and gradients stay as they were."""
    module = network if isinstance(network, nn.Module) else nn.Identity()
    before = {name: one.clone() for name, one in module.state_dict().items()}
    modes = [part.training for part in module.modules()]
    refused(ConfigError, message, check_answers, encoder(hidden(network)), 1, 8)
    assert all(torch.equal(one, before[name]) for name, one in module.state_dict().items())
    assert [part.training for part in module.modules()] == modes
    assert all(one.grad is None and one.requires_grad for one in module.parameters())


def test_a_network_that_takes_shape_at_its_first_call_can_be_trained_on() -> None:
    network = nn.Sequential(nn.Flatten(), nn.LazyLinear(4)).eval()
    check_answers(encoder(hidden(network)), 1, 8)
    network(torch.rand(2, 1, 8, 8)).sum().backward()
    assert network[1].weight.grad is not None


class Pair(NamedTuple):
    pooler_output: torch.Tensor
    attentions: None = None


ROWS, MAPS = torch.arange(6.0).reshape(2, 3), torch.rand(2, 3, 4, 4)


@pytest.mark.parametrize(
    ("answer", "expected", "words"),
    [
        (ROWS, ROWS, ""),
        (ROWS.numpy(), ROWS, ""),
        ((ROWS,), ROWS, "of a tuple the entry 0 is taken"),
        ({"embedding": ROWS.numpy(), "loss": None}, ROWS, "of a dict the embedding is taken"),
        ({"last_hidden_state": torch.rand(2, 5, 3), "pooler_output": ROWS}, ROWS, "the pooler_output is taken"),
        ({"pooler_output": ROWS + 1, "image_embeds": ROWS}, ROWS, "the image_embeds is taken"),
        ({"x_norm_clstoken": ROWS, "x_norm_patchtokens": torch.rand(2, 5, 3)}, ROWS, "the x_norm_clstoken is taken"),
        (Pair(ROWS), ROWS, "of a Pair the pooler_output is taken"),
        (MAPS, MAPS.mean(dim=(2, 3)), r"of maps \(3, 4, 4\) the mean over space is taken"),
        (MAPS.permute(0, 2, 3, 1), MAPS.mean(dim=(2, 3)), r"of maps \(4, 4, 3\) the mean over space is taken"),
        (ROWS[:, :, None, None], ROWS, "mean over space"),
        ({"layer4": MAPS}, MAPS.mean(dim=(2, 3)), "the layer4 is taken, of maps"),
    ],
)
def test_the_one_embedding_in_an_answer_is_taken_and_told(answer: Any, expected: torch.Tensor, words: str) -> None:
    rows, told = embedding_of(answer)
    torch.testing.assert_close(rows, expected)
    assert re.search(words, told) if words else told == ""


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        ((ROWS, ROWS), ConfigError, r"a tuple of 0, 1; .* such as lambda x: model\(x\)\[0\]"),
        ({"z": ROWS, "h": ROWS}, ConfigError, r"a dict of z, h; .* lambda x: model\(x\)\['z'\]"),
        (torch.rand(2, 5, 3), ConfigError, r"a vector for every token; .* lambda x: model\(x\)\[:, 0\]"),
        (torch.rand(2, 4, 4, 4), ConfigError, r"does not tell its channels; .* lambda x: model\(x\)\.mean\(\(2, 3\)\)"),
        (torch.rand(2, 3, 4, 5), ConfigError, "does not tell its channels"),
        ({"loss": None}, ShapeError, "returned a dict, expected an array or tensor"),
        ("embedding", ShapeError, "returned a str"),
    ],
)
def test_an_answer_with_several_embeddings_is_refused_with_the_line_to_write(
    answer: Any, error: type[Exception], message: str
) -> None:
    refused(error, message, embedding_of, answer)


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.int8])
def test_embeddings_of_other_dtypes_become_float32(dtype: Any) -> None:
    made = encoder(lambda images: images.flatten(1).numpy().astype(dtype))
    assert made(torch.ones(2, 1, 2, 2))["backbone"].dtype == torch.float32
