"""RMIA against a loop from the paper, its threshold, and what it gains and loses beside LiRA with few shadows."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from mi_core.attacks.rmia import RMIA, RMIAParameters
from mi_core.attacks.shadows import shadow_row
from mi_core.checks import ConfigError, NumericError
from mi_core.metrics.delong import auc
from mi_core.records import Features, LabelledFeatures
from tests.raising import refused

NORM = "norm:2"


def simulated(
    shadows: int,
    seed: int,
    *,
    samples: int = 60,
    population: int = 40,
    difficulty: float = 1.0,
    noise: float = 1.0,
    shift: float = 1.0,
    wide: float = 0.0,
    uneven: bool = False,
) -> tuple[LabelledFeatures, Features, np.ndarray]:
    """What shadows and the target give: each sample has its own level, each encoder its own mean and scale.

    With ``uneven`` half of the samples are not memorised, and the others are moved by twice the shift.
    """
    generator = np.random.default_rng(seed)
    moved = shift * (2.0 * (np.arange(samples) % 2) if uneven else np.ones(samples))
    level = {"pool": generator.normal(0, difficulty, samples), "others": generator.normal(0, difficulty, population)}

    def seen(part: str, inside: np.ndarray | bool, encoder: tuple[float, float], name: str) -> Features:
        shifts = moved * inside if part == "pool" else 0.0
        noisy = level[part] + shifts + generator.normal(0, noise, len(level[part]))
        rows = [f"{part}/{row:05d}" for row in range(len(noisy))]
        ids = [shadow_row(row, name) for row in rows] if name else rows
        return Features(np.array(ids), {NORM: np.exp(encoder[0] + encoder[1] * noisy)})

    halves = [generator.permutation(samples) % 2 == 0 for _ in range(shadows)]
    inside = [side for half in halves for side in (half, ~half)]
    parts, beside = [], []
    for number in range(shadows):
        encoder = (generator.normal(0, wide), math.exp(generator.normal(0, wide / 3)))
        parts.append(seen("pool", inside[number], encoder, f"half-{number}"))
        beside.append(seen("others", False, encoder, f"half-{number}"))
    member = generator.permutation(samples) % 2 == 0
    own = (generator.normal(0, wide), math.exp(generator.normal(0, wide / 3)))
    target = replace(seen("pool", member, own, ""), population=seen("others", False, own, ""))
    reference = replace(joined(parts), population=joined(beside))
    return LabelledFeatures(reference, np.concatenate(inside[:shadows])), target, member


def joined(parts: list[Features]) -> Features:
    values = np.concatenate([one.values[NORM] for one in parts])
    return Features(np.concatenate([one.ids for one in parts]), {NORM: values})


def in_units(reference: LabelledFeatures) -> dict[str, float]:
    """u of each row of shadows, also of the population's, in a loop."""
    population = reference.features.population
    assert population is not None
    logs, units = {}, {}
    for features in (reference.features, population):
        logs |= {str(row): math.log(value) for row, value in zip(features.ids, features.values[NORM], strict=True)}
    for name in {row.split("#")[1] for row in logs}:
        values = [logs[row] for row in population.ids if row.endswith(f"#{name}")]
        mine = [row for row in logs if row.endswith(f"#{name}")]
        units |= {row: float((logs[row] - np.mean(values)) / np.std(values)) for row in mine}
    return units


def fitted(reference: LabelledFeatures, **settings: object) -> RMIA:
    attack = RMIA(RMIAParameters(statistic="norm", **settings))  # type: ignore[arg-type]
    attack.fit(reference)
    return attack


