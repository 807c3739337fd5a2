"""The verdict on one attack, by the way in which the two groups of images came about.

*By lot*: the groups were drawn at random from one pool before the encoder was trained on one of them. Then nothing but
chance and training tells them apart. A one-sided randomisation test of the attack is exact, whatever the images, the
attack and the encoder are, and decides alone: ``leak`` if its p-value is at most `LEVEL`, else ``no-evidence``.

*By choice*: somebody chose the groups. Then no test can prove use (Zhang, Das, Kamath and Tramer, "Membership inference
attacks cannot prove that a model was trained on your data", SaTML 2025), because a difference that nobody looked for
may stand behind any result. What can be had is a sensitivity analysis, as epidemiology has it (Cornfield et al.,
"Smoking and lung cancer", Journal of the National Cancer Institute, 1959; Rosenbaum, "Observational studies", 2002,
chapter 4): how many times as strong as anything the checks saw, or could have missed, would a hidden difference have to
be? In effect sizes d = sqrt(2) Phi^-1(AUC), by 95 % intervals:

    robustness = lower bound of d(attack) / upper bound of the largest d among the checks,

where the second is at least that of an AUC of .5 plus what this number of images resolves. The checks are classifiers
that never query the target, and the same attack on reference encoders that saw neither group.

The first of these that holds is the verdict:

- ``undecided``: images, attack or rule were chosen after the target was queried;
- ``undecided``: the attacked encoder does not work. Nothing follows for the one that was meant, not even by lot;
- by choice ``undecided``: nothing but a check, or a trained reference, is missing for a leak;
- ``leak``: by lot, p is at most `LEVEL`. By choice the robustness is at least the factor, both paired AUC differences
  (attack minus blind classifier, target minus reference) are above 0, and a reference is a trained encoder;
- by choice ``confounded``: a check's AUC is above .5, by Holm's method at .025 for all checks together. p-values follow
  from intervals, as if normal on the logit scale; of few groups, whose intervals are Student's, they are too small;
- ``undecided``: another planned attack finds something: p, corrected for all attacks on the target, is at most `LEVEL`.
  No leak follows, or two attacks would have the level of one;
- ``no-evidence``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import logit, ndtr, ndtri

from mi_core.checks import ConfigError, check_choice, check_range
from mi_core.metrics.delong import TAIL, auc, auc_difference
from mi_core.metrics.pooled import pool
from mi_core.records import BoolArray, Estimate, FloatArray

LOT, CHOICE = "lot", "choice"
"""How the two groups came about."""
FACTOR = 2.0
"""How many times as strong as anything the checks could have missed a hidden difference has to be: a convention."""
LEVEL = 0.01
"""The level of the randomisation test, by lot, and of all other attacks that were planned."""
CLOSE = 0.001
"""p-value, by Holm's method, below which a check surely tells the groups apart."""
CLASSIFIED = 10_000
"""Images of a side that classifiers see: enough for an interval of .01, and small for memory."""
CHECKS = ("blind_auc", "semantic_auc", "control_auc")
"""The checks by their fields in `Validity`."""
RESOLUTION = "resolution"
"""In place of a check: what this number of images resolves."""
GROUPS_DIFFER, NO_LEAK = "groups-differ", "no-leak"
"""Why p-values, shares and flags are withheld by choice: a check tells the groups apart, or there is no leak."""


class Judgement(NamedTuple):
    """A verdict and the reason for it."""

    verdict: str
    reason: str


@dataclass(frozen=True)
class Robustness:
    """How many times as strong as the largest check the attack is, in effect sizes."""

    # lower bound of the attack over upper bound of the check: what the rule looks at. Below 0 where the attack may be
    # below guessing
    at_least: float
    check: str  # whose upper bound that is: one of `CHECKS`, or `RESOLUTION`
    value: float | None = None  # of both estimates; None: no check is above guessing
    at_most: float | None = None  # upper bound of the attack over lower bound of the largest check; None likewise


def effect_size(auc: float) -> float:
    """The distance of two normal groups of equal spread, in standard deviations, that an AUC in [0, 1] stands for.

    Example:
        >>> round(effect_size(0.76), 2), effect_size(0.5)
        (1.0, 0.0)
    """
    return float(math.sqrt(2) * ndtri(auc))


