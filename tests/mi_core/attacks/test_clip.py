"""The attacks on image-text pairs: what is taken for a member."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from mi_core.attacks.clip import CaptionCosine, PairLoss, PairLossParameters, bank_losses
from mi_core.checks import ConfigError, NumericError
from mi_core.metrics.delong import auc
from mi_core.records import Features, LabelledFeatures


def pairs(count: int, leak: float, seed: int) -> Features:
    """Pairs whose caption is drawn towards the image by ``leak``; members also share a direction."""
    generator = np.random.default_rng(seed)
    image = generator.normal(size=(count, 6))
    image[:, 0] += 2 * leak
    text = leak * image + generator.normal(size=(count, 6))
    unit = [part / np.linalg.norm(part, axis=1, keepdims=True) for part in (image, text)]
    values = {"caption:cosine": (unit[0] * unit[1]).sum(axis=1), "caption:embedding": text, "embedding": image}
    return Features(np.array([f"{seed}/{row}" for row in range(count)]), values)


def joined(first: Features, second: Features) -> tuple[Features, np.ndarray]:
    values = {need: np.concatenate([first.values[need], second.values[need]]) for need in first.values}
    return Features(np.concatenate([first.ids, second.ids]), values), np.arange(len(first) + len(second)) < len(first)


def test_cosine_and_its_threshold() -> None:
    attack = CaptionCosine()
    known = pairs(199, 0.0, 0)
    attack.fit(LabelledFeatures(known, np.zeros(199, dtype=bool)))
    assert (known.values["caption:cosine"] >= attack.threshold).mean() <= 0.05
    features, member = joined(pairs(200, 1.0, 1), pairs(200, 0.0, 2))
    assert auc(attack.score(features), member).value > 0.9
    assert attack.queries_per_sample(10) == 1


def directions_of(count: int, seed: int) -> np.ndarray:
    rows = np.random.default_rng(seed).normal(size=(count, 5))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_losses_are_those_of_clip_pair_by_pair() -> None:
    """Against cross-entropies of torch. A pair that stands in the bank is left out there, and the others count more."""
    images, texts, bank, words = (directions_of(count, seed) for seed, count in enumerate((6, 6, 4, 4)))
    images[4], texts[4] = bank[1], words[1]
    found = bank_losses(images, texts, bank, words, 0.3, np.array([-1, -1, -1, -1, 1, -1]))
    for row in (0, 1, 2, 3, 5):
        image, text, all_images, all_texts = map(torch.from_numpy, (images[row], texts[row], bank, words))
        of_image, of_text = (
            torch.stack([image @ text, *(other @ one for one in others)]) / 0.3
            for other, others in ((image, all_texts), (text, all_images))
        )
        first = torch.zeros((), dtype=torch.int64)
        expected = (F.cross_entropy(of_image, first) + F.cross_entropy(of_text, first)) / 2
        assert found[row] == pytest.approx(float(expected), rel=1e-5)
    others, own = [0, 2, 3], math.exp(images[4] @ texts[4] / 0.3)
    of_image = sum(math.exp(images[4] @ words[row] / 0.3) for row in others) * 4 / 3
    of_text = sum(math.exp(texts[4] @ bank[row] / 0.3) for row in others) * 4 / 3
    assert found[4] == pytest.approx((math.log(1 + of_image / own) + math.log(1 + of_text / own)) / 2)


@pytest.mark.parametrize("size", [20, 200])
def test_the_loss_calls_the_share_of_nonmembers_that_was_asked_for(size: int) -> None:
    """Were known pairs negatives of themselves, .137 would be called where .1 is asked for."""
    rates = []
    for seed in range(100):
        features = pairs(300, 0.5, seed)
        attack = PairLoss(PairLossParameters(bank=size, fpr=0.1, temperature=0.2), seed=seed)
        attack.fit(LabelledFeatures(features.take(np.arange(39)), np.zeros(39, dtype=bool)))
        assert len(attack.state()["bank"]) == min(size, 39)
        rates.append((attack.score(features.take(np.arange(39, 300))) >= attack.threshold).mean())
    assert np.mean(rates) == pytest.approx(0.1, abs=0.015)  # 100 fits on 39 pairs: a standard error of .005


def test_the_bank_is_of_known_nonmembers_alone_and_their_order_in_the_data_has_no_say() -> None:
    reference, member = joined(pairs(50, 1.0, 1), pairs(50, 0.0, 2))
    attack = PairLoss(PairLossParameters(bank=30))
    attack.fit(LabelledFeatures(reference, member))
    bank = attack.state()["bank"]
    assert len(bank) == 30
    assert all(name.startswith("2/") for name in bank)
    assert list(bank) != sorted(bank)


def test_scores_in_parts_are_scores_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    attack, features = PairLoss(), pairs(50, 0.5, 4)
    attack.fit(LabelledFeatures(pairs(40, 0.0, 3), np.zeros(40, dtype=bool)))
    whole = attack.score(features)
    monkeypatch.setattr("mi_core.attacks.clip._AT_ONCE", 7)
    np.testing.assert_allclose(attack.score(features), whole, rtol=1e-5)
    np.testing.assert_array_equal(attack.score(features), attack.statistic(features))
    leaked, member = joined(pairs(100, 1.0, 5), pairs(100, 0.0, 6))
    assert auc(attack.score(leaked), member).value > 0.9


def test_what_the_loss_attack_refuses() -> None:
    with pytest.raises(NumericError, match="clip-loss needs 2 known non-members, got 1"):
        PairLoss(PairLossParameters(fpr=1)).fit(LabelledFeatures(pairs(1, 0.0, 0), np.zeros(1, dtype=bool)))
    with pytest.raises(NumericError, match="clip-loss at fpr = 0.05 needs 19 known non-members, got 18"):
        PairLoss().fit(LabelledFeatures(pairs(18, 0.0, 0), np.zeros(18, dtype=bool)))
    assert (PairLoss(PairLossParameters(fpr=1)).needed_nonmembers, PairLoss().needed_nonmembers) == (2, 19)
    for fault in ({"temperature": 0}, {"bank": 1}, {"fpr": 0}):
        with pytest.raises(ConfigError, match=next(iter(fault))):
            PairLossParameters(**fault)
