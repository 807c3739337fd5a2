"""The results of a run and of its sweeps as rows: a Parquet table, and the curves' part of report.json."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from mi_core.metrics.membership import TITLES, published_tpr
from mi_core.records import Estimate
from mi_core.report.contents import final_inferences, final_rows, pooled_rows
from mi_core.report.model.as_json import part_as_json
from mi_core.report.model.attacks import InferenceRow, PooledRow, Sweep, SweepPoint
from mi_core.report.model.defenses import DefenseRow
from mi_core.report.model.report import Report, report_from_json
from mi_core.report.pooling import grouped
from pipelines.files import storage
from pipelines.run.folder import RunFolder
from pipelines.run.points import Point

_WORDS = ("attack", "target", "output", "reference", "shadow", "settings", "epoch")
_INFERRED = ("accuracy", "majority")
_KNOWLEDGE = ("distribution", "architecture", "algorithm")


def sweeps(points: Sequence[Point], folder: RunFolder, own: Report) -> tuple[Sweep, ...]:
    """The ``sweeps`` part of report.json, from the reports of the points; a point without changes is the run itself.

    Args:
        points: of all sweeps.
        folder: of the run.
        own: its report.
    """

    def measured(point: Point) -> SweepPoint:
        is_own = point.folder == folder
        report = own if is_own else report_from_json(storage.read_json(f"{point.folder.path}/report.json"))
        return SweepPoint(
            label=point.label,
            rows=tuple(final_rows(pooled_rows(report))),
            attribute_inference=tuple(final_inferences(report.attribute_inference)),
            value=point.value,
            utility={name: made.utility for name, made in report.encoders.items() if made.utility is not None},
        )

    by_name = grouped(points, lambda point: point.sweep)
    return tuple(Sweep(name=name, points=tuple(map(measured, mine))) for name, mine in by_name.items())


def results_table(report: Report) -> pa.Table:
    """One row per attack, output and checkpoint, of the run (sweep empty) and of the points of its sweeps.

    Of every rate: the mean over seeds, the 95 % interval within runs (which images were audited), and apart from it
    the standard deviation over seeds (null for one seed).
    """
    rows = [_row(row, "", "") for row in pooled_rows(report)]
    for sweep in report.sweeps:
        rows += [_row(row, sweep.name, point.label) for point in sweep.points for row in point.rows]
    names = dict.fromkeys(name for row in rows for name in row)
    return pa.table({name: [row.get(name) for row in rows] for name in names})


def summary(report: Report) -> dict[str, Any]:
    """The numbers of a run in few lines, to keep beside its config: checkpoints, and what its sweeps changed."""
    final = final_rows(pooled_rows(report))
    rows, earlier = [_short(row) for row in final], [row for row in pooled_rows(report) if row not in final]
    parts = ("name", "command", "created", "versions", "timings", "validity")
    told = {part: value for part in parts if (value := part_as_json(getattr(report, part)))}
    for name, part in (("utility", "utility"), ("curves", "curve"), ("classifiers", "classifier")):
        of_encoders = {encoder: getattr(made, part) for encoder, made in report.encoders.items() if getattr(made, part)}
        if of_encoders or name == "utility":
            told[name] = part_as_json(of_encoders)
    if report.queries is not None:
        told["queries"] = report.queries.total
    told["rows"] = rows
    if earlier:
        kept = (*_WORDS, "accuracy", "auc")
        told["checkpoints"] = [{name: part for name, part in _short(row).items() if name in kept} for row in earlier]
    if report.attribute_inference:
        told["attribute_inference"] = _inferences(report.attribute_inference)
    if report.memorisation:
        told["memorisation"] = [  # the samples stand in a table of their own
            {name: part for name, part in part_as_json(entry).items() if name not in ("top", "file")}
            | {"mean": _numbers(entry.mean, ("value", "ci95", "n"))}
            for entry in report.memorisation
        ]
    if report.defenses:
        told["defenses"] = [_defense(entry) for entry in report.defenses]
    if report.tuning is not None:
        told["tuning"] = part_as_json(report.tuning)
    for sweep in report.sweeps:
        points = {point.label: [_short(row) for row in point.rows] for point in sweep.points}
        changed = {label: [row for row in mine if row not in rows] for label, mine in points.items()}
        told.setdefault("sweeps", {})[sweep.name] = changed
        inferred = {point.label: _inferences(point.attribute_inference) for point in sweep.points}
        if len({str(rows) for rows in inferred.values()}) > 1:
            told.setdefault("attribute_sweeps", {})[sweep.name] = inferred
    return told


def _short(row: PooledRow) -> dict[str, Any]:
    flat = _row(row, "", "")
    spent = [f"queries_{name}" for name in ("per_sample", "attack_training")]
    kept = (*_WORDS, "seeds", "n_member", "n_nonmember", *spent)
    short = {name: flat[name] for name in kept if flat.get(name) is not None}
    if row.knowledge is not None:
        short["knowledge"] = part_as_json(row.knowledge)
    for name, entry in _estimates(row):
        if name in TITLES:  # not the difference, which moves with the primary attack
            short[name] = _numbers(entry, ("value", "ci95", "sd"))
    published = flat.get("tpr_0.001_percent_as_published")
    return short | ({} if published is None else {"tpr_0.001_percent_as_published": round(published, 4)})


def _defense(entry: DefenseRow) -> dict[str, Any]:
    """The leak that a defense leaves and its cost; its attacks stand among the rows."""
    kept = {"label": entry.label, "defense": entry.defense, "target": entry.target, "numbers": dict(entry.numbers)}
    utility = {
        measure.measure: {side: _numbers(getattr(measure, side), ("value", "ci95")) for side in ("clean", "defended")}
        for measure in entry.utility
    }
    return kept | {"utility": utility}


def _inferences(rows: Sequence[InferenceRow]) -> list[dict[str, Any]]:
    return [
        part_as_json(row) | {name: _numbers(getattr(row, name), ("value", "ci95", "sd")) for name in _INFERRED}
        for row in final_inferences(rows)
    ]


def _numbers(estimate: Estimate, names: Sequence[str]) -> dict[str, Any]:
    """Some entries of an estimate, rounded."""
    return {
        name: [round(bound, 4) for bound in value] if isinstance(value, list) else round(value, 4)
        for name, value in estimate.as_json().items()
        if name in names
    }


def _row(row: PooledRow, sweep: str, point: str) -> dict[str, Any]:
    flat: dict[str, Any] = {"sweep": sweep, "point": point, **{name: getattr(row, name) for name in _WORDS}}
    flat |= {f"knows_{part}": getattr(row.knowledge, part, None) for part in _KNOWLEDGE}
    flat |= {"primary": row.primary, "seeds": len(row.seeds), "n_member": row.n_member, "n_nonmember": row.n_nonmember}
    for name, entry in _estimates(row):
        flat |= {name: entry.value, f"{name}_low": entry.low, f"{name}_high": entry.high, f"{name}_sd": entry.sd}
        if name == "difference":
            flat["difference_n"] = entry.n
        if name.startswith("tpr"):
            flat[f"{name}_supported"] = entry.supported
    if row.accuracy is not None:
        published = None if row.precision is None else published_tpr(row.precision.value)
        flat["tpr_0.001_percent_as_published"] = published
    queries = {} if row.queries is None else part_as_json(row.queries)
    flat |= {f"queries_{name}": count for name, count in queries.items()}
    return flat | {"seconds": row.seconds}


def _estimates(row: PooledRow) -> Iterator[tuple[str, Estimate]]:
    for name in (*TITLES, "difference"):
        if (entry := getattr(row, name)) is not None:
            yield name, entry
    for alpha, entry in row.tpr_at_fpr.items():
        yield f"tpr_{alpha}", entry
