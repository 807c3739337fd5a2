"""The base of attacks on several shadow encoders, each trained on a half of the audited samples.

They read one number per sample and encoder that is about Gaussian: Fisher's z, atanh of the mean cosine of a sample's
views, or the logarithm of its embedding's norm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from mi_core.attacks.base import Attack, Scores, fisher_z
from mi_core.checks import NumericError, check_choice
from mi_core.features import Measure
from mi_core.features.embedding import LpNorm
from mi_core.features.pairwise_similarity import PairwiseSimilarity
from mi_core.records import Features

Places = npt.NDArray[np.intp]


def shadow_row(sample: str, shadow: str) -> str:
    """The id of a sample as one shadow encoder sees it."""
    return f"{sample}#{shadow}"


def join_shadows(by_shadow: Mapping[str, Features]) -> Features:
    """The rows of several shadows, under the ids of `shadow_row`, with those of the population where all have one.

    Features are given by the name of the shadow, and are of the same measures.
    """
    values = {
        need: np.concatenate([own.values[need] for own in by_shadow.values()])
        for need in next(iter(by_shadow.values())).values
    }
    ids = np.array([shadow_row(sample, shadow) for shadow, own in by_shadow.items() for sample in own.ids])
    population = {shadow: own.population for shadow, own in by_shadow.items() if own.population is not None}
    return Features(ids, values, population=join_shadows(population) if population else None)


@dataclass(frozen=True)
class Rows:
    """Whose the rows of several shadows are."""

    names: npt.NDArray[np.str_]  # (n,) samples, ascending
    sample: Places  # (N,) the sample of each row, as its place in ``names``
    shadow: Places  # (N,) the shadow of each row, as its place in ``shadows``
    shadows: npt.NDArray[np.str_]  # (K,) names of the shadows, ascending

    @classmethod
    def from_ids(cls, ids: npt.NDArray[np.str_]) -> Rows:
        """Read off ids that `shadow_row` made."""
        parts = [name.rpartition("#") for name in ids]
        names, sample = np.unique(np.array([part[0] for part in parts], dtype=np.str_), return_inverse=True)
        shadows, shadow = np.unique(np.array([part[2] for part in parts], dtype=np.str_), return_inverse=True)
        return cls(names, sample, shadow, shadows)

    def by_shadow(self) -> list[Places]:
        """The rows of each shadow."""
        return np.split(np.argsort(self.shadow, kind="stable"), np.cumsum(np.bincount(self.shadow))[:-1])


@dataclass(frozen=True)
class ShadowsParameters:
    """Settings of an attack that is fitted on several shadows.

    Args:
        statistic: ``cosine``, atanh of the mean pairwise cosine; ``norm``, log of the 2-norm.
        mode: ``online`` uses shadows that saw the sample and shadows that did not; ``offline`` the latter only.
    """

    statistic: str = "cosine"
    mode: str = "online"

    def __post_init__(self) -> None:
        check_choice("statistic", self.statistic, ("cosine", "norm"))
        check_choice("mode", self.mode, ("online", "offline"))


class ShadowsAttack(Attack):
    """An attack that compares a sample's statistic with what shadow encoders give for the same sample."""

    queries = "10 at 10 views"
    reference = frozenset({"shadows"})
    Parameters = ShadowsParameters

    @property
    def needs(self) -> tuple[Measure, ...]:
        """Cosines of all pairs of views, or a norm."""
        return (PairwiseSimilarity() if self.parameters.statistic == "cosine" else LpNorm(),)

    def statistic(self, features: Features) -> Scores:
        """(N,) Fisher's z of the mean cosine, or the log of the norm.

        Raises NumericError: an embedding of length 0 has no log norm.
        """
        values = np.asarray(features[self.needs[0]], dtype=np.float64)
        if self.parameters.statistic == "cosine":
            return fisher_z(values.mean(axis=1))
        if (values <= 0).any():
            raise NumericError(f"{self.name}: the embedding of {features.ids[int(np.argmin(values))]} has length 0")
        return np.asarray(np.log(values))

    def condensed(self, features: Features) -> Features:
        """Features with the mean cosine in place of all cosines: as much as the statistic needs."""
        if self.parameters.statistic == "norm":
            return features
        (cosines,), beside = self.needs, features.population
        values = {cosines.name: features[cosines].mean(axis=1, keepdims=True, dtype=np.float64)}
        return replace(features, values=values, population=None if beside is None else self.condensed(beside))
