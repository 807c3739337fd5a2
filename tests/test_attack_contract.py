"""What every entry of ATTACKS keeps to: no leak gives AUC 0.5, a planted leak is found, and nothing is changed."""

from __future__ import annotations

import copy
from dataclasses import fields, is_dataclass, replace

import numpy as np
import pytest
import torch

from mi_core.attacks import ATTACKS
from mi_core.attacks.base import Attack
from mi_core.attacks.shadows import shadow_row
from mi_core.checks import ConfigError, NumericError, ShapeError
from mi_core.encoders.checkpoint import OUTPUTS
from mi_core.features import MEASURES, Measure
from mi_core.features.caption_similarity import CaptionEmbedding, CaptionSimilarity
from mi_core.metrics.delong import auc
from mi_core.records import Features, LabelledFeatures

VIEWS = 10
PAIRS = VIEWS * (VIEWS - 1) // 2
WIDTH = 8
SHADOWS = 8
ANCHORS = np.random.default_rng(99).normal(0, 1, (20, WIDTH))


def make(name: str, seed: int = 0) -> Attack:
    """The attack, with shorter training where it trains."""
    method = ATTACKS[name]
    names = {field.name for field in fields(method.Parameters)}
    wanted = {"epochs": 60 if name == "sd-mi" else 15, "learning_rate": 1e-3}
    wanted["classes"] = WIDTH
    short = {key: value for key, value in wanted.items() if key in names}
    return method(method.Parameters(**short), seed=seed)


def plant(
    needs: tuple[Measure, ...], count: int, leak: float, seed: int, *, classifies: bool = False
) -> tuple[Features, np.ndarray]:
    """Features in which members stand ``leak`` standard deviations higher; half are members."""
    generator = np.random.default_rng(seed)
    member = generator.permutation(count) < count // 2
    level = generator.normal(0, 1, count) + leak * member
    ids = np.array([f"pool/{row}" for row in range(count)])
    labels = generator.integers(0, WIDTH, count)
    values = logits_at(level, labels, needs, generator) if classifies else values_at(level, needs, generator)
    return Features(ids, values, ANCHORS, labels, Features(ids, values)), member


def logits_at(
    level: np.ndarray, labels: np.ndarray, needs: tuple[Measure, ...], generator: np.random.Generator
) -> dict[str, np.ndarray]:
    """What a classifier could return: right and sure of samples that stand high, wrong of those that stand low."""
    count, values = len(level), {}
    for need in needs:
        shape = need.shape(VIEWS, WIDTH)
        if not shape:  # a distance
            values[need.name] = np.exp(0.3 * level)
            continue
        logits = generator.normal(0, 1, (count, *shape))
        logits[np.arange(count), ..., labels] += np.reshape(4 * (level - 2.5), (count, *[1] * (len(shape) - 1)))
        values[need.name] = logits
    return {name: array.astype(np.float32) for name, array in values.items()}


def values_at(level: np.ndarray, needs: tuple[Measure, ...], generator: np.random.Generator) -> dict[str, np.ndarray]:
    """What an encoder could return of samples that stand at these levels."""
    count, values = len(level), {}
    if CaptionEmbedding() in needs and CaptionSimilarity() not in needs:
        return pairs_at(level, generator)
    for need in needs:
        shape = need.shape(VIEWS, WIDTH)
        if need.weights:  # losses and norms of gradients, which training lowers
            values[need.name] = np.exp(-0.3 * level)[:, None] * generator.uniform(0.9, 1.1, (count, 5))
        elif need.consumes in ("views", "crops"):
            noise = generator.normal(0, 0.5, (count, *shape))
            values[need.name] = np.tanh(0.5 + 0.05 * (level[:, None] + noise))
        elif need == CaptionSimilarity():
            values[need.name] = np.tanh(0.3 + 0.05 * level)
        elif shape:
            values[need.name] = generator.normal(0, 1, (count, WIDTH))
            if len(needs) == 1 or CaptionSimilarity() in needs:  # elsewhere it says how hard a sample is, not whose
                values[need.name][:, 0] = level
        else:
            values[need.name] = 10 + 0.3 * level
    return {name: array.astype(np.float32) for name, array in values.items()}


