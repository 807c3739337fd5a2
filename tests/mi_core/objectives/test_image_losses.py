"""The losses of one image against a bank: each is the loss of training where the bank is the rest of the batch."""

from __future__ import annotations

import copy
import math
from itertools import permutations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from mi_core.checks import ConfigError, ShapeError
from mi_core.encoders.checkpoint import Encoder, seeded
from mi_core.encoders.hidden_blocks import block_masks, mask_numbers
from mi_core.features.loss_gradient import CaptionGradient, MaskedGradient, PredictionGradient, ViewsGradient
from mi_core.objectives.clip import sigmoid_loss
from mi_core.objectives.i_jepa import IJEPAParameters
from mi_core.objectives.image_losses import (
    CAPTION_LOSSES,
    VIEW_LOSSES,
    caption_sigmoid,
    views_byol,
    views_dino,
)
from mi_core.objectives.mae import MAEParameters
from mi_core.querying.gradients import layer_groups, losses_and_gradients
from mi_core.streams import uniforms
from mi_core.training.loop import PretrainingParameters, audited_encoder


def drawn(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


QUERIES, KEYS, BANK = drawn(0, 3, 5), drawn(1, 3, 5), drawn(2, 7, 5)


def test_byol_is_the_mean_over_ordered_pairs() -> None:
    expected = [2 - 2 * float(F.cosine_similarity(QUERIES[i], KEYS[j], dim=0)) for i, j in permutations(range(3), 2)]
    assert float(views_byol(QUERIES, KEYS, BANK, 1.0)) == pytest.approx(np.mean(expected), rel=1e-5)


def test_dino_takes_the_bank_s_mean_as_its_centre() -> None:
    centre, expected = BANK.mean(dim=0), []
    for i, j in permutations(range(3), 2):
        wanted = torch.softmax((KEYS[j] - centre) / 0.04, dim=0).double()
        expected.append(-float((wanted * torch.log_softmax(QUERIES[i].double() / 0.1, dim=0)).sum()))
    assert float(views_dino(QUERIES, KEYS, BANK, 0.1)) == pytest.approx(np.mean(expected), rel=1e-4)


def test_the_sigmoid_loss_of_all_pairs_counts_those_of_two_images_twice() -> None:
    """Algorithm 1 sums over all pairs of a batch; that of one image has its row and its column."""
    images, texts, scale, bias = drawn(3, 6, 8), drawn(4, 6, 8), 5.0, -1.0
    others = [[at for at in range(6) if at != row] for row in range(6)]
    own = [
        float(caption_sigmoid(images[[row]], texts[row], images[rest], texts[rest], 1 / scale, bias))
        for row, rest in enumerate(others)
    ]
    logits = scale * F.normalize(images, dim=1) @ F.normalize(texts, dim=1).T + bias
    diagonal = -float(F.logsigmoid(logits.diagonal()).sum())
    whole = 6 * float(sigmoid_loss(images, texts, torch.tensor(scale), torch.tensor(bias)))
    assert sum(own) == pytest.approx(2 * whole - diagonal, rel=1e-5)


def test_a_planted_image_has_the_lower_loss() -> None:
    """Views that agree and differ from the bank, against views that differ."""
    alike = QUERIES[:1] + 0.05 * drawn(5, 3, 5)
    for name, loss in VIEW_LOSSES.items():
        temperature = loss.temperature
        assert float(loss.of(alike, alike, BANK, temperature)) < float(loss.of(QUERIES, QUERIES, BANK, temperature)), (
            name
        )
    for name, (loss, temperature) in CAPTION_LOSSES.items():
        with_its_own, with_another = (
            float(loss(alike, text, BANK, drawn(6, 7, 5), temperature, -10.0)) for text in (alike[0], -alike[0])
        )
        assert with_its_own < with_another, name


def test_shapes_are_checked() -> None:
    for loss in VIEW_LOSSES.values():
        with pytest.raises(ShapeError, match="keys has shape"):
            loss.of(QUERIES, KEYS[:2], BANK, 1.0)
        with pytest.raises(ShapeError, match="bank has shape"):
            loss.of(QUERIES, KEYS, BANK[:, :4], 1.0)
    with pytest.raises(ShapeError, match="bank_texts has shape"):
        caption_sigmoid(QUERIES, KEYS[0], BANK, BANK[:3], 1.0, 0.0)


def loss_and_norms(encoder: Encoder, loss: torch.Tensor, groups: list[list[str]]) -> list[float]:
    """A loss, and the norms of its gradient by plain autograd, group by group."""
    encoder.zero_grad()
    loss.backward()
    held = dict(encoder.named_parameters())
    norms = (sum(float(held[name].grad.square().sum()) for name in group) for group in groups)  # type: ignore[union-attr]
    return [float(loss.detach()), *map(math.sqrt, norms)]


def autoencoder() -> Encoder:
    how = PretrainingParameters(
        "vit-tiny/4", "mae", MAEParameters(decoder_width=32, decoder_layers=2, decoder_heads=2), mean=(0.4,), std=(0.3,)
    )
    return audited_encoder(how, 3, 12).eval().requires_grad_(False)


def test_gradients_of_the_masked_error_are_those_of_plain_autograd() -> None:
    model, views = autoencoder(), torch.rand(2, 3, 3, 12, 12, generator=torch.Generator().manual_seed(7))
    measure = MaskedGradient(masked=0.5, views=3, layers=4)
    found = losses_and_gradients(model, "backbone", views, None, measure)
    together = losses_and_gradients(model, "backbone", views, None, measure, together=True)
    torch.testing.assert_close(together, found, rtol=1e-4, atol=1e-5)
    plain = copy.deepcopy(model).requires_grad_(True)
    order = uniforms(torch.arange(3), epoch=0, view=0, count=9).argsort(dim=1)
    groups = layer_groups(plain, "backbone", 4, rebuilt=True)
    assert groups[-1][-1] == "decoder.numbers.bias"
    for row in range(2):
        loss = plain.masked_errors(views[row], order, 4).mean()
        np.testing.assert_allclose(found[row], loss_and_norms(plain, loss, groups), rtol=1e-3)


def predictive(momentum: bool) -> Encoder:
    parameters = IJEPAParameters(predictor_width=32, predictor_layers=2, predictor_heads=2)
    how = PretrainingParameters("vit-tiny-gap/4", "i-jepa", parameters, mean=(0.4,), std=(0.3,))
    made = audited_encoder(how, 3, 24).eval().requires_grad_(False)
    if momentum:
        made.momentum = seeded(5, lambda: audited_encoder(how, 3, 24)).eval().requires_grad_(False)
        with torch.no_grad():
            for weight in made.momentum.parameters():
                weight.add_(0.02 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(weight.numel())))
    return made


