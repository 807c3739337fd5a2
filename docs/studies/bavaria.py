"""Whether a Bayesian variance helps attacks on few shadow encoders: BaVarIA beside the package's ``lira`` and ``rmia``.

``python -m docs.studies.bavaria RESULT.json CACHE`` trains SimCLR encoders on random halves of the audited images of
digits and of CIFAR-10 of ``shared``. Each seed draws the images and three pairs of halves; a pair shares no image. Each
of the six encoders is a target once. Its shadows are the first 2, 3 or 4 of the other pairs, so that of the first two
one saw an image. CACHE keeps the mean cosines of ten views.

**The attack** follows the idea of Brännvall ("Exponential-family membership inference: from LiRA and RMIA to BaVarIA",
arXiv:2603.11799, 2026), as its abstract tells it: normal-inverse-gamma priors, and Student's t (``t``) or a Gaussian
with a stabilised variance (``n``) in the place of LiRA's Gaussians. The paper's priors were not at hand. Here an image
has a level, a shift by training and a variance; shadows' values are level + shift where they saw it, plus noise. Level
and shift are Gaussian in units of that variance, which is inverse gamma. The hyperparameters maximise the likelihood of
all shadows' values of all images. Online a score is the log ratio of the two predictive densities of the target's
value, given all shadows; offline, given those that did not see the image. With one shadow on either side the spread of
shifts is not identified, and is 0. ``t, one variance`` is the same without the variances of images, and tells what the
priors of level and shift add alone. ``t, sides`` has a prior of its own for the shadows on either side, as LiRA has its
two Gaussians; offline its score is a tail. It needs two shadows on one side, so three in all.

The statistic is that of ``lira`` and ``rmia`` for all; images that no encoder saw are the population of ``rmia``.
Differences of AUC are paired, their standard error is DeLong's, with an image's parts in all targets summed before they
are squared. They cover the choice of images; six targets of a data set share their trainings. Said beforehand: with 12
targets of 1,000 images and ranks that correlate by .95, a difference of .005 is resolved, and not one of .002. There
was time for six targets each, of 880 and 500 images, so that about .005 to .01 is resolved. The attack comes into the
package if it is ahead of both, resolved, with 2, 3 and 4 shadows on both data sets. No setting of the attack was chosen
on these images. The length of training was cut for want of time, before any attack was read.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import minimize
from scipy.special import gammaln
from scipy.stats import t as student
from sklearn.datasets import load_digits

from docs.studies.shared import MILD, Result, Scores, cifar10, consistency, trained
from mi_core.attacks.base import Attack, fisher_z
from mi_core.attacks.lira import LiRA, LiRAParameters
from mi_core.attacks.rmia import RMIA, RMIAParameters
from mi_core.attacks.shadows import shadow_row
from mi_core.augmentations.simclr import SimCLRAugmentation
from mi_core.features.pairwise_similarity import PairwiseSimilarity
from mi_core.metrics.delong import placements
from mi_core.metrics.membership import tpr_at_fpr
from mi_core.objectives.simclr import SimCLRParameters
from mi_core.records import Features, LabelledFeatures
from mi_core.training.loop import PretrainingParameters
from mi_core.training.optimizers import OptimizerParameters

Bools = npt.NDArray[np.bool_]
PAIRS, COUNTS, TAIL = 3, (2, 3, 4), 1.959964
COSINES = PairwiseSimilarity().name


@dataclass(frozen=True)
class Setting:
    """Images and how encoders are trained on them: ``audited`` images, of which each sees a half."""

    seeds: tuple[int, ...]
    audited: int
    population: int
    backbone: str
    epochs: int
    batch: int
    rate: float
    augmentation: SimCLRAugmentation


SETTINGS = {
    "digits": Setting(
        *((0,), 880, 440, "conv4", 120, 220, 0.005),
        SimCLRAugmentation(
            crop_scale=(0.75, 1.0), rotation=8, flip=0, jitter_probability=1, brightness=0.1, contrast=0, saturation=0,
            hue=0, grayscale=0,
        ),
    ),
    "cifar10": Setting((0,), 500, 300, "resnet8", 80, 50, 0.002, MILD),
}  # fmt: skip


def seen(name: str, seed: int, cache: Path) -> tuple[npt.NDArray[np.intp], Bools, Scores]:
    """Numbers of a seed's audited images (n,), which encoder saw which (n, 6), mean cosines (n + population, 6)."""
    how, rng = SETTINGS[name], np.random.default_rng(seed)
    if name == "digits":
        images = torch.from_numpy(np.round(load_digits().images * (255 / 16)).astype(np.uint8))[:, None]
        order = rng.permutation(len(images))[: how.audited + how.population]
    else:
        images = cifar10("train", 4)[0]
        order = np.random.default_rng(0).permutation(len(images))  # seeds share no image
        order = order[seed * (how.audited + how.population) :][: how.audited + how.population]
    halves = [rng.permutation(how.audited) % 2 == 0 for _ in range(PAIRS)]
    inside = np.stack([side for half in halves for side in (half, ~half)], axis=1)
    found = np.empty((len(order), inside.shape[1]))
    for number in range(inside.shape[1]):
        file = cache / f"{name}-{seed}-{number}.npy"
        if not file.exists():
            optimizer = OptimizerParameters(
                name="adamw", learning_rate=how.rate, weight_decay=1e-4, schedule="constant", warmup=0.03
            )
            parameters = SimCLRParameters(temperature=0.2, projection_hidden=256, projection_width=128)
            recipe = PretrainingParameters(
                how.backbone, "simclr", parameters, optimizer, epochs=how.epochs, batch_size=how.batch
            )
            rows = order[: how.audited][inside[:, number]]
            made = trained(recipe, images[rows], how.augmentation, seed=100 * seed + number)[how.epochs]
            np.save(file, consistency(made, images[order], how.augmentation, output="projection"))
        found[:, number] = np.load(file)
    return order[: how.audited], inside, found


