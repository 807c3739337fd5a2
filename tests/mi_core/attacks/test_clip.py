"""The attacks on image-text pairs: what is taken for a member, and what a network makes of it."""

from __future__ import annotations

import numpy as np
import pytest

from mi_core.attacks.clip import CaptionCosine, CaptionCosineParameters, WeakSupervision, WeakSupervisionParameters
from mi_core.checks import NumericError
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


def test_at_a_rate_of_one_every_pair_is_called_a_member() -> None:
    attack = CaptionCosine(CaptionCosineParameters(fpr=1))
    attack.fit(LabelledFeatures(pairs(20, 1.0, 0), np.zeros(20, dtype=bool)))
    assert (attack.score(pairs(200, 0.0, 1)) >= attack.threshold).all()


def test_pairs_above_the_line_are_taken_for_members() -> None:
    """The unlabelled pool is half members; weak labels alone let the network find the direction that they share."""
    pool, _ = joined(pairs(150, 1.0, 3), pairs(150, 0.0, 4))
    reference, member = joined(pool, pairs(300, 0.0, 5))
    attack = WeakSupervision(WeakSupervisionParameters(deviations=1.0))
    attack.fit(LabelledFeatures(reference, member))
    known = reference.values["caption:cosine"][~member]
    line = known.mean() + known.std()
    assert attack.state()["pseudo_members"] == (pool.values["caption:cosine"] >= line).sum()
    features, truth = joined(pairs(200, 1.0, 6), pairs(200, 0.0, 7))
    assert auc(attack.score(features), truth).value > 0.9


def test_nothing_above_the_line() -> None:
    reference, member = joined(pairs(20, 0.0, 8), pairs(20, 0.0, 9))
    with pytest.raises(NumericError, match="none of 20 unlabelled pairs reaches"):
        WeakSupervision(WeakSupervisionParameters(deviations=9.0)).fit(LabelledFeatures(reference, member))
