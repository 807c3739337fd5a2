"""The results of a run and of its sweeps as rows: a Parquet table, and the curves' part of report.json."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from mi_core.metrics.membership import published_tpr
from mi_core.report.attributes import final_inferences
from mi_core.report.contents import final_rows, pooled_rows
from pipelines.files import storage
from pipelines.run.folder import RunFolder
from pipelines.run.points import Point

_ESTIMATES = ("accuracy", "precision", "recall", "auc")
_WORDS = ("attack", "target", "output", "reference", "shadow", "settings", "epoch")
_INFERRED = ("accuracy", "majority")
_KNOWLEDGE = ("distribution", "architecture", "algorithm")


def sweeps(points: Sequence[Point], folder: RunFolder, own: Mapping[str, Any]) -> dict[str, Any]:
    """The ``sweeps`` part of report.json, from the reports of the points; a point without changes is the run itself.

    Args:
        points: of all sweeps.
        folder: of the run.
        own: its report.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    for point in points:
        report = own if point.folder == folder else storage.read_json(f"{point.folder.path}/report.json")
        entry: dict[str, Any] = {"label": point.label, "rows": final_rows(pooled_rows(report))}
        if "attribute_inference" in report:
            entry["attribute_inference"] = final_inferences(report["attribute_inference"])
        if point.value is not None:
            entry["value"] = point.value
        utility = {name: made["utility"] for name, made in report["encoders"].items() if "utility" in made}
        found.setdefault(point.sweep, []).append(entry | ({"utility": utility} if utility else {}))
    return {"sweeps": [{"name": name, "points": entries} for name, entries in found.items()]} if found else {}


def results_table(report: Mapping[str, Any]) -> pa.Table:
    """One row per attack, output and checkpoint, of the run (sweep empty) and of the points of its sweeps.

    Of every rate: the mean over seeds, the 95 % interval within runs (which images were audited), and apart from it
    the standard deviation over seeds (null for one seed).
    """
    rows = [_row(row, "", "") for row in pooled_rows(report)]
    for sweep in report.get("sweeps", []):
        rows += [_row(row, sweep["name"], point["label"]) for point in sweep["points"] for row in point["rows"]]
    names = dict.fromkeys(name for row in rows for name in row)
    return pa.table({name: [row.get(name) for row in rows] for name in names})