@dataclass(frozen=True)
class Validity:
    """The grounds of a verdict: AUCs and paired differences with 95 % intervals, and how the groups came about."""

    attack_auc: Estimate  # of the attack on the target
    blind_auc: Estimate | None = None  # of the blind classifier; None: it was not asked. Likewise the next ones
    control_auc: Estimate | None = None  # of the attack on the reference encoders
    delta_auc: Estimate | None = None  # attack minus blind classifier
    delta_control_auc: Estimate | None = None  # target minus references
    semantic_auc: Estimate | None = None  # of a classifier on embeddings of a reference encoder
    by: str = CHOICE  # `LOT` or `CHOICE`
    p_value: float | None = None  # of the randomisation test; by lot
    trained: bool = False  # whether one of the references is a trained encoder
    factor: float = FACTOR  # the least robustness of a leak, at least 1
    works: bool = True  # whether the target does what encoders are for
    # whether images, attack and rule were fixed before the target was queried; None: nothing recorded it
    registered: bool | None = None
    other_attack: str | None = None  # the strongest other planned attack, if it finds something where this one does not
    other_p: float | None = None  # its p-value, corrected for all attacks on the target

    def __post_init__(self) -> None:
        check_choice("by", self.by, (LOT, CHOICE))
        check_range("factor", self.factor, 1)

    @property
    def checks(self) -> dict[str, Estimate]:
        """The AUCs of the checks that there are, by field."""
        found = {name: getattr(self, name) for name in CHECKS}
        return {name: one for name, one in found.items() if one is not None}

    @property
    def differing(self) -> dict[str, float]:
        """The checks that tell the groups apart, with their p-values by Holm's method, at most .025."""
        checks = self.checks
        corrected = holm([_chance(one) for one in checks.values()]) if checks else []
        return {name: p for name, p in zip(checks, corrected, strict=True) if p <= TAIL}

    @property
    def _largest(self) -> tuple[str, float]:
        """What could hide the largest difference by choice, and the upper bound of its AUC."""
        resolved = 0.5 + max((one.high - one.low) / 2 for one in self.checks.values())
        bounds = {name: one.high for name, one in self.checks.items()} | {RESOLUTION: min(1.0, resolved)}
        return max(bounds.items(), key=lambda item: item[1])

    @property
    def needed_auc(self) -> float | None:
        """What the lower bound of the attack's AUC has to reach by choice for the factor; None: there is no check."""
        return float(ndtr(self.factor * ndtri(self._largest[1]))) if self.checks else None

    @property
    def robustness(self) -> Robustness | None:
        """How far the attack is above the checks; None without any."""
        checks = self.checks
        if not checks:
            return None
        check, bound = self._largest
        most = effect_size(bound)
        at_least = effect_size(self.attack_auc.low) / most if math.isfinite(most) else 0.0
        largest = max(checks.values(), key=lambda one: one.value)
        over = [
            effect_size(min(above, _NEARLY_ONE)) / effect_size(min(below, _NEARLY_ONE)) if below > 0.5 else None
            for above, below in ((self.attack_auc.value, largest.value), (self.attack_auc.high, largest.low))
        ]
        return Robustness(at_least, check, *over)

    @property
    def judgement(self) -> Judgement:
        """The verdict and its reason, by the rule of this module."""
        if self.registered is False:
            return Judgement("undecided", "after-looking")
        if not self.works:
            return Judgement("undecided", "encoder-broken")
        if self.by == LOT:
            leak = self.p_value is not None and self.p_value <= LEVEL
            found = Judgement("leak", "by-lot") if leak else Judgement("no-evidence", "nothing-found")
        else:
            found = self._by_choice()
        beyond = found.verdict == "no-evidence" and self.other_p is not None and self.other_p <= LEVEL
        return Judgement("undecided", "another-attack") if beyond else found

    def _by_choice(self) -> Judgement:
        robustness = self.robustness
        if robustness is None:
            return Judgement("undecided", "no-checks")
        differences = [one for one in (self.delta_auc, self.delta_control_auc) if one is not None]
        beyond = all(one.low > 0 for one in differences)
        if beyond and robustness.at_least >= self.factor:
            if self.blind_auc is None or self.control_auc is None:
                return Judgement("undecided", "no-checks")
            return Judgement("leak", "robust") if self.trained else Judgement("undecided", "untrained-references")
        if self.differing:
            return Judgement("confounded", "checks-differ")
        if self.attack_auc.low <= 0.5:
            return Judgement("no-evidence", "nothing-found")
        return Judgement("no-evidence", "not-robust" if beyond else "not-beyond-checks")

    def beside(self, others: Mapping[str, Validity], family: int) -> Validity:
        """Name the strongest other of ``family`` attacks, if it finds something and, by choice, not on references."""
        counted = [name for name, one in others.items() if self.by == LOT or "control_auc" not in one.differing]
        name = min(counted, key=lambda one: _chance(others[one].attack_auc), default="")
        p = family * _chance(others[name].attack_auc) if name else 1.0
        return replace(self, other_attack=name, other_p=p) if p <= LEVEL else self

    @property
    def verdict(self) -> str:
        """``leak``, ``confounded``, ``no-evidence`` or ``undecided``."""
        return self.judgement.verdict

    @property
    def withheld_because(self) -> str | None:
        """Why there is no p-value, share or flag: `GROUPS_DIFFER`, `NO_LEAK`, or None, as there are some.

        By choice they measure how the groups differ as much as use; beside any verdict but a leak somebody would read
        them as one.
        """
        if self.by == LOT:
            return None
        if self.differing and self.verdict != "undecided":
            return GROUPS_DIFFER
        return None if self.verdict == "leak" else NO_LEAK


_NEARLY_ONE = 1 - 1e-12