@dataclass(frozen=True)
class Prior:
    """Of coefficients, Gaussian around ``centre`` (P,) with a variance / ``precision`` (P,), and of that variance."""

    centre: Scores
    precision: Scores
    shape: float
    rate: float


@dataclass(frozen=True)
class Known:
    """Sums over the shadows of each of n images: A (n, P, P), c (n, P), the squares and numbers of values (n,)."""

    squares_of_design: Scores
    products: Scores
    squares: Scores
    count: Scores

    @classmethod
    def summed(cls, values: Scores, used: Bools, *columns: Bools | Scores) -> Known:
        """Of values (n, K) where they are ``used``, by a column (n, K) for each coefficient."""
        design = np.stack([np.where(used, column, 0.0) for column in columns], axis=2)
        kept = np.where(used, values, 0.0)
        return cls(
            np.einsum("nkp,nkq->npq", design, design),
            np.einsum("nkp,nk->np", design, kept),
            (kept**2).sum(axis=1),
            used.sum(axis=1).astype(float),
        )


@dataclass(frozen=True)
class Posterior:
    """Of n images: mean (n, P), covariance in units of the variance (n, P, P), shape (n,) and rate (n,) of that."""

    mean: Scores
    covariance: Scores
    shape: Scores
    rate: Scores
    evidence: float

    @classmethod
    def updated(cls, prior: Prior, known: Known) -> Posterior:
        precision = known.squares_of_design + np.diag(prior.precision)
        covariance = np.asarray(np.linalg.inv(precision), dtype=np.float64)
        right = known.products + prior.precision * prior.centre
        mean = np.einsum("npq,nq->np", covariance, right)
        shape = prior.shape + known.count / 2
        left = known.squares + (prior.precision * prior.centre**2).sum() - (right * mean).sum(axis=1)
        rate = prior.rate + np.maximum(left, 0) / 2
        evidence = (np.log(prior.precision).sum() - np.linalg.slogdet(precision)[1]) / 2 + gammaln(shape)
        evidence += prior.shape * np.log(prior.rate) - shape * np.log(rate) - gammaln(prior.shape)
        return cls(mean, covariance, shape, rate, float(evidence.sum()))

    def predictive(self, *coefficients: float) -> tuple[Scores, Scores, Scores]:
        """Degrees of freedom, location and scale (n,) of the next value."""
        row = np.array(coefficients)
        spread = 1 + np.einsum("p,npq,q->n", row, self.covariance, row)
        return 2 * self.shape, self.mean @ row, np.sqrt(self.rate / self.shape * spread)