def summary(report: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of a run in few lines, to keep beside its config: checkpoints, and what its sweeps changed."""
    final = final_rows(pooled_rows(report))
    rows, earlier = [_short(row) for row in final], [row for row in pooled_rows(report) if row not in final]
    parts = ("name", "command", "created", "versions", "timings", "validity")
    found = {part: report[part] for part in parts if part in report}
    found["utility"] = {name: made["utility"] for name, made in report["encoders"].items() if "utility" in made}
    curves = {name: made["curve"] for name, made in report["encoders"].items() if "curve" in made}
    found |= {"curves": curves} if curves else {}
    classifiers = {name: made["classifier"] for name, made in report["encoders"].items() if "classifier" in made}
    found |= {"classifiers": classifiers} if classifiers else {}
    if "queries" in report:
        found["queries"] = report["queries"]["total"]
    found["rows"] = rows
    if earlier:
        found["checkpoints"] = [_checkpoint(row) for row in earlier]
    if "attribute_inference" in report:
        found["attribute_inference"] = _inferences(report)
    if "memorisation" in report:
        found["memorisation"] = [_memorisation(entry) for entry in report["memorisation"]]
    if "defenses" in report:
        found["defenses"] = [_defense(entry) for entry in report["defenses"]]
    if "tuning" in report:
        found["tuning"] = report["tuning"]
    for sweep in report.get("sweeps", []):
        points = {point["label"]: [_short(row) for row in point["rows"]] for point in sweep["points"]}
        changed = {label: [row for row in mine if row not in rows] for label, mine in points.items()}
        found.setdefault("sweeps", {})[sweep["name"]] = changed
        told = {point["label"]: _inferences(point) for point in sweep["points"]}
        if len({str(rows) for rows in told.values()}) > 1:
            found.setdefault("attribute_sweeps", {})[sweep["name"]] = told
    return found


def _short(row: Mapping[str, Any]) -> dict[str, Any]:
    flat = _row(row, "", "")
    spent = [f"queries_{name}" for name in ("per_sample", "mean_per_sample", "attack_training")]
    kept = (*_WORDS, "seeds", "n_member", "n_nonmember", *spent)
    short = {name: flat[name] for name in kept if flat.get(name) is not None}
    if "knowledge" in row:
        short["knowledge"] = row["knowledge"]
    for name in _ESTIMATES:
        if name in row:
            entry = row[name]
            short[name] = {key: _rounded(entry[key]) for key in ("value", "ci95", "sd") if key in entry}
    published = flat.get("tpr_0.001_percent_as_published")
    return short | ({} if published is None else {"tpr_0.001_percent_as_published": round(published, 4)})


def _checkpoint(row: Mapping[str, Any]) -> dict[str, Any]:
    """An attack on an earlier checkpoint."""
    kept = ("attack", "target", "output", "reference", "shadow", "settings", "epoch", "accuracy", "auc")
    return {name: part for name, part in _short(row).items() if name in kept}


def _defense(entry: Mapping[str, Any]) -> dict[str, Any]:
    """What a defense leaves and costs; its attacks stand among the rows."""
    kept = {name: entry[name] for name in ("label", "defense", "target", "numbers")}
    utility = {
        measure["measure"]: {
            side: {key: _rounded(measure[side][key]) for key in ("value", "ci95")} for side in ("clean", "defended")
        }
        for measure in entry["utility"]
    }
    return kept | {"utility": utility}


def _memorisation(entry: Mapping[str, Any]) -> dict[str, Any]:
    """What shadows memorise in the mean and of how many samples; the samples stand in a table of their own."""
    mean = {key: _rounded(entry["mean"][key]) for key in ("value", "ci95")} | {"n": entry["mean"]["n"]}
    return {name: part for name, part in entry.items() if name not in ("top", "file")} | {"mean": mean}


def _inferences(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        row | {name: {key: _rounded(row[name][key]) for key in row[name] if key != "n"} for name in _INFERRED}
        for row in final_inferences(report.get("attribute_inference", []))
    ]


def _rounded(value: Any) -> Any:
    return [round(bound, 4) for bound in value] if isinstance(value, list) else round(value, 4)


def _row(row: Mapping[str, Any], sweep: str, point: str) -> dict[str, Any]:
    flat: dict[str, Any] = {"sweep": sweep, "point": point, **{name: row.get(name) for name in _WORDS}}
    knowledge = row.get("knowledge", {})
    flat |= {f"knows_{part}": knowledge.get(part) for part in _KNOWLEDGE}
    flat |= {"seeds": len(row["seeds"]), "n_member": row["n_member"], "n_nonmember": row["n_nonmember"]}
    for name, entry in _estimates(row):
        low, high = entry["ci95"]
        flat |= {name: entry["value"], f"{name}_low": low, f"{name}_high": high, f"{name}_sd": entry.get("sd")}
        if name.startswith("tpr"):
            flat[f"{name}_supported"] = entry.get("supported", True)
    precision = row.get("precision")
    if "accuracy" in row:
        flat["tpr_0.001_percent_as_published"] = published_tpr(precision["value"]) if precision else None
    flat |= {f"queries_{name}": count for name, count in row.get("queries", {}).items()}
    return flat | {"seconds": row.get("seconds")}


def _estimates(row: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name in _ESTIMATES:
        if name in row:
            yield name, row[name]
    for alpha, entry in row["tpr_at_fpr"].items():
        yield f"tpr_{alpha}", entry