def _chance(entry: Estimate) -> float:
    """The one-sided p-value of an AUC of at most .5, from its interval."""
    low, at = (min(max(part, 1 - _NEARLY_ONE), _NEARLY_ONE) for part in (entry.low, entry.value))
    if entry.value >= 1:  # all of so many pairs agree
        return float(TAIL ** (math.log(0.5) / math.log(low)))
    return float(ndtr(ndtri(TAIL) * logit(at) / max(logit(at) - logit(low), 1e-12)))


def judge(
    scores: FloatArray,
    blind: FloatArray | None,
    control: FloatArray | None,
    member: BoolArray,
    groups: npt.NDArray[np.int64] | None = None,
    **settled: Any,
) -> Validity:
    """Compare one run of an attack with its checks.

    Args:
        scores: (N,) of the attack on the target.
        blind: (N,) of the blind classifier on the same samples; None: there is none. Likewise the next ones.
        control: (N,) of the same attack on the reference encoders.
        member: (N,) bool.
        groups: (N,) numbers of what the samples belong to; without them all are independent.
        settled: the other fields of `Validity`, from ``semantic_auc`` on.

    Raises as `mi_core.metrics.delong.auc`.
    """

    def alone(own: FloatArray | None) -> Estimate | None:
        return None if own is None else auc(own, member, groups)

    def against(other: FloatArray | None) -> Estimate | None:
        return None if other is None else auc_difference(scores, other, member, groups)

    return Validity(
        attack_auc=auc(scores, member, groups),
        blind_auc=alone(blind),
        control_auc=alone(control),
        delta_auc=against(blind),
        delta_control_auc=against(control),
        **settled,
    )


def judge_pooled(runs: Sequence[Validity], *, overlap: float = 0.0) -> Validity:
    """The same over several seeds: every AUC and difference is pooled, then the rule applies.

    p-values are combined by Cauchy's method, which is exact where every seed draws its own lots. The target works where
    it does in every seed.

    Args:
        runs: at least one; all of one kind, with the same checks and factor.
        overlap: as `mi_core.metrics.pooled.pool`.

    Raises ShapeError: no run.
    """
    found: dict[str, Any] = {}
    for field in fields(Validity):
        parts = [getattr(run, field.name) for run in runs]
        if all(isinstance(part, Estimate) for part in parts):
            found[field.name] = pool(parts, overlap=overlap)
    p_values = [run.p_value for run in runs if run.p_value is not None]
    combined = cauchy_combination(p_values) if len(p_values) == len(runs) else None
    first = replace(runs[0], **found, p_value=combined if len(runs) > 1 else runs[0].p_value)
    return replace(first, works=all(run.works for run in runs), trained=all(run.trained for run in runs))


_Float64 = npt.NDArray[np.float64]


def holm(p_values: Sequence[float], *, family: int = 0) -> list[float]:
    """Adjusted p-values, in the same order, that keep the chance of any false claim.

    Holm, "A simple sequentially rejective multiple test procedure" (Scandinavian Journal of Statistics, 1979).

    Args:
        p_values: each in [0, 1], at least one, however dependent.
        family: how many there are in all, of which some are not known any more; they count as if they were larger.

    Returns them in [0, 1]; the order of size is kept. Raises ConfigError: no p-value, or one outside [0, 1].

    Example:
        >>> holm([0.01, 0.5, 0.02])
        [0.03, 0.5, 0.04]
        >>> holm([0.01], family=24)
        [0.24]
    """
    values = _checked_p_values(p_values)
    order = np.argsort(values, kind="stable")
    steps = np.maximum.accumulate(values[order] * (max(family, len(values)) - np.arange(len(values))))
    adjusted = np.empty(len(values))
    adjusted[order] = np.minimum(steps, 1.0)
    return [float(value) for value in adjusted]


def cauchy_combination(p_values: Sequence[float]) -> float:
    """One p-value from several dependent ones, such as those of several seeds on the same samples.

    The mean of cot(pi p) against the standard Cauchy distribution (Liu and Xie, "Cauchy combination test", Journal of
    the American Statistical Association, 2020): exact for independent and for equal p-values, and close for small
    p-values under other dependence. A p-value of 0 is read as the smallest normal float and one of 1 as the largest
    float below 1, which is what rounding made of them: one 0 outweighs everything, one 1 everything above 1e-16.

    Takes p-values in [0, 1], returns one in (0, 1). Raises as `holm`.

    Example:
        >>> round(cauchy_combination([0.01, 0.01, 0.01]), 6)
        0.01
    """
    values = np.clip(_checked_p_values(p_values), np.finfo(np.float64).tiny, 1 - 2.0**-53)
    cotangents = np.where(values < 0.5, 1, -1) / np.tan(np.pi * np.minimum(values, 1 - values))
    return float(np.arctan2(1.0, np.mean(cotangents)) / np.pi)


def _checked_p_values(p_values: Sequence[float]) -> _Float64:
    if not len(p_values):
        raise ConfigError("0 p-values, expected at least 1")
    for value in p_values:
        check_range("p-value", value, 0.0, 1.0)
    return np.asarray(p_values, dtype=np.float64)
