"""The per-sample attack against SciPy, sample by sample, and the hard samples that only it sorts out."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm
from scipy.stats import t as student

from mi_core.attacks.lira import LiRA, LiRAParameters
from mi_core.attacks.shadows import shadow_row
from mi_core.checks import ConfigError, NumericError
from mi_core.records import Features, LabelledFeatures
from tests.raising import refused

SAMPLES = [f"pool/{row}" for row in range(30)]


def shadows(count: int = 6, seed: int = 0, spread: float = 0.1) -> tuple[LabelledFeatures, dict[str, np.ndarray]]:
    """What shadows see: each sample has its own level, and training raises it by 0.3."""
    generator = np.random.default_rng(seed)
    level = generator.normal(0, 1, len(SAMPLES))
    ids, values, member = [], [], []
    for pair in range(count // 2):
        half = generator.permutation(len(SAMPLES)) % 2 == 0
        for side, inside in enumerate((half, ~half)):
            seen = level + 0.3 * inside + generator.normal(0, spread, len(SAMPLES))
            ids += [shadow_row(name, f"shadow-{2 * pair + side}") for name in SAMPLES]
            values.append(np.exp(seen))
            member.append(inside)
    found = Features(np.array(ids), {"norm:2": np.concatenate(values)})
    return LabelledFeatures(found, np.concatenate(member)), {"level": level}


def target(level: np.ndarray, member: np.ndarray, seed: int = 9) -> Features:
    seen = level + 0.3 * member + np.random.default_rng(seed).normal(0, 0.1, len(level))
    return Features(np.array(SAMPLES), {"norm:2": np.exp(seen)})


@pytest.mark.parametrize("variance", ["pooled", "per-sample"])
@pytest.mark.parametrize(("location", "count"), [("mean", 6), ("median", 6), ("mean", 64)])
def test_online_scores_by_hand(variance: str, location: str, count: int) -> None:
    reference, truth = shadows(count)
    attack = LiRA(LiRAParameters(statistic="norm", variance=variance, location=location, shift="per-sample"))
    attack.fit(reference)
    features = target(truth["level"], np.arange(30) < 15)
    centre = np.mean if location == "mean" else np.median
    by_sample = [np.array([row.rpartition("#")[0] == name for row in reference.features.ids]) for name in SAMPLES]
    logs = np.log(reference.features.values["norm:2"])
    residuals = {side: [] for side in (True, False)}  # type: dict[bool, list[float]]
    for rows in by_sample:
        for side in (True, False):
            values = logs[rows & (reference.member == side)]
            residuals[side] += list(values - values.mean())
    for number, (rows, score) in enumerate(zip(by_sample, attack.score(features), strict=True)):
        value = np.log(features.values["norm:2"][number])
        density = {}
        for side in (True, False):
            values = logs[rows & (reference.member == side)]
            pooled = np.sqrt(np.sum(np.square(residuals[side])) / (len(residuals[side]) - len(SAMPLES)))
            deviation = pooled if variance == "pooled" else values.std(ddof=1)
            density[side] = norm.logpdf(value, centre(values), deviation)
        assert score == pytest.approx(density[True] - density[False], rel=1e-6, abs=1e-6)
    assert attack.threshold == 0


@pytest.mark.parametrize("count", [2, 4, 64])
def test_pooled_shifts_by_hand(count: int) -> None:
    """Each location is a mean of both sides by their precisions; with two shadows the noise is half that of shifts."""
    reference, truth = shadows(count)
    logs = dict(zip(reference.features.ids, np.log(reference.features.values["norm:2"]), strict=True))
    saw = dict(zip(reference.features.ids, reference.member, strict=True))
    values = {
        side: [[logs[row] for row in logs if row.startswith(f"{name}#") and saw[row] == side] for name in SAMPLES]
        for side in (True, False)
    }
    shifts = [np.mean(ins) - np.mean(outs) for ins, outs in zip(values[True], values[False], strict=True)]
    noise = {side: np.var(shifts, ddof=1) / 2 for side in values}
    if count > 2:
        for side, groups in values.items():
            within = [value - np.mean(group) for group in groups for value in group]
            noise[side] = np.sum(np.square(within)) / (len(within) - len(groups))
    errors = noise[True] / (count / 2) + noise[False] / (count / 2)
    between = max(0, np.var(shifts, ddof=1) - errors)
    attack = LiRA(LiRAParameters(statistic="norm"))
    attack.fit(reference)
    features = target(truth["level"], np.arange(30) < 15)
    for number, score in enumerate(attack.score(features)):
        value, density = np.log(features.values["norm:2"][number]), {}
        for side, sign in ((True, 1), (False, -1)):
            own, other = 1 / (noise[side] / (count / 2)), 1 / (noise[not side] / (count / 2) + between)
            moved = np.mean(values[not side][number]) + sign * np.mean(shifts)
            centre = (own * np.mean(values[side][number]) + other * moved) / (own + other)
            density[side] = norm.logpdf(value, centre, np.sqrt(noise[side]))
        assert score == pytest.approx(density[True] - density[False], rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("mode", ["online", "offline"])
def test_one_shadow_that_saw_half_of_the_samples(mode: str) -> None:
    """The side that it does not show is the one it shows, moved by the mean difference between the two halves."""
    whole, truth = shadows(2)
    first = np.arange(30)
    reference = LabelledFeatures(whole.features.take(first), whole.member[first])
    logs, saw = np.log(reference.features.values["norm:2"]), reference.member
    shift = logs[saw].mean() - logs[~saw].mean()
    outside = logs - shift * saw
    squares = sum(((logs[side] - logs[side].mean()) ** 2).sum() for side in (saw, ~saw))
    noise = np.sqrt(squares / 28)
    attack = LiRA(LiRAParameters(statistic="norm", mode=mode))
    attack.fit(reference)
    features = target(truth["level"], np.arange(30) < 15)
    value = np.log(features.values["norm:2"])
    expected = norm.logpdf(value, outside + shift, noise) - norm.logpdf(value, outside, noise)
    if mode == "offline":
        expected = (value - outside) / noise / np.sqrt(2)
        assert attack.threshold == pytest.approx(student.ppf(0.95, 28))
    np.testing.assert_allclose(attack.score(features), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("statistic", ["cosine", "norm"])
def test_condensed_features_give_the_same_fit(statistic: str) -> None:
    """Many shadows' features are held at once, with one number in place of all cosines."""
    reference, _ = shadows(4)
    cosines = np.tanh(np.random.default_rng(0).normal(0.5, 0.1, (120, 45))).astype(np.float32)
    values = {"pairwise:cosine": cosines, "norm:2": reference.features.values["norm:2"]}
    attack, again = (LiRA(LiRAParameters(statistic=statistic)) for _ in range(2))
    whole = Features(reference.features.ids, {measure.name: values[measure.name] for measure in attack.needs})
    attack.fit(LabelledFeatures(whole, reference.member))
    condensed = attack.condensed(whole)
    again.fit(LabelledFeatures(condensed, reference.member))
    assert condensed[attack.needs[0]].size == 120
    for name, array in attack.state().items():
        np.testing.assert_array_equal(again.state()[name], array)


