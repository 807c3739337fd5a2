"""Results of several seeds as one: attacks, inferences, classes and upper limits."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, TypeVar

from mi_core.metrics.membership import TITLES, ClassResult
from mi_core.metrics.pooled import pool, pooled_count
from mi_core.records import Estimate
from mi_core.report.model.attacks import AttackQueries, AttackResult, ClassRow, InferenceResult, InferenceRow, PooledRow
from mi_core.report.model.judgement import AttackLimits, Bound

IDENTITY = ("attack", "target", "shadow", "output", "reference", "settings", "epoch")
"""Fields that results of one attack have in common over seeds."""
INFERRED = ("attribute", "target", "output", "settings", "epoch")
"""The same of an inference."""
_T = TypeVar("_T")
_Key = TypeVar("_Key")
_Result = TypeVar("_Result", AttackResult, InferenceResult)


def grouped(items: Iterable[_T], key: Callable[[_T], _Key]) -> dict[_Key, list[_T]]:
    """Items by what they have in common, in the order of the first of each group."""
    groups: dict[_Key, list[_T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def pool_seeds(attacks: Iterable[AttackResult], *, overlap: float = 0.0) -> tuple[PooledRow, ...]:
    """The ``pooled`` part: one row per attack, target, output, settings and epoch, the mean over its seeds.

    Args:
        attacks: several seeds each; the same twice is one result, not two seeds.
        overlap: as `mi_core.metrics.pooled.pool`.

    Returns:
        Rows in the order of their first result. Queries and seconds are sums; n and false positives are sums where no
        sample recurs, and else fewer (`mi_core.metrics.pooled.pooled_count`). An estimate is the mean with its
        within-run interval (`mi_core.metrics.pooled`) and, from two seeds on, ``sd`` over seeds. An estimate that one
        seed lacks is left out, and one that a single seed does not support is not supported.

    Example:
        >>> alike = {"attack": "lpla", "target": "target", "output": "backbone", "reference": "known",
        ...          "n_member": 9, "n_nonmember": 9, "tpr_at_fpr": {}}
        >>> first = AttackResult(**alike, seed=0, auc=Estimate(0.7, 0.6, 0.8, 18))
        >>> second = AttackResult(**alike, seed=1, auc=Estimate(0.8, 0.7, 0.9, 18))
        >>> (row,) = pool_seeds([first, second])
        >>> row.seeds, round(row.auc.value, 3), round(row.auc.low, 3), round(row.auc.high, 3), row.auc.n
        ((0, 1), 0.75, 0.679, 0.821, 36)
    """
    return tuple(_pooled(of_seeds, overlap) for of_seeds in _by_seed(attacks, IDENTITY))


def _pooled(results: Sequence[AttackResult], overlap: float) -> PooledRow:
    first, rates = results[0], [result.tpr_at_fpr for result in results]
    told: dict[str, Any] = {name: getattr(first, name) for name in (*IDENTITY, "knowledge")}
    for side in ("n_member", "n_nonmember"):
        told[side] = pooled_count([getattr(result, side) for result in results], overlap)
    for name in (*TITLES, "difference"):
        told[name] = pool_estimate([getattr(result, name) for result in results], overlap=overlap)
    seconds = of_all([result.seconds for result in results])
    return PooledRow(
        **told,
        primary=any(result.primary for result in results),
        seeds=tuple(result.seed for result in results),
        tpr_at_fpr={
            alpha: pooled
            for alpha in rates[0]
            if (pooled := pool_estimate([at.get(alpha) for at in rates], overlap=overlap)) is not None
        },
        queries=_pooled_queries(results),
        seconds=sum(seconds) if seconds else None,
    )


def _pooled_queries(results: Sequence[AttackResult]) -> AttackQueries | None:
    queries = of_all([result.queries for result in results])
    if not queries:
        return None
    return AttackQueries(
        attack_training=sum(own.attack_training for own in queries),
        evaluation=sum(own.evaluation for own in queries),
        per_sample=queries[0].per_sample,
    )


def pool_estimate(estimates: Sequence[Estimate | None], *, overlap: float = 0.0) -> Estimate | None:
    """Estimates of several seeds as one: `pool`, with ``sd`` over seeds from two on; None where a seed has none."""
    pooled, there = pooled_or_none(estimates, overlap), of_all(estimates)
    if pooled is None or len(there) == 1:
        return pooled
    return replace(pooled, sd=statistics.stdev(estimate.value for estimate in there))


def pooled_or_none(estimates: Sequence[Estimate | None], overlap: float) -> Estimate | None:
    """Estimates of several seeds as one: `pool`; None where a seed has none."""
    there = of_all(estimates)
    return pool(there, overlap=overlap) if there else None


def pool_inferences(results: Iterable[InferenceResult]) -> tuple[InferenceRow, ...]:
    """One row per attribute, target, output, settings and epoch: means over seeds, in the order of their first."""
    rows = []
    for of_seeds in _by_seed(results, INFERRED):
        first = of_seeds[0]
        told: dict[str, Any] = {name: getattr(first, name) for name in (*INFERRED, "values")}
        told |= {"seeds": tuple(one.seed for one in of_seeds), "n_auxiliary": sum(one.n_auxiliary for one in of_seeds)}
        for name in ("accuracy", "auxiliary_accuracy", "majority"):
            overlap = first.auxiliary_overlap if name == "auxiliary_accuracy" else first.overlap
            told[name] = pool_estimate([getattr(one, name) for one in of_seeds], overlap=overlap)
        rows.append(InferenceRow(**told))
    return tuple(rows)


def _by_seed(results: Iterable[_Result], identity: Sequence[str]) -> list[list[_Result]]:
    """Results alike in ``identity``, the first of every seed."""
    groups = grouped(results, attrgetter(*identity)).values()
    return [[of_seed[0] for of_seed in grouped(group, attrgetter("seed")).values()] for group in groups]


def of_all(parts: Sequence[_T | None]) -> list[_T]:
    """The parts, where every seed has one; else none."""
    there = [part for part in parts if part is not None]
    return there if len(there) == len(parts) else []


def class_rows(
    of_seeds: Mapping[int, Sequence[ClassResult]], names: Sequence[str], *, overlap: float = 0.0, asked: bool
) -> tuple[ClassRow, ...]:
    """The primary attack by class, the class with the highest AUC first; means over seeds.

    Args:
        of_seeds: results by number of the class.
        names: of the classes; further ones are called by their numbers.
        overlap: as `mi_core.metrics.pooled.pool`.
        asked: whether candidates are judged, of which nobody knows who is a member.
    """
    if len(of_seeds) < 2:
        return ()
    rows = []
    for number, results in of_seeds.items():
        told: dict[str, Any] = {"name": names[number] if number < len(names) else str(number)}
        for side in ("n_member", "n_nonmember"):
            told[side] = pooled_count([getattr(result, side) for result in results], overlap)
        for rate in ("auc", "false_positive_rate", *(() if asked else ("recall",))):
            told[rate] = pool([getattr(result, rate) for result in results], overlap=overlap)
        rows.append(ClassRow(**told))
    return tuple(sorted(rows, key=lambda row: -row.auc.value))


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
    parts = []
    for target, on_target in grouped(measured, lambda pair: pair[0].target).items():
        first, rows = on_target[0][0], []
        for of_seeds in grouped(on_target, lambda pair: attrgetter(*IDENTITY)(pair[0])).values():
            pooled = pool([limits for _, limits in of_seeds], overlap=overlap)
            told = {name: getattr(of_seeds[0][0], name) for name in ("attack", "reference", "shadow", "settings")}
            rows.append(AttackLimits(**told, auc=pooled.value, low=pooled.low, high=pooled.high, n=pooled.n))
        highest = max(rows, key=lambda row: row.high)
        part = Bound(
            target=target,
            output=first.output,
            epoch=first.epoch,
            at_most=highest.high,
            attack=series_names(map(series_of, rows))[series_of(highest)],
            attacks=len(rows),
            planned=planned.get(target),
            limits=tuple(rows),
        )
        if bound is not None:
            part = replace(part, bound=bound, outcome=part.outcome_of(bound), registered=registered)
        parts.append(part)
    return tuple(parts)


def series_of(row: PooledRow | AttackLimits) -> tuple[str, str]:
    """Attack and reference of a row as `series_names` takes them; settings belong to the reference."""
    return row.attack, ", ".join(filter(None, (row.shadow or row.reference, row.settings)))


def series_names(pairs: Iterable[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """How a figure calls each (attack, reference): by what tells it from others of the same attack.

    A reference may name settings after a comma; settings or names that all of an attack share are left out.

    Example:
        >>> series_names([("lpla", "known"), ("lpla", "shadow"), ("encodermi-t", "shadow")])
        {('lpla', 'known'): 'lpla, known', ('lpla', 'shadow'): 'lpla, shadow', ('encodermi-t', 'shadow'): 'encodermi-t'}
    """
    parts = {pair: pair[1].split(", ") for pair in pairs}
    names = {}
    for (attack, reference), own in parts.items():
        alike = [other for (of, _), other in parts.items() if of == attack]
        telling = [part for part in own if not all(part in other for other in alike)]
        names[attack, reference] = ", ".join([attack, *telling])
    return names
