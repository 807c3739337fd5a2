"""EncoderMI that asks for views one by one and stops once an image is decided.

As EncoderMI-T (Liu et al., CCS 2021, section 4.3) it compares the mean similarity of an image's views with a
threshold, but most images are far from it after a few views. What V views would decide is predicted after each one: a
logistic regression on the reference, whose images were asked for all views, gives the probability that the decision of
V views falls out the other way (curtailed sampling; Wald, "Sequential analysis", 1947). Below ``tolerance`` no further
view is asked.

The statistic is the mean of -log(1 - cosine), see `mi_core.features.sequential`. The score is the log-odds of
membership given the statistic and the number of views it comes from (one logistic regression per number of views), so
that samples that stopped early and late rank on one scale. All of it is learned from the reference alone, before the
target is asked anything.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mi_core.attacks.base import Attack, Scores, State
from mi_core.attacks.threshold import conformal_threshold, least_nonmembers
from mi_core.checks import check_fields
from mi_core.features.pairwise_similarity import PairwiseSimilarity
from mi_core.features.sequential import FIRST, SequentialSimilarity, StoppingRule, by_views, stopped
from mi_core.records import Features

_OUTSIDE = (-1.0, 10.0)  # of `log_similarity`
_INVERSE_PENALTY = 100.0  # keeps the slope finite where a statistic separates the reference


@dataclass(frozen=True)
class SequentialParameters:
    """Settings of the sequential attack.

    Args:
        tolerance: probability, in [0, 0.5], that all views would decide otherwise, at which an image may be left; with
            0 every image is asked for all of them.
        queries: the mean number of queries per image of the reference, at least 2: the tolerance is then the least
            that keeps to it, and the given one has no effect.
        fpr: the decision is made at the score that a new non-member reaches with this probability, in (0, 1]; None:
            at even odds, where the fewest errors are expected.
    """

    tolerance: float = 0.04
    queries: float | None = None
    fpr: float | None = None

    def __post_init__(self) -> None:
        check_fields(self, "tolerance", low=0, high=0.5)
        check_fields(self, "queries", low=FIRST)
        check_fields(self, "fpr", low=0, high=1, open_low=True)


class EncoderMISequential(Attack):
    """Mean log-similarity of as many views as it takes to decide.

    For encoders of which every query costs time or money: most images are decided after a few views, and only the
    doubtful ones are asked for all. All V views are the most that an image may cost; the report says what was asked.
    """

    name = "encodermi-sequential"
    queries = "at most 10 at 10 views"
    threat_model = (
        "embeddings of augmented views, asked one by one; a shadow encoder trained on own data, or known members of "
        "the target"
    )
    source = "EncoderMI (CCS 2021), section 4.3; curtailed sampling (Wald, 1947)"
    reference = frozenset({"shadow", "known"})
    sequential = True
    Parameters = SequentialParameters
    needs = (PairwiseSimilarity(),)

    @property
    def needed_nonmembers(self) -> int:
        """Enough to tell the share ``fpr``, where there is one."""
        return 1 if self.parameters.fpr is None else max(1, least_nonmembers(self.parameters.fpr))

    def stopping_rule(self) -> StoppingRule:
        """When to stop asking for the views of an image.

        Raises ConfigError: the attack is not fitted.
        """
        return _rule(self.state())

    def _check_needs(self, features: Features) -> None:
        if SequentialSimilarity() not in features:
            super()._check_needs(features)

    def _fit(self, features: Features, member: npt.NDArray[np.bool_]) -> State:
        statistics = by_views(features[PairwiseSimilarity()])
        slopes, intercepts = _logistic(statistics, member)
        final = slopes[-1] * statistics[:, -1] + intercepts[-1]
        fpr = self.parameters.fpr
        threshold = 0.0 if fpr is None else conformal_threshold(final[~member], fpr, self.name)
        decided = _logistic(statistics[:, :-1], final >= threshold)
        state = {"slope": slopes, "intercept": intercepts, "threshold": np.array(threshold)}
        tolerance = self.parameters.tolerance
        if self.parameters.queries is not None:
            tolerance = _tolerance(statistics, decided, self.parameters.queries)
        return state | _bounds(*decided, tolerance) | {"tolerance": np.array(tolerance)}

    def _score(self, features: Features, state: State) -> Scores:
        if SequentialSimilarity() in features:
            decided = features[SequentialSimilarity()]
        else:
            decided = stopped(by_views(features[PairwiseSimilarity()]), _rule(state))
        stage = np.rint(decided[:, 0]).astype(np.intp) - FIRST
        return np.asarray(state["slope"][stage] * decided[:, 1] + state["intercept"][stage], dtype=np.float64)


def _rule(state: State) -> StoppingRule:
    return StoppingRule(tuple(state["low"].tolist()), tuple(state["high"].tolist()))


def _logistic(
    statistics: npt.NDArray[np.float64], positive: npt.NDArray[np.bool_]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Slopes and intercepts, (K,) each, of the log-odds of being positive given one of K statistics (N, K).

    Where all are of one kind, the odds are those of the next one being of it (Laplace's rule of succession).
    """
    slopes, intercepts = np.zeros(statistics.shape[1]), np.zeros(statistics.shape[1])
    if positive.all() or not positive.any():
        odds = np.log(len(positive) + 1)
        return slopes, np.full(statistics.shape[1], odds if positive.all() else -odds)
    from sklearn.linear_model import LogisticRegression  # here, since it takes as long to import as all the rest

    for column, values in enumerate(statistics.T):
        mean, spread = values.mean(), values.std() or 1.0
        model = LogisticRegression(C=_INVERSE_PENALTY).fit((values - mean)[:, None] / spread, positive)
        slopes[column] = model.coef_[0, 0] / spread
        intercepts[column] = model.intercept_[0] - slopes[column] * mean
    return slopes, intercepts


def _bounds(
    slopes: npt.NDArray[np.float64], intercepts: npt.NDArray[np.float64], tolerance: float
) -> dict[str, npt.NDArray[np.float64]]:
    """``low`` and ``high``: where the probability of another decision is ``tolerance``, from either side.

    They are finite: what lies outside of all that the statistic can be stops nothing.
    """
    reach = np.log1p(-tolerance) - np.log(tolerance) if tolerance > 0 else np.inf
    with np.errstate(divide="ignore", invalid="ignore"):
        ends = np.stack([(-reach - intercepts) / slopes, (reach - intercepts) / slopes])
    sure = np.where(np.abs(intercepts) >= reach, 0.0, np.inf)  # of what the statistic does not change
    ends = np.where(slopes == 0, np.stack([-sure, sure]), ends)
    ends = ends.clip(*_OUTSIDE)
    return {"low": ends.min(axis=0), "high": ends.max(axis=0)}


def _tolerance(
    statistics: npt.NDArray[np.float64],
    decided: tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]],
    queries: float,
) -> float:
    """The least tolerance with which the images are asked for at most ``queries`` views, on average."""
    if queries >= statistics.shape[1] + 1:
        return 0.0
    low, high = 0.0, 0.5
    for _ in range(50):
        middle = (low + high) / 2
        mean = stopped(statistics, _rule(_bounds(*decided, middle)))[:, 0].mean()
        low, high = (low, middle) if mean <= queries else (middle, high)
    return high
