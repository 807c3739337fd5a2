"""The part ``bounds`` of a report: the upper limit of what attacks reach, from the limits of each seed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mi_core.metrics.pooled import pool
from mi_core.records import Estimate
from mi_core.report.contents import series_names
from mi_core.report.model.attacks import AttackResult
from mi_core.report.model.judgement import AttackLimits, Bound
from mi_core.report.pooling import IDENTITY


def bound_parts(
    measured: Iterable[tuple[AttackResult, Estimate]],
    *,
    overlap: float = 0.0,
    planned: Mapping[str, int] = {},
    bound: float | None = None,
    registered: bool = True,
) -> tuple[Bound, ...]:
    """The upper limit of what attacks reach: a part for each target, in the order of the first attack on it.

    Args:
        measured: attacks on one output of each target at its last checkpoint, one a seed, with their limits as
            `mi_core.validity.bound.auc_limits`.
        overlap: as `mi_core.metrics.pooled.pool`.
        planned: by target, attacks that were ever registered on that output.
        bound: that the AUC is to stay under; None: there is none.
        registered: whether images and bound were fixed before the first query.
    """
    of_targets: dict[str, dict[tuple[Any, ...], list[tuple[AttackResult, Estimate]]]] = {}
    for result, limits in measured:
        identity = tuple(getattr(result, name) for name in IDENTITY)
        of_targets.setdefault(result.target, {}).setdefault(identity, []).append((result, limits))
    parts = []
    for target, of_attacks in of_targets.items():
        first = next(iter(of_attacks.values()))[0][0]
        rows = tuple(_limits(of_seeds, overlap) for of_seeds in of_attacks.values())
        part = Bound(
            target=target,
            output=first.output,
            epoch=first.epoch,
            at_most=max(row.high for row in rows),
            attack=_highest(rows),
            attacks=len(rows),
            planned=planned.get(target),
            limits=rows,
        )
        if bound is not None:
            part = replace(part, bound=bound, outcome=part.outcome_of(bound), registered=registered)
        parts.append(part)
    return tuple(parts)


def _limits(of_seeds: Sequence[tuple[AttackResult, Estimate]], overlap: float) -> AttackLimits:
    """The limits of one attack over its seeds."""
    pooled = pool([limits for _, limits in of_seeds], overlap=overlap)
    told = {name: getattr(of_seeds[0][0], name) for name in ("attack", "reference", "shadow", "settings")}
    return AttackLimits(**told, auc=pooled.value, low=pooled.low, high=pooled.high, n=pooled.n)


def _highest(rows: Sequence[AttackLimits]) -> str:
    """The name of the attack with the largest upper limit."""
    pairs = [(row.attack, ", ".join(filter(None, (row.shadow or row.reference, row.settings)))) for row in rows]
    names = series_names(pairs)
    return names[pairs[max(range(len(rows)), key=lambda number: rows[number].high)]]
