"""One score from all that attacks read off an image's embeddings, by a regularised logistic regression.

The idea is that of CDI (Dubinski et al., "CDI: copyrighted data identification in diffusion models", CVPR 2025): many
weak signals of membership, each a number per sample, are weighed together. Here the numbers are those that attacks on
encoders read: how alike views are and how much that varies, norms and their ratio, patches, and where they are asked
for, captions, or how densely other images lie around it.

The squared distance of the weights from a prior is penalised: some weight on the first number, the mean similarity of
views, as `encodermi-t` reads it, and none on the others. So the regression departs from that number
only as far as the samples support it.

**Fitted on others** (``shadow``, ``known``): one regression.

**Fitted on the audited samples** (``audited``, as CDI does): nobody knows members, so it learns to tell candidates
from controls. One could fit on each half and judge the other. The two results are not independent, though. Let d_A be
the difference of the means in A. The regression on A weighs numbers about as d_A does, so its success on B follows
d_A . d_B, and so does that of the regression on B on A. Pooled, they alarmed at .01 in .03 to .06 of 400 simulated
draws of 16 to 200 candidates without a difference.

Here the samples come in five folds, one after another. Each is scored by the regression on those before it, the first
by the first number alone. Given the earlier folds, it is chance which samples of a fold are candidates if there is
no difference. So results of folds do not depend on each other, and tests and intervals hold asymptotically. They are
not exact, as those of a score are that was fixed before: relabelling the scores does not fit anew. Of 2,500 draws with
30 candidates .0112 alarmed at .01 and .050 at .05. A score is measured in the standard deviations of all audited
samples' scores by the same regression, which no label enters.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import expit

from mi_core.attacks.base import Attack, NotApplicable, Scores, State, fisher_z
from mi_core.attacks.patch_similarity import patches_of
from mi_core.checks import ConfigError, check_range
from mi_core.features import Measure
from mi_core.features.caption_similarity import CaptionSimilarity
from mi_core.features.embedding import LpNorm, NeighbourDensity
from mi_core.features.pairwise_similarity import PairwiseSimilarity
from mi_core.features.patch_similarity import CenterSimilarity
from mi_core.folds import stratified_folds
from mi_core.records import Features, LabelledFeatures

_LEAST = 1e-12  # below this a length or a deviation is rounding
_TOLD = 1e-5  # smaller deviations are rounding: of the logarithm of lengths that are all 1, for example
_PRIOR = 0.5  # weight of the first number, in its standard deviations, before anything is learned


@dataclass(frozen=True)
class CombinedParameters:
    """Settings of the attack.

    Args:
        grid: rows and columns of patches, as `patch-similarity` asks for; empty: no patches are queried.
        neighbours: ``k/A``, such as ``20/128``, of the mean cosine with the k nearest of A images of the role
            ``anchor``, which costs a query more; empty: it is not read.
        caption: whether the cosine of image and caption is read, as by `clip-cosine`; it is read off a projection.
        penalty: of the squared distance of the weights from their prior, in samples.
    """

    grid: str = "3x3"
    neighbours: str = ""
    caption: bool = False
    penalty: float = 10.0

    def __post_init__(self) -> None:
        self.measures()
        check_range("penalty", self.penalty, 0, open_low=True)

    def measures(self) -> tuple[Measure, ...]:
        """Cosines of views, two norms, and patches, neighbours or the caption."""
        chosen: list[Measure] = [PairwiseSimilarity(), LpNorm(1), LpNorm(2)]
        chosen += [patches_of(self.grid)] if self.grid else []
        chosen += [_neighbours_of(self.neighbours)] if self.neighbours else []
        chosen += [CaptionSimilarity()] if self.caption else []
        return tuple(chosen)


class Combined(Attack):
    """A logistic regression over what the other attacks read: similarities, norms, patches.

    Fitted on a shadow encoder or on known samples it is one more attack, and spares the choice among the others. With
    ``reference: audited`` it needs neither a shadow nor a known member: it learns from some of the candidates and
    controls, and judges the next; p-values and intervals then are asymptotic, not exact. It finds any difference
    between the two, so the controls must be of the same kind as the candidates. On a reference encoder it learns anew,
    which shows such a difference.
    """

    name = "combined"
    threat_model = (
        "embeddings of views, of the image and of its patches; a shadow encoder, known samples, or only "
        "the audited samples"
    )
    queries = "20 at 10 views"
    reference = frozenset({"shadow", "known", "audited"})
    source = "after CDI (CVPR 2025), on the statistics of attacks on encoders"
    Parameters = CombinedParameters

    @property
    def needs(self) -> tuple[Measure, ...]:
        """Cosines of views, two norms, and patches, neighbours or the caption."""
        return self.parameters.measures()

    def fit(self, reference: LabelledFeatures) -> None:
        """As every attack; audited samples are scored as it goes on.

        Raises ShapeError: there are fewer than 5 audited samples, or groups of them, on a side.
        """
        if not reference.audited:
            super().fit(reference)
            return
        self._check_needs(reference.features)
        self._state = self._fit_audited(reference)

    def _fit(self, features: Features, member: npt.NDArray[np.bool_]) -> State:
        numbers = self._numbers(features)
        scale = self._scale(numbers)
        weight, offset = self._regression(_standard(numbers, scale), member)
        return {"scale": scale, "weight": weight, "offset": offset, "threshold": np.array(0.0)}

    def _fit_audited(self, reference: LabelledFeatures) -> State:
        order = np.argsort(reference.features.ids)  # the folds do not depend on the order of files
        features, side = reference.features.take(order), reference.member[order]
        groups = None if reference.groups is None else reference.groups[order]
        numbers = self._numbers(features)
        standard = _standard(numbers, self._scale(numbers))
        folds = stratified_folds(side, groups, self.seed, f"{self.name} on audited samples")
        scores = np.empty(len(side))
        scores[folds[0]] = _scale_to_unit_spread(standard[:, 0])[folds[0]]
        for number, here in enumerate(folds[1:], start=1):
            known = np.concatenate(folds[:number])
            weight, _ = self._regression(standard[known], side[known])
            scores[here] = _scale_to_unit_spread(standard @ weight)[here]
        return {"names": features.ids, "scores": scores, "threshold": np.array(0.0)}

    def _regression(self, standard: Scores, member: npt.NDArray[np.bool_]) -> tuple[Scores, Scores]:
        """Weights (F,) and offset of numbers (N, F) in standard deviations; both classes weigh the same."""
        count, width = standard.shape
        weigh = np.where(member, 0.5 / member.mean(), 0.5 / (~member).mean())
        sign = np.where(member, 1.0, -1.0)
        prior = np.concatenate([[_PRIOR], np.zeros(width - 1)])
        penalty = self.parameters.penalty

        def loss(given: Scores) -> tuple[float, Scores]:
            away, margin = given[:-1] - prior, sign * (standard @ given[:-1] + given[-1])
            slope = -weigh * sign * expit(-margin)
            value = weigh @ np.logaddexp(0, -margin) + penalty / 2 * away @ away
            return value / count, np.append(standard.T @ slope + penalty * away, slope.sum()) / count

        from scipy.optimize import minimize  # slow to load, and most processes do without

        learned = minimize(loss, np.append(prior, 0.0), jac=True, method="L-BFGS-B", options={"gtol": 1e-8}).x
        return learned[:-1], learned[-1]

    def _score(self, features: Features, state: State) -> Scores:
        if "names" in state:
            fault = "none of the audited samples that it was fitted on"
            return np.asarray(state["scores"][self._places(state["names"], features.ids, fault)])
        numbers, fitted = self._numbers(features), len(state["weight"])
        if numbers.shape[1] != fitted:
            raise NotApplicable(f"{self.name} was fitted on {fitted} numbers of a sample, here are {numbers.shape[1]}")
        return np.asarray(_standard(numbers, state["scale"]) @ state["weight"] + state["offset"])

    def _numbers(self, features: Features) -> Scores:
        """(N, F) float64: what the regression weighs."""
        columns = [column for measure in self.needs for column in _read_off(measure, features)]
        return np.stack(columns, axis=1).astype(np.float64)

    def _scale(self, numbers: Scores) -> Scores:
        """(2, F) mean and deviation of each number; those that tell nothing have an infinite deviation.

        Raises NotApplicable: no number differs between samples.
        """
        mean, deviation = numbers.mean(axis=0), numbers.std(axis=0)
        told = deviation > _TOLD
        if not told.any():
            raise NotApplicable(f"all that this attack reads is the same for every sample; leave {self.name} out")
        return np.stack([mean, np.where(told, deviation, np.inf)])


def _read_off(measure: Measure, features: Features) -> Iterator[Scores]:
    """The numbers read off one feature, (N,) each."""
    values = np.asarray(features[measure], dtype=np.float64)
    match measure:
        case PairwiseSimilarity() | CenterSimilarity():
            angles = fisher_z(values)
            yield fisher_z(values.mean(axis=1))
            yield np.log(np.maximum(angles.std(axis=1), _LEAST))
            yield from (angles.min(axis=1), angles.max(axis=1))
        case LpNorm(order=1):  # over the 2-norm: how many coordinates are large
            second = np.asarray(features[LpNorm(2)], dtype=np.float64)
            yield np.log(np.maximum(values, _LEAST) / np.maximum(second, _LEAST))
        case LpNorm():
            yield np.log(np.maximum(values, _LEAST))
        case NeighbourDensity():
            yield -fisher_z(values)
        case _:
            yield values


def _neighbours_of(text: str) -> NeighbourDensity:
    """The measure of neighbours as a config has them: their number, and after a slash that of the bank."""
    neighbours, _, bank = text.partition("/")
    if not (neighbours.isdigit() and bank.isdigit()):
        raise ConfigError(f"neighbours = {text!r}, allowed: neighbours/images of the bank, as 20/128")
    return NeighbourDensity(int(neighbours), int(bank))


def _standard(numbers: Scores, scale: Scores) -> Scores:
    return np.asarray((numbers - scale[0]) / scale[1], dtype=np.float64)


def _scale_to_unit_spread(scores: Scores) -> Scores:
    """Scores of all audited samples by one regression, in their own standard deviations."""
    return np.asarray((scores - scores.mean()) / max(scores.std(), _LEAST), dtype=np.float64)