def fitted(known: Known, fixed: tuple[int, ...] = (), least: float = 0.5) -> Prior:
    """The prior with the highest evidence; ``fixed`` coefficients, with a high ``least`` shape variances, are alike."""
    size = known.products.shape[1]

    def prior(numbers: Scores) -> Prior:
        precision = np.exp(numbers[size : 2 * size])
        precision[list(fixed)] = 1e6
        return Prior(numbers[:size], precision, float(np.exp(numbers[-2])), float(np.exp(numbers[-1])))

    start = np.zeros(2 * size + 2)
    start[-2:] = np.log(max(3, least)), np.log(max(3, least) / 6)
    limits = [(-10, 10)] * size + [(-7, 9)] * size + [(np.log(least), np.log(max(5000, least))), (-12, 20)]
    best = minimize(
        lambda x: -Posterior.updated(prior(x), known).evidence,
        start,
        method="L-BFGS-B",
        bounds=limits,
        options={"ftol": 1e-7},
    )
    return prior(best.x)


def bayesian(values: Scores, inside: Bools, target: Scores) -> tuple[dict[str, dict[str, Scores]], dict[str, Any]]:
    """Scores (n,) by mode and name from shadows' values (n, K), and the prior; in units of their deviation."""
    centre, unit = values.mean(), values.std()
    values, target = (values - centre) / unit, (target - centre) / unit
    every = np.ones_like(inside)
    twice = (inside.sum(axis=1) > 1).any() or ((~inside).sum(axis=1) > 1).any()
    scores: dict[str, dict[str, Scores]] = {"online": {}, "offline": {}}
    for name, least in (("t, one variance", 5000.0), ("t", 0.5)):
        prior = fitted(Known.summed(values, every, every, inside), () if twice else (1,), least)
        for mode, used in (("online", every), ("offline", ~inside)):
            posterior = Posterior.updated(prior, Known.summed(values, used, every, inside))
            (degrees, low, narrow), (_, high, wide) = posterior.predictive(1, 0), posterior.predictive(1, 1)
            at_high, at_low = (target - high) / wide, (target - low) / narrow
            ratio = np.log(narrow / wide)
            scores[mode][name] = student.logpdf(at_high, degrees) - student.logpdf(at_low, degrees) + ratio
            if name == "t":
                scores[mode]["n"] = (at_low**2 - at_high**2) / 2 + ratio
    told: dict[str, Any] = {"shape": round(prior.shape, 2), "shift": round(float(prior.centre[1] * unit), 4)}
    told |= {"precision": [round(float(one), 3) for one in prior.precision]}
    if twice:
        known = [Known.summed(values, side, every) for side in (~inside, inside)]
        sides = [Posterior.updated(fitted(one), one).predictive(1) for one in known]
        scores["online"]["t, sides"] = student.logpdf(target, *sides[1]) - student.logpdf(target, *sides[0])
        scores["offline"]["t, sides"] = -student.logsf(target, *sides[0])
    return scores, told