def pairs_at(level: np.ndarray, generator: np.random.Generator) -> dict[str, np.ndarray]:
    """Views and captions, whose cosine rises with the level; captions point everywhere, so foreign ones tell little."""
    rows, cosine = np.arange(len(level)), (0.3 + 0.03 * level).clip(-1, 1)
    captions = np.eye(WIDTH)[rows % WIDTH] * np.where(rows // WIDTH % 2, 1, -1)[:, None]
    beside = np.eye(WIDTH)[(rows + 1) % WIDTH] * np.where(rows // WIDTH // 2 % 2, 1, -1)[:, None]
    images = captions * cosine[:, None] + beside * np.sqrt(1 - cosine**2)[:, None]
    views = images[:, None] + generator.normal(0, 0.005, (len(level), VIEWS, WIDTH))
    values = {"view-embeddings": views, "embedding": views[:, 0], "caption:embedding": captions}
    return {name: array.astype(np.float32) for name, array in values.items()}


def reference_and_target(
    name: str, counts: tuple[int, int], leak: float, seed: int
) -> tuple[LabelledFeatures, Features, np.ndarray]:
    """What an attack is fitted on, and the samples it is judged on with the truth."""
    needs = make(name).needs
    if "shadows" not in ATTACKS[name].reference:
        classifies = ATTACKS[name].outputs == ("logits",)
        leak *= 5 / 3 if classifies else 1  # some read only whether the prediction is right
        features, member = plant(needs, counts[1], leak, seed + 1, classifies=classifies)
        return LabelledFeatures(*plant(needs, counts[0], leak, seed, classifies=classifies)), features, member
    generator = np.random.default_rng(seed)
    sizes = {"pool": counts[1], "others": counts[0]}
    hardness = {part: generator.normal(0, 3, size) for part, size in sizes.items()}  # told only by other encoders

    def seen(part: str, member: np.ndarray | bool, shadow: str | None = None) -> Features:
        level = hardness[part] + leak * member + generator.normal(0, 1, sizes[part])
        ids = [f"{part}/{row}" if shadow is None else shadow_row(f"{part}/{row}", shadow) for row in range(sizes[part])]
        return Features(np.array(ids), values_at(level, needs, generator))

    halves = [generator.permutation(counts[1]) % 2 == 0 for _ in range(SHADOWS // 2)]
    inside = [side for half in halves for side in (half, ~half)]
    shadows = joined([seen("pool", side, f"s-{number}") for number, side in enumerate(inside)])
    beside = joined([seen("others", False, f"s-{number}") for number in range(SHADOWS)])
    member = generator.permutation(counts[1]) % 2 == 0
    reference = LabelledFeatures(replace(shadows, population=beside), np.concatenate(inside))
    return reference, replace(seen("pool", member), population=seen("others", False)), member


def joined(parts: list[Features]) -> Features:
    """The rows of several features."""
    values = {need: np.concatenate([part.values[need] for part in parts]) for need in parts[0].values}
    return Features(np.concatenate([part.ids for part in parts]), values)


@pytest.fixture(params=sorted(ATTACKS))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_it_says_what_it_is(name: str) -> None:
    method = ATTACKS[name]
    assert method.name == name
    assert method.threat_model
    assert method.source
    assert method.reference
    assert method.reference <= {"shadow", "shadows", "known", "nonmembers", "unlabelled", "audited"}
    assert set(method.outputs or ()) <= set(OUTPUTS)
    assert is_dataclass(method.Parameters)
    made = method()
    assert all(type(need) is MEASURES[need.kind] for need in made.needs)
    assert method.access == ("weights" if any(need.weights for need in made.needs) else "answers")
    asked = made.queries_per_sample(VIEWS)
    most = "at most " if method.sequential or any(need.consumes == "search" for need in made.needs) else ""
    views = f" at {VIEWS} views" if asked != made.queries_per_sample(VIEWS - 1) else ""
    assert method.queries == f"{most}{asked:,}{views}{', and one per anchor image once' if method.anchored else ''}"


def test_a_planted_leak_is_found_with_the_right_sign(name: str) -> None:
    attack = make(name)
    reference, features, member = reference_and_target(name, (400, 600), 3.0, 1)
    attack.fit(reference)
    scores = attack.score(features)
    assert auc(scores, member).value > 0.95
    assert auc(-scores, member).value < 0.05
    assert ((scores >= attack.threshold) == member).mean() > 0.88


def test_no_leak_gives_no_signal(name: str) -> None:
    attack = make(name)
    reference, features, member = reference_and_target(name, (400, 2000), 0.0, 3)
    attack.fit(reference)
    estimate = auc(attack.score(features), member)
    assert estimate.low <= 0.5 <= estimate.high


def test_same_seed_same_scores_and_the_state_is_all_that_scores_need(name: str) -> None:
    reference, features, _ = reference_and_target(name, (200, 100), 1.0, 5)
    first, second = make(name, seed=7), make(name, seed=7)
    torch.manual_seed(1)
    first.fit(reference)
    torch.manual_seed(2)
    second.fit(reference)
    np.testing.assert_array_equal(first.score(features), second.score(features))
    np.testing.assert_array_equal(make(name)._score(features, first.state()), first.score(features))


def test_scores_follow_the_samples_and_leave_them_alone(name: str) -> None:
    attack = make(name)
    reference, features, _ = reference_and_target(name, (200, 100), 1.0, 8)
    before = copy.deepcopy((reference.features.values, features.values))
    attack.fit(reference)
    scores = attack.score(features)
    order = np.random.default_rng(0).permutation(100)
    np.testing.assert_allclose(attack.score(features.take(order)), scores[order], atol=1e-5)
    assert scores.shape == (100,)
    assert scores.dtype == np.float64
    for kept, now in zip(before, (reference.features.values, features.values), strict=True):
        for need in kept:
            np.testing.assert_array_equal(kept[need], now[need])


def test_mistakes_are_named(name: str) -> None:
    attack = make(name)
    features, member = plant(attack.needs, 40, 1.0, 10, classifies=ATTACKS[name].outputs == ("logits",))
    with pytest.raises(ConfigError, match=f"{name} is not fitted"):
        attack.score(features)
    with pytest.raises(ConfigError, match=f"{name} is not fitted"):
        _ = attack.threshold
    with pytest.raises(ConfigError, match=f"{name} needs the feature '{attack.needs[0]}'; given: other"):
        attack.fit(LabelledFeatures(Features(features.ids, {"other": np.zeros(40)}), member))
    with pytest.raises(ConfigError, match="takes .*Parameters"):
        ATTACKS[name](object())
    if ATTACKS[name].anchored:
        with pytest.raises(ConfigError, match=f"{name} needs anchors"):
            attack.fit(LabelledFeatures(Features(features.ids, features.values), member))
    if ATTACKS[name].populated:
        with pytest.raises(ConfigError, match=f"{name} needs a population"):
            attack.fit(LabelledFeatures(replace(features, population=None), member))
        beside = replace(features, population=Features(features.ids, {"other": np.zeros(40)}))
        with pytest.raises(ConfigError, match=f"{name} needs the feature '{attack.needs[0]}'; given: other"):
            attack.fit(LabelledFeatures(beside, member))
    if ATTACKS[name].labelled:
        with pytest.raises(ConfigError, match=f"{name} needs the true classes"):
            attack.fit(LabelledFeatures(Features(features.ids, features.values), member))
        strange = Features(features.ids, features.values, labels=np.full(40, WIDTH))
        if name != "label-only":
            with pytest.raises(ConfigError, match=f"is given classes up to {WIDTH} for {WIDTH} posteriors"):
                attack.fit(LabelledFeatures(strange, member))
    broken = {need: np.full_like(values, np.nan) for need, values in features.values.items()}
    with pytest.raises(NumericError, match="pool/0"):
        Features(features.ids, broken)


def test_constant_features_are_refused_or_give_equal_scores(name: str) -> None:
    """No division by zero: an encoder that returns the same for everything tells nothing, and no score pretends it."""
    attack = make(name)
    reference, features, _ = reference_and_target(name, (200, 100), 1.0, 11)

    def flat(given: Features) -> Features:
        values = {need: np.broadcast_to(array[:1] * 0 + 0.5, array.shape) for need, array in given.values.items()}
        beside = None if given.population is None else flat(given.population)
        return Features(given.ids, values, given.anchors, np.zeros(len(given), dtype=np.int64), beside)

    try:
        attack.fit(LabelledFeatures(flat(reference.features), reference.member))
    except NumericError as refused:
        assert f"leave {name} out" in str(refused)
        return
    scores = attack.score(flat(features))
    assert np.isfinite(scores).all()
    assert np.ptp(scores) < 1e-5


def test_a_missing_side_is_named(name: str) -> None:
    attack = make(name)
    reference, _, _ = reference_and_target(name, (80, 20), 1.0, 12)
    outside = ~reference.member
    if "nonmembers" in ATTACKS[name].reference:
        attack.fit(LabelledFeatures(reference.features.take(outside), reference.member[outside]))  # it needs no members
    else:
        with pytest.raises(
            ShapeError, match=f"{name} needs members too, the reference has {outside.sum()} non-members"
        ):
            attack.fit(LabelledFeatures(reference.features.take(outside), reference.member[outside]))
    with pytest.raises(ShapeError, match="a reference needs non-members"):
        LabelledFeatures(reference.features.take(~outside), reference.member[~outside])


def test_two_of_each_side_suffice_or_the_number_needed_is_named(name: str) -> None:
    attack = make(name)
    reference, features, _ = reference_and_target(name, (4, 4), 1.0, 13)
    try:
        attack.fit(reference)
    except NumericError as refused:
        assert "needs" in str(refused)
        assert f"got {4 if attack.populated else 2}" in str(refused)
        return
    assert np.isfinite(attack.score(features)).all()