def test_offline_is_one_sided_and_uses_shadows_without_the_sample_only() -> None:
    reference, truth = shadows()
    attack = LiRA(LiRAParameters(statistic="norm", mode="offline", fpr=0.1))
    attack.fit(reference)
    outside = ~reference.member
    alone = LiRA(LiRAParameters(statistic="norm", mode="offline", fpr=0.1))
    spoiled = reference.features.values["norm:2"].copy()
    spoiled[reference.member] = 77.0  # what shadows with the sample give is not looked at
    alone.fit(LabelledFeatures(Features(reference.features.ids, {"norm:2": spoiled}), reference.member))
    features = target(truth["level"], np.arange(30) < 15)
    np.testing.assert_allclose(alone.score(features), attack.score(features))
    assert attack.threshold == pytest.approx(student.ppf(0.9, 3 * 30 - 30))
    everyone = LiRA(LiRAParameters(statistic="norm", mode="offline", fpr=1.0))
    everyone.fit(reference)
    assert np.isfinite(everyone.threshold)
    assert (everyone.score(features) >= everyone.threshold).all()
    high = Features(features.ids, {"norm:2": features.values["norm:2"] * 100})
    assert (attack.score(high) > attack.score(features)).all()  # never: unlike a two-sided one, "too high to be out"
    assert outside.sum() == 90


@pytest.mark.parametrize("variance", ["pooled", "per-sample"])
@pytest.mark.parametrize("side", ["high", "low"])
def test_offline_false_positives_are_what_was_asked_for_however_few_the_shadows(variance: str, side: str) -> None:
    """Two shadows without the sample: taking their mean and deviation for the truth would call twice as many."""
    rates = []
    for seed in range(40):
        reference, truth = shadows(count=4, seed=seed)
        attack = LiRA(LiRAParameters(statistic="norm", mode="offline", fpr=0.1, variance=variance, side=side))
        attack.fit(reference)
        features = target(truth["level"], np.zeros(30), seed=1000 + seed)
        rates.append((attack.score(features) >= attack.threshold).mean())
    assert np.mean(rates) == pytest.approx(0.1, abs=0.03)  # 1,200 samples: a standard error of .009


def test_fishers_z_of_the_mean_cosine() -> None:
    cosines = np.array([[0.5, 0.7], [1.0, 1.0], [-0.2, 0.2]])
    found = LiRA().statistic(Features(np.array(["a", "b", "c"]), {"pairwise:cosine": cosines}))
    assert found[0] == pytest.approx(np.arctanh(0.6))
    assert np.isfinite(found).all()  # identical views
    assert found[2] == 0


def test_what_it_refuses() -> None:
    reference, _ = shadows(count=2)
    pair = reference.features.take(np.array([0, 30]))
    with pytest.raises(NumericError, match="lira needs 2 samples to tell a deviation from, got 1"):
        LiRA(LiRAParameters(statistic="norm")).fit(LabelledFeatures(pair, np.array([True, False])))
    with pytest.raises(
        NumericError,
        match=r"lira with variance = 'per-sample' needs 2 shadows in of whose training data each sample is; .* has 1",
    ):
        LiRA(LiRAParameters(statistic="norm", variance="per-sample")).fit(reference)
    attack = LiRA(LiRAParameters(statistic="norm"))
    attack.fit(shadows()[0])
    stranger = Features(np.array(["pool/77"]), {"norm:2": np.ones(1)})
    refused(ConfigError, "pool/77 is in no shadow's data", attack.score, stranger)
    refused(NumericError, "pool/7 has length 0", attack.score, Features(np.array(["pool/7"]), {"norm:2": np.zeros(1)}))
    refused(ConfigError, "mode = 'both'", LiRAParameters, mode="both")
