"""LpLA, the embedding Lp-norm likelihood attack (AsiaCCS 2025, section 4.2, equations 12 to 15).

The attacker sees one un-normalised embedding per image (one query) and knows some members and non-members of the
target. The norms of each group are taken to be Gaussian; an image is called a member if the members' density is the
higher one. The same fit on a shadow encoder instead of known samples is offered as well, and the plain threshold that
figure 9 compares with: halfway between the two means, members on the side of theirs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mi_core.attacks.base import Attack, NotApplicable, Scores, State
from mi_core.checks import NumericError, check_choice, check_range
from mi_core.features import Measure
from mi_core.features.embedding import LpNorm
from mi_core.records import Features

_LEAST_SPREAD = 1e-6  # relative; rounding of a unit vector's norm is of this size
_NORMALISED = "the embeddings seem to be normalised, and their length tells nothing; leave lpla out"
_UNIT = 1e-3  # how far from 1 the 2-norm of a vector that was normalised and then rounded to few digits may lie


@dataclass(frozen=True)
class LpLAParameters:
    """Settings of LpLA.

    Args:
        p: order of the norm, 2 in the paper, which tries 0 to 5.
        decision: ``likelihood``, the ratio of the two Gaussians, or ``threshold``, the midpoint of their means.
    """

    p: float = 2.0
    decision: str = "likelihood"

    def __post_init__(self) -> None:
        check_choice("decision", self.decision, ("likelihood", "threshold"))
        check_range("p", self.p, 0)


class LpLA(Attack):
    """LpLA: the log-likelihood ratio of two Gaussians on the norm of an embedding.

    The cheapest attack: one query per image, and two means and two deviations are all that is learned. On which side
    members lie, is learned too. It takes embeddings whose length still says something: where all have length 1, as
    many APIs answer, it does not apply, and the report says so.
    """

    name = "lpla"
    threat_model = "one un-normalised embedding; some known members and non-members, or a shadow encoder"
    source = "LpLA (AsiaCCS 2025), section 4.2"
    reference = frozenset({"known", "shadow"})
    Parameters = LpLAParameters

    @property
    def needs(self) -> tuple[Measure, ...]:
        """One norm of the embedding of the image itself."""
        return (LpNorm(self.parameters.p),)

    def _fit(self, features: Features, member: npt.NDArray[np.bool_]) -> State:
        norms = self.statistic(features)
        if self.parameters.p == 2 and (np.abs(norms - 1) <= _UNIT).all():
            raise NotApplicable(
                f"the {self.needs[0]} of all {len(norms)} known samples is 1 within {_UNIT:g}: {_NORMALISED}"
            )
        state: State = {"threshold": np.array(0.0)}
        for group, chosen in (("member", member), ("nonmember", ~member)):
            if chosen.sum() < 2:
                raise NumericError(f"lpla needs 2 known {group}s to estimate a variance, got {chosen.sum()}")
            mean, deviation = norms[chosen].mean(), norms[chosen].std(ddof=1)
            if deviation <= _LEAST_SPREAD * abs(mean):
                told = f"the {self.needs[0]} of {chosen.sum()} {group}s is {mean:.6g} for all of them"
                raise NotApplicable(f"{told}: {_NORMALISED}")
            state |= {f"{group}_mean": np.array(mean), f"{group}_deviation": np.array(deviation)}
        return state

    def _score(self, features: Features, state: State) -> Scores:
        norms = self.statistic(features)
        if self.parameters.decision == "threshold":
            middle = (state["member_mean"] + state["nonmember_mean"]) / 2
            side = 1.0 if state["member_mean"] >= state["nonmember_mean"] else -1.0
            return np.asarray(side * (norms - middle))
        return _log_density(norms, state, "member") - _log_density(norms, state, "nonmember")

    def statistic(self, features: Features) -> Scores:
        """(N,) norm of an image's embedding."""
        return np.asarray(features[self.needs[0]], dtype=np.float64)


def _log_density(norms: npt.NDArray[np.float64], state: State, group: str) -> Scores:
    """Logarithm of the Gaussian density of equation 14, without the constant that both groups share."""
    mean, deviation = state[f"{group}_mean"], state[f"{group}_deviation"]
    return np.asarray(-0.5 * ((norms - mean) / deviation) ** 2 - np.log(deviation))
