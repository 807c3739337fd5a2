"""The losses of one image against a bank: each is the loss of training where the bank is the rest of the batch."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from mi_core.checks import ConfigError, ShapeError
from mi_core.features.loss_gradient import CaptionGradient, ViewsGradient
from mi_core.objectives.clip import sigmoid_loss
from mi_core.objectives.image_losses import (
    CAPTION_LOSSES,
    VIEW_LOSSES,
    caption_sigmoid,
    views_byol,
    views_dino,
)


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


def test_measures_name_what_is_wrong() -> None:
    with pytest.raises(ConfigError, match="loss = 'mae', allowed: "):
        ViewsGradient(loss="mae")
    with pytest.raises(ConfigError, match="loss = 'info-nce', allowed: "):
        CaptionGradient(loss="info-nce")
    assert ViewsGradient(loss="dino").output == "prototypes"
