"""SSLMem and CLIPMem against loops from their papers, and images that only their own shadows sort out."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mi_core.attacks.memorisation import CLIPMem, CLIPMemParameters, MemorisationAttack, SSLMem
from mi_core.attacks.shadows import shadow_row
from mi_core.checks import ConfigError, NumericError
from mi_core.features.pairwise_similarity import pairwise_similarity
from mi_core.records import Features, LabelledFeatures

SAMPLES = [f"pool/{row}" for row in range(12)]
OTHERS = [f"pool/{row}" for row in range(50, 57)]
NAMES = [f"half-{number}" for number in range(12)]  # half-10 sorts before half-2: pairs are no neighbours
VIEWS, WIDTH = 4, 5


def rows(ids: list[str], shadow: str) -> np.ndarray:
    return np.array([shadow_row(name, shadow) for name in ids])


def answers(generator: np.random.Generator, ids: list[str], shadow: str | None = None) -> Features:
    """What one encoder returns of some pairs, of any length."""
    values = {
        "view-embeddings": generator.normal(0.5, 1, (len(ids), VIEWS, WIDTH)).astype(np.float32),
        "embedding": generator.normal(0.5, 1, (len(ids), WIDTH)).astype(np.float32),
        "caption:embedding": generator.normal(0.5, 1, (len(ids), WIDTH)).astype(np.float32),
    }
    return Features(np.array(ids) if shadow is None else rows(ids, shadow), values)


def joined(parts: list[Features]) -> Features:
    values = {need: np.concatenate([part.values[need] for part in parts]) for need in parts[0].values}
    return Features(np.concatenate([part.ids for part in parts]), values)


def shadows(seed: int = 0) -> tuple[LabelledFeatures, list[Features], list[Features], list[np.ndarray]]:
    """Features of all shadows with the population's, the same by shadow, and who saw what."""
    generator = np.random.default_rng(seed)
    halves = [generator.permutation(len(SAMPLES)) % 2 == 0 for _ in range(len(NAMES) // 2)]
    inside = [side for half in halves for side in (half, ~half)]
    mine = [answers(generator, SAMPLES, name) for name in NAMES]
    theirs = [answers(generator, OTHERS, name) for name in NAMES]
    whole = Features(joined(mine).ids, joined(mine).values, population=joined(theirs))
    return LabelledFeatures(whole, np.concatenate(inside)), mine, theirs, inside


def cosine(one: np.ndarray, other: np.ndarray) -> float:
    dot = sum(float(a) * float(b) for a, b in zip(one, other, strict=True))
    return dot / math.sqrt(sum(float(a) ** 2 for a in one) * sum(float(b) ** 2 for b in other))


def distance_by_the_paper(views: np.ndarray) -> float:
    """E d(f(x'), f(x'')), d the 2-norm between embeddings scaled to length 1; halved."""
    unit = [[float(number) / math.sqrt(sum(float(n) ** 2 for n in view)) for number in view] for view in views]
    found = [
        math.sqrt(sum((a - b) ** 2 for a, b in zip(unit[i], unit[j], strict=True))) / 2
        for i in range(len(unit))
        for j in range(i + 1, len(unit))
    ]
    return sum(found) / len(found)


def clip_alignment_by_the_paper(images: np.ndarray, text: np.ndarray, others: np.ndarray, texts: np.ndarray) -> float:
    """E cos(I', T) - E cos(I', T_j) - E cos(I'_j, T), over views I' and pairs (I_j, T_j) that no model saw."""
    own = [cosine(view, text) for view in images]
    foreign_texts = [cosine(view, other) for view in images for other in texts]
    foreign_images = [cosine(view, text) for other in others for view in other]
    return float(np.mean(own) - np.mean(foreign_texts) - np.mean(foreign_images))


def with_cosines(features: Features) -> Features:
    import torch

    cosines = pairwise_similarity(torch.from_numpy(features.values["view-embeddings"])).numpy()
    return Features(features.ids, {"pairwise:cosine": cosines}, population=features.population)


def check(attack: MemorisationAttack, reference: LabelledFeatures, found: np.ndarray, target: Features) -> None:
    """Memorisation and scores from alignments (12, N) that a loop made, the last row the target's."""
    *_, inside = shadows()
    attack.fit(reference)
    names, memorised = attack.state()["names"].tolist(), attack.memorisation
    assert memorised is not None
    scores = attack.score(target)
    expected = []
    for x, name in enumerate(SAMPLES):
        level = found[:-1] - found[:-1].mean(axis=1, keepdims=True)
        saw = [level[k][x] for k in range(len(NAMES)) if inside[k][x]]
        out = [level[k][x] for k in range(len(NAMES)) if not inside[k][x]]
        expected.append(np.mean(saw) - np.mean(out))
        assert memorised.value[names.index(name)] == pytest.approx(expected[-1], abs=1e-6)
        raw = [found[k][x] for k in range(len(NAMES)) if not inside[k][x]]
        assert scores[x] == pytest.approx(found[-1][x] - np.mean(raw), abs=1e-6)
    assert memorised.mean.value == pytest.approx(np.mean(expected), abs=1e-6)
    assert (memorised.mean.n, memorised.pairs) == (12, 6)
    assert (memorised.low < memorised.value).all() and (memorised.value < memorised.high).all()
    raw_shift = [
        np.mean([found[k][x] for k in range(len(NAMES)) if inside[k][x]])
        - np.mean([found[k][x] for k in range(len(NAMES)) if not inside[k][x]])
        for x in range(len(SAMPLES))
    ]
    assert attack.threshold == pytest.approx(np.mean(raw_shift) / 2, abs=1e-6)


def test_sslmem_by_loops() -> None:
    reference, mine, _, _ = shadows()
    target = answers(np.random.default_rng(9), SAMPLES)
    found = np.array(
        [[-distance_by_the_paper(row) for row in one.values["view-embeddings"]] for one in [*mine, target]]
    )
    labelled = LabelledFeatures(with_cosines(reference.features), reference.member)
    check(SSLMem(), labelled, found, with_cosines(target))


@pytest.mark.parametrize("augmented", [True, False])
def test_clipmem_by_loops(augmented: bool) -> None:
    reference, mine, theirs, _ = shadows()
    generator = np.random.default_rng(9)
    target, beside = answers(generator, SAMPLES), answers(generator, OTHERS)

    def images(features: Features) -> np.ndarray:
        return features.values["view-embeddings"] if augmented else features.values["embedding"][:, None]

    found = np.array(
        [
            [
                clip_alignment_by_the_paper(views, text, images(other), other.values["caption:embedding"])
                for views, text in zip(images(one), one.values["caption:embedding"], strict=True)
            ]
            for one, other in zip([*mine, target], [*theirs, beside], strict=True)
        ]
    )
    attack = CLIPMem(CLIPMemParameters(augmented=augmented))
    check(attack, reference, found, Features(target.ids, target.values, population=beside))


@pytest.mark.parametrize("method", [SSLMem, CLIPMem])
def test_condensed_features_give_the_same_fit(method: type[MemorisationAttack]) -> None:
    """Many shadows' features are held at once, with one number in place of all."""
    reference, mine, theirs, _ = shadows()
    whole, again, parts = method(), method(), []
    for one, other in zip(mine, theirs, strict=True):
        features = with_cosines(one) if method is SSLMem else Features(one.ids, one.values, population=other)
        parts.append(whole.condensed(features))
        assert [array.size for array in parts[-1].values.values()] == [len(SAMPLES)]
        if method is CLIPMem:
            assert parts[-1].population is not None and len(parts[-1].population) == len(OTHERS)
    every = with_cosines(reference.features) if method is SSLMem else reference.features
    whole.fit(LabelledFeatures(every, reference.member))
    again.fit(LabelledFeatures(joined(parts), reference.member))
    for name, array in whole.state().items():
        np.testing.assert_array_equal(again.state()[name], array)


def test_identical_views_have_distance_0() -> None:
    ones = Features(np.array(["a", "b"]), {"pairwise:cosine": np.array([[1.0, 1.0], [-1.0, -1.0]], dtype=np.float32)})
    assert SSLMem().statistic(ones).tolist() == [0.0, -1.0]


def test_what_it_refuses() -> None:
    reference, *_ = shadows()
    features = with_cosines(reference.features)
    with pytest.raises(ConfigError, match="sslmem is not fitted"):
        _ = SSLMem().memorisation
    alone = np.arange(len(SAMPLES))
    with pytest.raises(NumericError, match=r"needs a shadow with and one without each sample; pool/.* at least 2"):
        SSLMem().fit(LabelledFeatures(features.take(alone), reference.member[alone]))
    with pytest.raises(ConfigError, match="sslmem needs every sample by every shadow"):
        SSLMem().fit(LabelledFeatures(features.take(np.arange(1, 24)), reference.member[1:24]))
    pair = np.arange(2 * len(SAMPLES))
    attack = SSLMem()
    attack.fit(LabelledFeatures(features.take(pair), reference.member[pair]))
    assert attack.memorisation is None  # no interval from one pair
    with pytest.raises(ConfigError, match="sslmem: pool/77 is in no shadow's data"):
        attack.score(Features(np.array(["pool/77"]), {"pairwise:cosine": np.ones((1, 6))}))
    lacking = reference.features.population
    fewer = Features(reference.features.ids, reference.features.values, population=lacking.take(np.arange(7)))
    with pytest.raises(ConfigError, match="clipmem: the population needs features by every shadow"):
        CLIPMem().fit(LabelledFeatures(fewer, reference.member))
