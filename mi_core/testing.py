"""The contract of attacks, our own and those of other packages: `check_attack` in one line of a test.

A planted leak is found with the right sign, and no leak gives AUC .5. Scores follow the samples, depend on the seed
alone, and change nothing. Mistakes are named.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace

import numpy as np
import torch

from mi_core.attacks.base import Attack
from mi_core.attacks.shadows import join_shadows
from mi_core.checks import ConfigError, NumericError, ShapeError
from mi_core.encoders.checkpoint import OUTPUTS
from mi_core.features import MEASURES, Measure
from mi_core.features.caption_similarity import CaptionEmbedding, CaptionSimilarity
from mi_core.metrics.delong import auc
from mi_core.records import Features, LabelledFeatures

VIEWS = 10
WIDTH = 8
SHADOWS = 8
ANCHORS = np.random.default_rng(99).normal(0, 1, (20, WIDTH))


def check_attack(method: type[Attack], *, skip: frozenset[str] = frozenset()) -> None:
    """Hold an attack against its contract, on planted features; takes seconds, or a minute if it trains a network.

    Args:
        method: the class.
        skip: names of `CHECKS` to leave out.

    Raises:
        AssertionError: the attack breaks the contract; the traceback names the check.

    Example:
        >>> from mi_core.attacks.lpla import LpLA
        >>> check_attack(LpLA)
    """
    for name, check in CHECKS.items():
        if name not in skip:
            check(method)


@contextmanager
def _refused(kind: type[Exception], words: str) -> Iterator[None]:
    """Assert that a block raises an error whose message matches a pattern."""
    try:
        yield
    except kind as error:
        assert re.search(words, str(error)), f"{words!r} does not match {str(error)!r}"
        return
    raise AssertionError(f"no {kind.__name__} that matches {words!r}")


def make(method: type[Attack], seed: int = 0) -> Attack:
    """The attack, with shorter training where it trains."""
    names = {field.name for field in fields(method.Parameters)}
    wanted = {"epochs": 60 if method.name == "sd-mi" else 15, "learning_rate": 1e-3}
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

    def answers(level: np.ndarray) -> Features:
        values = logits_at(level, labels, needs, generator) if classifies else values_at(level, needs, generator)
        return Features(ids, values)

    found, before = answers(level), answers(level - leak * member)
    return Features(ids, found.values, ANCHORS, labels, found, before), member


def logits_at(
    level: np.ndarray, labels: np.ndarray, needs: tuple[Measure, ...], generator: np.random.Generator
) -> dict[str, np.ndarray]:
    """Possible logits of a classifier: right and sure of samples that stand high, wrong of those that stand low."""
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
    """Possible answers of an encoder for samples that stand at these levels."""
    count, values = len(level), {}
    if CaptionEmbedding() in needs and CaptionSimilarity() not in needs:
        return pairs_at(level, generator)
    for need in needs:
        shape = need.shape(VIEWS, WIDTH)
        if need.consumes in ("views", "crops"):
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
    method: type[Attack], counts: tuple[int, int], leak: float, seed: int
) -> tuple[LabelledFeatures, Features, np.ndarray]:
    """The reference of an attack, and the samples it is judged on with the truth."""
    needs = make(method).needs
    if "shadows" not in method.reference:
        classifies = method.outputs == ("logits",)
        leak *= 5 / 3 if classifies else 1  # some read only whether the prediction is right
        features, member = plant(needs, counts[1], leak, seed + 1, classifies=classifies)
        return LabelledFeatures(*plant(needs, counts[0], leak, seed, classifies=classifies)), features, member
    generator = np.random.default_rng(seed)
    sizes = {"pool": counts[1], "others": counts[0]}
    hardness = {part: generator.normal(0, 3, size) for part, size in sizes.items()}  # told only by other encoders

    def seen(part: str, member: np.ndarray | bool) -> Features:
        level = hardness[part] + leak * member + generator.normal(0, 1, sizes[part])
        return Features(np.array([f"{part}/{row}" for row in range(sizes[part])]), values_at(level, needs, generator))

    halves = [generator.permutation(counts[1]) % 2 == 0 for _ in range(SHADOWS // 2)]
    inside = [side for half in halves for side in (half, ~half)]
    shadows = join_shadows({f"s-{number}": seen("pool", side) for number, side in enumerate(inside)})
    beside = join_shadows({f"s-{number}": seen("others", False) for number in range(SHADOWS)})
    member = generator.permutation(counts[1]) % 2 == 0
    reference = LabelledFeatures(replace(shadows, population=beside), np.concatenate(inside))
    return reference, replace(seen("pool", member), population=seen("others", False)), member


def _it_says_what_it_is(method: type[Attack]) -> None:
    assert isinstance(method.name, str)
    assert method.threat_model
    assert method.source
    assert method.reference
    assert method.reference <= {"shadow", "shadows", "known", "nonmembers", "audited"}
    assert set(method.outputs or ()) <= set(OUTPUTS)
    assert is_dataclass(method.Parameters)
    made = method()
    assert all(type(need) is MEASURES[need.kind] for need in made.needs)
    asked = made.queries_per_sample(VIEWS)
    most = "at most " if any(need.consumes == "search" for need in made.needs) else ""
    views = f" at {VIEWS} views" if asked != made.queries_per_sample(VIEWS - 1) else ""
    assert method.queries == f"{most}{asked:,}{views}{', and one per anchor image once' if method.anchored else ''}"


def _a_planted_leak_is_found_with_the_right_sign(method: type[Attack]) -> None:
    attack = make(method)
    reference, features, member = reference_and_target(method, (400, 600), 3.0, 1)
    attack.fit(reference)
    scores = attack.score(features)
    assert auc(scores, member).value > 0.95
    assert auc(-scores, member).value < 0.05
    assert ((scores >= attack.threshold) == member).mean() > 0.88


def _no_leak_gives_no_signal(method: type[Attack]) -> None:
    attack = make(method)
    reference, features, member = reference_and_target(method, (400, 2000), 0.0, 3)
    attack.fit(reference)
    estimate = auc(attack.score(features), member)
    assert estimate.low <= 0.5 <= estimate.high


def _the_seed_and_the_state_decide(method: type[Attack]) -> None:
    reference, features, _ = reference_and_target(method, (200, 100), 1.0, 5)
    first, second = make(method, seed=7), make(method, seed=7)
    torch.manual_seed(1)
    first.fit(reference)
    torch.manual_seed(2)
    second.fit(reference)
    np.testing.assert_array_equal(first.score(features), second.score(features))
    np.testing.assert_array_equal(make(method)._score(features, first.state()), first.score(features))


def _scores_follow_the_samples_and_leave_them_alone(method: type[Attack]) -> None:
    attack = make(method)
    reference, features, _ = reference_and_target(method, (200, 100), 1.0, 8)
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


def _mistakes_are_named(method: type[Attack]) -> None:
    attack = make(method)
    features, member = plant(attack.needs, 40, 1.0, 10, classifies=method.outputs == ("logits",))
    with _refused(ConfigError, f"{method.name} is not fitted"):
        attack.score(features)
    with _refused(ConfigError, f"{method.name} is not fitted"):
        _ = attack.threshold
    with _refused(ConfigError, f"{method.name} needs the feature '{attack.needs[0]}'; given: other"):
        attack.fit(LabelledFeatures(Features(features.ids, {"other": np.zeros(40)}), member))
    with _refused(ConfigError, "takes .*Parameters"):
        method(object())
    if method.anchored:
        with _refused(ConfigError, f"{method.name} needs anchors"):
            attack.fit(LabelledFeatures(Features(features.ids, features.values), member))
    if method.populated:
        with _refused(ConfigError, f"{method.name} needs a population"):
            attack.fit(LabelledFeatures(replace(features, population=None), member))
        beside = replace(features, population=Features(features.ids, {"other": np.zeros(40)}))
        with _refused(ConfigError, f"{method.name} needs the feature '{attack.needs[0]}'; given: other"):
            attack.fit(LabelledFeatures(beside, member))
    if method.updated:
        with _refused(ConfigError, f"{method.name} needs the features of an earlier version"):
            attack.fit(LabelledFeatures(replace(features, before=None), member))
    if method.labelled:
        with _refused(ConfigError, f"{method.name} needs the true classes"):
            attack.fit(LabelledFeatures(Features(features.ids, features.values), member))
        strange = Features(features.ids, features.values, labels=np.full(40, WIDTH))
        if method.name != "label-only":
            with _refused(ConfigError, f"is given classes {WIDTH} to {WIDTH} for {WIDTH} posteriors"):
                attack.fit(LabelledFeatures(strange, member))
    broken = {need: np.full_like(values, np.nan) for need, values in features.values.items()}
    with _refused(NumericError, "pool/0"):
        Features(features.ids, broken)


def _constant_features_are_refused_or_give_equal_scores(method: type[Attack]) -> None:
    """No division by zero: an encoder that returns the same for everything tells nothing, and no score pretends it."""
    attack = make(method)
    reference, features, _ = reference_and_target(method, (200, 100), 1.0, 11)

    def flat(given: Features) -> Features:
        values = {need: np.broadcast_to(array[:1] * 0 + 0.5, array.shape) for need, array in given.values.items()}
        beside = None if given.population is None else flat(given.population)
        before = None if given.before is None else flat(given.before)
        return Features(given.ids, values, given.anchors, np.zeros(len(given), dtype=np.int64), beside, before)

    try:
        attack.fit(LabelledFeatures(flat(reference.features), reference.member))
    except NumericError as refused:
        assert f"leave {method.name} out" in str(refused)
        return
    scores = attack.score(flat(features))
    assert np.isfinite(scores).all()
    assert np.ptp(scores) < 1e-5


def _a_missing_side_is_named(method: type[Attack]) -> None:
    attack = make(method)
    reference, _, _ = reference_and_target(method, (80, 20), 1.0, 12)
    outside = ~reference.member
    if "nonmembers" in method.reference:
        attack.fit(LabelledFeatures(reference.features.take(outside), reference.member[outside]))  # it needs no members
    else:
        with _refused(ShapeError, f"{method.name} needs members too, the reference has {outside.sum()} non-members"):
            attack.fit(LabelledFeatures(reference.features.take(outside), reference.member[outside]))
    with _refused(ShapeError, "a reference needs non-members"):
        LabelledFeatures(reference.features.take(~outside), reference.member[~outside])


def _two_of_each_side_suffice_or_the_number_needed_is_named(method: type[Attack]) -> None:
    attack = make(method)
    reference, features, _ = reference_and_target(method, (4, 4), 1.0, 13)
    try:
        attack.fit(reference)
    except NumericError as refused:
        assert "needs" in str(refused)
        assert f"got {4 if attack.populated else 2}" in str(refused)
        return
    assert np.isfinite(attack.score(features)).all()


CHECKS: dict[str, Callable[[type[Attack]], None]] = {
    "it says what it is": _it_says_what_it_is,
    "a planted leak is found with the right sign": _a_planted_leak_is_found_with_the_right_sign,
    "no leak gives no signal": _no_leak_gives_no_signal,
    "the seed and the state decide": _the_seed_and_the_state_decide,
    "scores follow the samples and leave them alone": _scores_follow_the_samples_and_leave_them_alone,
    "mistakes are named": _mistakes_are_named,
    "constant features are refused or give equal scores": _constant_features_are_refused_or_give_equal_scores,
    "a missing side is named": _a_missing_side_is_named,
    "two of each side suffice or the number needed is named": _two_of_each_side_suffice_or_the_number_needed_is_named,
}
"""The parts of the contract, by what they hold."""