@pytest.mark.parametrize("momentum", [False, True])
def test_gradients_of_the_prediction_error_are_those_of_plain_autograd(momentum: bool) -> None:
    model, views = predictive(momentum), torch.rand(2, 3, 3, 24, 24, generator=torch.Generator().manual_seed(7))
    measure = PredictionGradient(views=3, layers=4, momentum=momentum)
    found = losses_and_gradients(model, "backbone", views, None, measure)
    together = losses_and_gradients(model, "backbone", views, None, measure, together=True)
    torch.testing.assert_close(together, found, rtol=1e-4, atol=1e-5)
    plain = copy.deepcopy(model).requires_grad_(True)
    masks = block_masks(uniforms(torch.arange(3), epoch=0, view=0, count=mask_numbers(6)), 6)
    groups = layer_groups(plain, "backbone", 4, rebuilt=True)
    assert groups[-1][-1] == "decoder.numbers.bias"
    for row in range(2):
        target = plain if plain.momentum is None else plain.momentum
        loss = plain.prediction_errors(views[row], *masks, target.feature_map(views[row]).detach()).mean()
        np.testing.assert_allclose(found[row], loss_and_norms(plain, loss, groups), rtol=1e-3)


def test_measures_name_what_is_wrong() -> None:
    with pytest.raises(ConfigError, match="loss = 'mae', allowed: "):
        ViewsGradient(loss="mae")
    with pytest.raises(ConfigError, match="loss = 'info-nce', allowed: "):
        CaptionGradient(loss="info-nce")
    with pytest.raises(ConfigError, match="masked = 1"):
        MaskedGradient(masked=1.0)
    assert ViewsGradient(loss="dino").output == "prototypes"