def scores_of(cosines: Scores, inside: Bools, target: int, count: int) -> tuple[dict[str, dict[str, Scores]], Any]:
    """Scores (n,) of the audited images by mode and attack, and the prior."""
    shadows = [number for number in range(2 * PAIRS) if number // 2 != target // 2][:count]
    audited = len(inside)
    names = np.array([f"audited/{row:04d}" for row in range(audited)])
    others = np.array([f"population/{row:04d}" for row in range(len(cosines) - audited)])

    def features(columns: list[int], ids: list[Any], rows: slice, beside: Features | None = None) -> Features:
        values = cosines[rows][:, columns].T.reshape(-1, 1)
        return Features(np.concatenate(ids), {COSINES: values}, population=beside)

    def similarities(columns: list[int], rename: Any) -> Features:
        beside = features(columns, [rename(others, one) for one in columns], slice(audited, None))
        return features(columns, [rename(names, one) for one in columns], slice(audited), beside)

    asked = similarities([target], lambda ids, _: ids)
    reference = similarities(shadows, lambda ids, one: np.array([shadow_row(each, f"shadow-{one}") for each in ids]))
    values = fisher_z(cosines[:audited])
    found, told = bayesian(values[:, shadows], inside[:, shadows], values[:, target])
    scores = {mode: {f"bavaria, {name}": one for name, one in own.items()} for mode, own in found.items()}
    for mode, own in scores.items():
        attacks: dict[str, Attack] = {"lira": LiRA(LiRAParameters(mode=mode)), "rmia": RMIA(RMIAParameters(mode=mode))}
        if count == 2 * PAIRS - 2:
            attacks["lira, own variance"] = LiRA(LiRAParameters(mode=mode, variance="per-sample"))
        for name, attack in attacks.items():
            attack.fit(LabelledFeatures(reference, inside[:, shadows].T.flatten()))
            own[name] = attack.score(asked)
    return scores, told


def pooled(parts: list[tuple[npt.NDArray[np.intp], Scores, float]]) -> list[float]:
    """The mean of AUCs, or of their differences, with its interval; parts: images (n,), influence (n,), value."""
    mean, sums = float(np.mean([part[2] for part in parts])), dict[int, float]()
    for images, influence, _ in parts:
        for image, one in zip(images.tolist(), influence.tolist(), strict=True):
            sums[image] = sums.get(image, 0.0) + one / len(parts)
    reach = TAIL * float(np.sqrt(np.square(list(sums.values())).sum()))
    return [round(each, 4) for each in (mean, mean - reach, mean + reach)]


def influence(scores: Scores, member: Bools) -> tuple[Scores, float]:
    """Each image's part in an AUC (n,), and the AUC."""
    inside, outside = placements(scores, member)
    parts = np.empty(len(member))
    parts[member] = (inside - inside.mean()) / len(inside)
    parts[~member] = (outside - outside.mean()) / len(outside)
    return parts, float(inside.mean())


def rows_of(name: str, runs: list[Any]) -> Iterator[dict[str, Any]]:
    """AUC of every attack, with what BaVarIA adds to the package's."""
    for count in COUNTS:
        found: dict[str, dict[str, list[Any]]] = {}
        rates: dict[tuple[str, str], list[float]] = {}
        for images, inside, cosines in runs:
            for target in range(2 * PAIRS):
                member = inside[:, target]
                scores, told = scores_of(cosines, inside, target, count)
                for mode, attack, values in ((*key, one) for key, one in flat(scores)):
                    found.setdefault(mode, {}).setdefault(attack, []).append((images, *influence(values, member)))
                    rates.setdefault((mode, attack), []).append(tpr_at_fpr(values, member, 0.01, seed=0).value)
        for mode, attack, parts in ((*key, one) for key, one in flat(found)):
            aucs = [part[2] for part in parts]
            row = {"data": name, "mode": mode, "shadows": count, "attack": attack, "auc": pooled(parts)}
            row |= {"sd_of_targets": round(float(np.std(aucs, ddof=1)), 4), "targets": len(parts)}
            rate = float(np.mean(rates[mode, attack]))
            row |= {"n": sum(len(part[0]) for part in parts), "tpr_at_.01": round(rate, 4)}
            if attack.startswith("bavaria"):
                row["last_prior"] = told
                for other in ("rmia", "lira"):
                    less = [(a[0], a[1] - b[1], a[2] - b[2]) for a, b in zip(parts, found[mode][other], strict=True)]
                    row |= {f"less_{other}": pooled(less), f"targets_above_{other}": sum(one[2] > 0 for one in less)}
            yield row


def flat(nested: dict[str, dict[str, Any]]) -> Iterator[tuple[tuple[str, str], Any]]:
    """Both keys and the value."""
    for first, inner in nested.items():
        for second, value in inner.items():
            yield (first, second), value


def main(path: str, cache: str) -> None:
    torch.set_num_threads(1)
    result, folder = Result(path, auc="mean of the targets", pairs=PAIRS), Path(cache)
    folder.mkdir(parents=True, exist_ok=True)
    for name, how in SETTINGS.items():
        for row in rows_of(name, [seen(name, seed, folder) for seed in how.seeds]):
            result.keep(row)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