def by_the_paper(
    reference: LabelledFeatures, target: Features, *, online: bool, a: float, gamma: float
) -> tuple[list[float], list[float]]:
    """(score, own ratio) per sample, image by image: equation 1, the share of z, and the adaptation's likelihood."""
    assert reference.features.population is not None
    assert target.population is not None
    units = in_units(reference)
    saw = dict(zip(reference.features.ids, reference.member, strict=True))
    names = sorted({row.split("#")[1] for row in saw})
    others = sorted({row.split("#")[0] for row in reference.features.population.ids})
    inside = [units[row] for row in saw if saw[row]]
    outside = [units[row] for row in saw if not saw[row]]
    d = sum(inside) / len(inside) - sum(outside) / len(outside)

    def likelihood(u: float) -> float:
        return 1 / (1 + math.exp(-d * (u - d / 2)))

    def marginal(pairs: list[tuple[float, bool]]) -> float:
        """From u by each shadow, and whether it saw the image."""
        without = [u for u, seen in pairs if not seen] or [u - d for u, _ in pairs]
        within = [u for u, seen in pairs if seen] or [u + d for u, _ in pairs]
        out = sum(map(likelihood, without)) / len(without)
        if not online:
            return ((1 + a) * out + (1 - a)) / 2
        return (out + sum(map(likelihood, within)) / len(within)) / 2

    def of_sample(x: str) -> float:
        return marginal([(units[f"{x}#{name}"], bool(saw[f"{x}#{name}"])) for name in names])

    def of_population(number: int, z: str) -> float:
        """As if every other shadow had seen it."""
        seen = [(number + place) % 2 == 0 for place in range(len(names))]
        return marginal([(units[f"{z}#{name}"] + d * side, side) for name, side in zip(names, seen, strict=True)])

    beside = [math.log(value) for value in target.population.values[NORM]]
    centre, spread = np.mean(beside), np.std(beside)
    ratios = [
        likelihood((value - centre) / spread) / of_population(others.index(z), z)
        for z, value in zip(target.population.ids, beside, strict=True)
    ]
    scores, own = [], []
    for x, value in zip(target.ids, target.values[NORM], strict=True):
        ratio = likelihood((math.log(value) - centre) / spread) / of_sample(x)
        scores.append(sum(ratio / one > gamma for one in ratios) / len(ratios))
        own.append(ratio)
    return scores, own


@pytest.mark.parametrize("mode", ["online", "offline"])
@pytest.mark.parametrize(("shadows", "a", "gamma"), [(1, 0.3, 1.0), (2, 0.3, 2.0), (3, 0.0, 1.0), (6, 0.8, 1.3)])
def test_scores_by_the_paper(mode: str, shadows: int, a: float, gamma: float) -> None:
    reference, target, _ = simulated(shadows, shadows, shift=2.0, wide=1.0)
    shares, ratios = by_the_paper(reference, target, online=mode == "online", a=a, gamma=gamma)
    scores = fitted(reference, mode=mode, a=a, gamma=gamma).score(target)
    images = len(target.population or ())
    added = np.array([ratio / (1 + ratio) / 2 / images for ratio in ratios])  # orders samples of one share
    np.testing.assert_allclose(scores, shares + added, atol=1e-9)
    assert (np.floor(scores * images + 1e-6) == np.round(np.array(shares) * images)).all()


@pytest.mark.parametrize("mode", ["online", "offline"])
@pytest.mark.parametrize("population", [19, 40])
def test_the_mean_log_ratio_of_informia_orders_samples_alike(mode: str, population: int) -> None:
    """InfoRMIA: log LR(x, z) in the mean over z, in place of the share of z with LR(x, z) > gamma.

    It differs from the log of x's own ratio by the same number for all x. The bare share has ties, which the score has
    not, so it would not pass for either.
    """
    reference, target, member = simulated(4, 17, samples=300, population=population, wide=1.0)
    shares, own = by_the_paper(reference, target, online=mode == "online", a=0.3, gamma=1.0)
    scores = fitted(reference, mode=mode).score(target)
    np.testing.assert_array_equal(np.argsort(scores), np.argsort(np.log(own)))
    assert auc(scores, member).value == auc(np.log(own), member).value
    assert len(set(shares)) <= population + 1 < len(set(scores.tolist())) == len(scores)


