"""The verdict on one attack from its two controls, on the same samples, in pairs.

The blind classifier never queries the encoder; the control runs the same attack on an encoder that saw neither group.
Rule, in this order: ``leak`` only if the lower bounds of both AUC differences, attack minus blind and target minus
control, are above 0; else ``confounded`` if the lower bound of the blind or of the control AUC is above 0.5; else
``no-evidence``. Where the attacked encoder does not recognise images, ``no-evidence`` becomes ``undecided``
(`doubted`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from mi_core.metrics.delong import auc, auc_difference
from mi_core.metrics.pooled import pool
from mi_core.records import BoolArray, Estimate, FloatArray


@dataclass(frozen=True)
class Clause:
    """A verdict, and the lower bounds of 95 % intervals that lead to it.

    Args:
        verdict: its key.
        above: the number that a lower bound has to exceed, by the name of the AUC or difference in `Validity`.
        every: whether every bound has to; else one is enough.
    """

    verdict: str
    above: Mapping[str, float]
    every: bool

    def holds(self, found: Validity) -> bool:
        """Whether the intervals lead to the verdict."""
        beyond = [getattr(found, name).low > bound for name, bound in self.above.items()]
        return all(beyond) if self.every else any(beyond)


RULE = (
    Clause("leak", {"delta_auc": 0.0, "delta_control_auc": 0.0}, every=True),
    Clause("confounded", {"blind_auc": 0.5, "control_auc": 0.5}, every=False),
)
"""The rule of this module: the first clause that holds gives the verdict."""
OTHERWISE = "no-evidence"


@dataclass(frozen=True)
class Validity:
    """The AUCs a verdict rests on, each with its 95 % interval."""

    attack_auc: Estimate
    blind_auc: Estimate
    control_auc: Estimate
    delta_auc: Estimate
    delta_control_auc: Estimate

    @property
    def verdict(self) -> str:
        """``leak``, ``confounded`` or ``no-evidence``, by the rule of this module."""
        return next((clause.verdict for clause in RULE if clause.holds(self)), OTHERWISE)

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Validity:
        """What `as_json` wrote; other entries are left out."""
        return cls(**{field.name: Estimate.from_json(entry[field.name]) for field in fields(cls)})

    def as_json(self) -> dict[str, Any]:
        """The entry of report.json."""
        estimates = {field.name: getattr(self, field.name).as_json() for field in fields(self)}
        return {**estimates, "verdict": self.verdict}


def judge(
    scores: FloatArray,
    blind: FloatArray,
    control: FloatArray,
    member: BoolArray,
    groups: npt.NDArray[np.int64] | None = None,
) -> Validity:
    """Compare one run of an attack with its controls.

    Args:
        scores: (N,) of the attack on the target.
        blind: (N,) of the blind classifier on the same samples.
        control: (N,) of the same attack on the control encoder.
        member: (N,) bool.
        groups: (N,) numbers of what the samples belong to; without them all are independent.

    Raises:
        ShapeError, ConfigError, NumericError: as `mi_core.metrics.delong.auc`.
    """
    return Validity(
        attack_auc=auc(scores, member, groups),
        blind_auc=auc(blind, member, groups),
        control_auc=auc(control, member, groups),
        delta_auc=auc_difference(scores, blind, member, groups),
        delta_control_auc=auc_difference(scores, control, member, groups),
    )


def judge_pooled(runs: Sequence[Validity], *, overlap: float = 0.0) -> Validity:
    """The same over several seeds: every AUC and difference is pooled, then the rule applies.

    Args:
        runs: at least one.
        overlap: as `mi_core.metrics.pooled.pool`.

    Raises:
        ShapeError: no run.
    """
    parts = {field.name: [getattr(run, field.name) for run in runs] for field in fields(Validity)}
    return Validity(**{name: pool(estimates, overlap=overlap) for name, estimates in parts.items()})


def doubted(verdict: str, *, recognises: bool) -> str:
    """The verdict on an encoder that may not work at all.

    An untrained encoder gives nothing away, whatever the encoder that was meant does. So of one that recognises images
    no better, ``no-evidence`` is no answer: it is ``undecided``. A ``leak`` stays one. Its two intervals hold whatever
    the encoder is good for. Without training on the members no attack is above both controls, beyond the few false
    alarms that the intervals allow; and an encoder that tells views badly may still have kept its training images.
    ``confounded`` stays too: it speaks of the images, not of the encoder.

    Args:
        verdict: ``leak``, ``confounded`` or ``no-evidence``.
        recognises: as `mi_core.querying.sanity.recognises`; true for one that is meant to be untrained.

    Example:
        >>> doubted("no-evidence", recognises=False), doubted("leak", recognises=False)
        ('undecided', 'leak')
    """
    return "undecided" if verdict == "no-evidence" and not recognises else verdict