@pytest.mark.parametrize(("population", "share", "score"), [(19, 0.712, 0.717), (500, 0.730, 0.730)])
def test_what_the_bare_share_loses_by_its_ties(population: int, share: float, score: float) -> None:
    """What InfoRMIA gains over the published RMIA here: the figures of the docstring."""
    found: dict[str, list[tuple[float, float]]] = {"share": [], "score": []}
    for seed in range(8):
        reference, target, member = simulated(4, seed, samples=2000, population=population)
        scores = fitted(reference, mode="offline").score(target)
        for name, values in (("share", np.floor(scores * population + 1e-9)), ("score", scores)):
            tenth = np.sort(values[~member])[-10 - 1]  # of 1,000 non-members 10 and fewer lie above
            found[name].append((auc(values, member).value, (values[member] > tenth).mean()))
    (of_share, true_of_share), (of_score, true_of_score) = (np.mean(found[name], axis=0) for name in found)
    assert (of_share, of_score) == pytest.approx((share, score), abs=0.001)
    assert true_of_score == pytest.approx(0.071, abs=0.001)
    assert true_of_share == pytest.approx({19: 0.028, 500: 0.065}[population], abs=0.001)


@pytest.mark.parametrize("fpr", [0.05, 0.1, 0.33])
def test_the_threshold_is_the_lowest_that_keeps_the_rate(fpr: float) -> None:
    """A new image like the population's beats 0 to Z of its Z images, each number with the same chance: counted."""
    attack = RMIA(RMIAParameters(fpr=fpr))
    for count in range(attack.needed_nonmembers, 200):
        threshold = attack._threshold(count)
        scores = [(beaten + 0.25) / count for beaten in range(count + 1)]
        called = sum(score >= threshold for score in scores)
        assert called <= fpr * (count + 1) + 1e-9 < called + 1 + 1e-6, count


def test_encoders_whose_answers_are_larger_or_spread_wider_compare() -> None:
    """A target whose norms are all 20 times as large and spread 3 times as wide is no other target."""
    reference, target, _ = simulated(4, 5, samples=400)
    population = target.population
    other = Features(
        target.ids,
        {NORM: 20 * target.values[NORM] ** 3},
        population=Features(population.ids, {NORM: 20 * population.values[NORM] ** 3}),
    )
    attack = fitted(reference)
    np.testing.assert_allclose(attack.score(other), attack.score(target), atol=1e-9)


def test_it_learns_on_which_side_members_lie() -> None:
    for side in (-1.5, 1.5):
        reference, target, member = simulated(4, 7, samples=600, shift=side)
        assert auc(fitted(reference).score(target), member).value > 0.75


def test_the_chosen_a_by_a_loop() -> None:
    reference, _, _ = simulated(4, 11, samples=200)
    state = fitted(reference, mode="offline", a=None).state()
    d, best, units = float(state["shift"]), {}, in_units(reference)
    saw = {tuple(row.split("#")): side for row, side in zip(reference.features.ids, reference.member, strict=True)}
    p = {(x, name): 1 / (1 + math.exp(-d * (units[f"{x}#{name}"] - d / 2))) for x, name in saw}
    names = sorted({name for _, name in saw})
    for a in np.linspace(0, 1, 11):
        areas = []
        for name in names:
            ratios, members = [], []
            for x in {x for x, _ in saw}:
                out = np.mean([p[x, other] for other in names if other != name and not saw[x, other]])
                ratios.append(p[x, name] / (((1 + a) * out + 1 - a) / 2))
                members.append(saw[x, name])
            areas.append(auc(np.array(ratios), np.array(members)).value)
        best[float(a)] = float(np.mean(areas))
    assert state["a"] == max(best, key=lambda a: best[a])


def test_what_it_refuses() -> None:
    reference, target, _ = simulated(2, 0)
    few = simulated(2, 0, population=10)[0]
    refused(NumericError, r"rmia at fpr = 0.05 needs 19 images of a population, got 10", fitted, few)
    with pytest.raises(NumericError, match=r"rmia with a = None needs 2 shadows out of .*; pool/00000 has 1"):
        fitted(reference, mode="offline", a=None)
    population = reference.features.population
    one = population.take(np.char.endswith(population.ids, "#half-0"))
    with pytest.raises(ConfigError, match="the population needs features by every shadow"):
        fitted(LabelledFeatures(replace(reference.features, population=one), reference.member))
    stranger = replace(target, population=Features(np.array(["others/77777"]), {NORM: np.ones(1)}))
    refused(ConfigError, "others/77777 is in no shadow's data", fitted(reference).score, stranger)
    refused(ConfigError, "gamma = 0", RMIAParameters, gamma=0)
    refused(ConfigError, r"a = 1\.5", RMIAParameters, a=1.5)
