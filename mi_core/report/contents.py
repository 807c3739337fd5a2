"""What a report is made of: the dictionary of report.json, the arrays of its figures, and the rows over seeds."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np
import numpy.typing as npt

from mi_core.checks import NumericError, ShapeError, check_finite, check_shape
from mi_core.metrics.pooled import pool, together
from mi_core.records import BoolArray, Estimate, FloatArray
from mi_core.report.figures.images import ViewGrid
from mi_core.report.spread import Spread

Row = dict[str, Any]
_IDENTITY = ("attack", "target", "shadow", "output", "reference", "settings", "epoch")
_ESTIMATES = ("accuracy", "precision", "recall", "auc")


@dataclass(frozen=True)
class AttackScores:
    """The scores of one attack on one seed's last checkpoint: what a ROC curve and a histogram are drawn from.

    Args:
        attack, target, output: as in the attack's entry of report.json.
        reference: what the attack was fitted on: the name of the shadow encoder, or the entry's reference; and the
            entry's settings, where several entries differ by them only.
        seed: the seed of the run.
        score: (N,) float, higher = more likely a member.
        member: (N,) bool, the truth.
        threshold: the score from which on the attack says "member".
        statistic: (N,) the number that the attack reads, in its own unit, where it is one.

    Raises:
        ShapeError: scores and truth differ in length, or one class is empty.
        NumericError: a score is NaN or infinite.
    """

    attack: str
    target: str
    output: str
    reference: str
    seed: int
    score: FloatArray
    member: BoolArray
    threshold: float | None = None
    statistic: FloatArray | None = None

    @property
    def scores(self) -> Spread:
        """The scores."""
        return Spread(self.score, self.member)

    @property
    def statistics(self) -> Spread | None:
        """What the attack reads, where it is one number."""
        return None if self.statistic is None else Spread(self.statistic, self.member)

    def __post_init__(self) -> None:
        name = f"scores of {self.attack} on {self.target}, {self.output}, seed {self.seed}"
        (samples,) = check_shape(name, self.score, "N")
        check_shape(f"membership of the {name}", self.member, "N", N=samples)
        check_finite(name, self.score)
        if self.member.all() or not self.member.any():
            raise ShapeError(f"{name} need members and non-members, got {int(self.member.sum())} of {samples}")


@dataclass(frozen=True)
class LossCurve:
    """The pre-training loss of one encoder: ``epoch`` (E,) and ``loss`` (E,), one point per epoch.

    Raises:
        ShapeError: the two differ in length.
        NumericError: a loss is NaN or infinite.
    """

    encoder: str
    seed: int
    epoch: FloatArray
    loss: FloatArray

    def __post_init__(self) -> None:
        name = f"loss of {self.encoder}, seed {self.seed}"
        (points,) = check_shape(name, self.loss, "E")
        check_shape(f"epochs of the {name}", self.epoch, "E", E=points)
        check_finite(name, self.loss)


@dataclass(frozen=True)
class StatisticCurve:
    """The mean of what an attack reads by epoch (E,), over members and over non-members, of one seed.

    Raises:
        ShapeError: the arrays differ in length.
    """

    attack: str
    target: str
    output: str
    seed: int
    epoch: FloatArray
    members: FloatArray
    nonmembers: FloatArray

    def __post_init__(self) -> None:
        name = f"statistic of {self.attack} on {self.target}, {self.output}, seed {self.seed}"
        (points,) = check_shape(f"epochs of the {name}", self.epoch, "E")
        check_shape(f"members' {name}", self.members, "E", E=points)
        check_shape(f"non-members' {name}", self.nonmembers, "E", E=points)


@dataclass(frozen=True)
class EmbeddingMap:
    """Embeddings of N samples in the plane, with what the samples are.

    Args:
        target, output: whose embeddings.
        attribute: its name.
        points: (N, 2).
        task: (N,) class of the task, -1 where there is none; values: (N,) value of the attribute.
        names: of the attribute's values.

    Raises:
        ShapeError: the arrays differ in length.
    """

    target: str
    output: str
    attribute: str
    points: FloatArray
    task: npt.NDArray[np.int64]
    values: npt.NDArray[np.int64]
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        samples, _ = check_shape("points", self.points, "N 2")
        check_shape("classes of the points", self.task, "N", N=samples)
        check_shape("values of the points", self.values, "N", N=samples)


@dataclass(frozen=True)
class FigureData:
    """The arrays that figures need and report.json does not hold."""

    scores: tuple[AttackScores, ...] = ()
    losses: tuple[LossCurve, ...] = ()
    statistics: tuple[StatisticCurve, ...] = ()
    maps: tuple[EmbeddingMap, ...] = ()
    views: ViewGrid | None = None


def schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of report.json."""
    text = resources.files("mi_core.report").joinpath("report.schema.json").read_text(encoding="utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


def fault_of(report: Any) -> str:
    """What keeps this version from reading a report, in words; empty: nothing.

    Example:
        >>> fault_of({"schema_version": 1})
        'has no name'
    """
    known = schema()
    missing = [name for name in known["required"] if not isinstance(report, dict) or name not in report]
    if missing:
        return f"has no {missing[0]}"
    found, version = report["schema_version"], known["properties"]["schema_version"]["const"]
    return "" if found == version else f"has schema_version {found}, expected {version}"


def to_json(report: Mapping[str, Any]) -> str:
    """The text of report.json.

    Raises:
        TypeError: a part is None or no JSON value; a missing part has to be left out.
        NumericError: a number is NaN or infinite.

    Example:
        >>> to_json({"schema_version": 1})
        '{\\n  "schema_version": 1\\n}\\n'
    """
    for path, value in _leaves(report, "report"):
        if not isinstance(value, str | int | float):
            raise TypeError(f"{path} is {value!r} ({type(value).__name__}): leave a missing part out of the report")
        if isinstance(value, float) and not math.isfinite(value):
            raise NumericError(f"{path} = {value}: a report holds finite numbers only; leave the part out")
    return json.dumps(report, indent=2, allow_nan=False, ensure_ascii=False) + "\n"


def _leaves(node: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(node, Mapping):
        for key, child in node.items():
            yield from _leaves(child, f"{path}.{key}")
    elif isinstance(node, list | tuple):
        for index, child in enumerate(node):
            yield from _leaves(child, f"{path}[{index}]")
    else:
        yield path, node


def pool_seeds(attacks: Iterable[Mapping[str, Any]], *, overlap: float = 0.0) -> list[Row]:
    """The ``pooled`` part of report.json: one row per (attack, target, output, epoch), the mean over its seeds.

    Args:
        attacks: entries of the ``attacks`` part, several seeds each.
        overlap: as `mi_core.metrics.pooled.pool`.

    Returns:
        Rows in the order of their first entry. Queries and seconds are sums; n and fp are sums where no
        sample recurs, and else fewer (`mi_core.metrics.pooled.together`). An estimate is the mean
        with its within-run interval (`mi_core.metrics.pooled`) and, from two seeds on, ``sd`` over seeds. An estimate
        that one seed lacks is left out, and one that a single seed does not support is not supported.

    Example:
        >>> entry = {"attack": "lpla", "target": "target", "output": "backbone", "reference": "known",
        ...          "n_member": 9, "n_nonmember": 9, "tpr_at_fpr": {}}
        >>> one = {**entry, "seed": 0, "auc": {"value": 0.7, "ci95": [0.6, 0.8], "n": 18}}
        >>> two = {**entry, "seed": 1, "auc": {"value": 0.8, "ci95": [0.7, 0.9], "n": 18}}
        >>> row = pool_seeds([one, two])[0]
        >>> row["seeds"], round(row["auc"]["value"], 3), [round(b, 3) for b in row["auc"]["ci95"]], row["auc"]["n"]
        ([0, 1], 0.75, [0.679, 0.821], 36)
    """
    return [_pool_row(of_seeds, overlap) for of_seeds in by_seed(attacks, _IDENTITY)]


def by_seed(entries: Iterable[Mapping[str, Any]], identity: Sequence[str]) -> list[list[Mapping[str, Any]]]:
    """Entries alike in ``identity``, one per seed: the same twice is one result, not two seeds."""
    groups: dict[tuple[Any, ...], dict[int, Mapping[str, Any]]] = {}
    for entry in entries:
        groups.setdefault(tuple(entry.get(name) for name in identity), {}).setdefault(entry["seed"], entry)
    return [list(of_seeds.values()) for of_seeds in groups.values()]


def _pool_row(entries: Sequence[Mapping[str, Any]], overlap: float) -> Row:
    first = entries[0]
    row: Row = {name: first[name] for name in _IDENTITY if name in first}
    if "knowledge" in first:
        row["knowledge"] = first["knowledge"]
    if any(entry.get("primary") for entry in entries):
        row["primary"] = True
    row["seeds"] = [entry["seed"] for entry in entries]
    for side in ("n_member", "n_nonmember"):
        row[side] = together([entry[side] for entry in entries], overlap)
    for name in _ESTIMATES:
        if all(name in entry for entry in entries):
            row[name] = pool_estimate([entry[name] for entry in entries], overlap=overlap)
    rates = [entry.get("tpr_at_fpr", {}) for entry in entries]
    row["tpr_at_fpr"] = {
        alpha: pool_estimate([at[alpha] for at in rates], overlap=overlap)
        for alpha in rates[0]
        if all(alpha in at for at in rates)
    }
    if all("queries" in entry for entry in entries):
        names = ("attack_training", "evaluation")
        row["queries"] = {name: sum(entry["queries"][name] for entry in entries) for name in names}
        if "per_sample" in first["queries"]:
            row["queries"]["per_sample"] = first["queries"]["per_sample"]
        if "mean_per_sample" in first["queries"]:
            judged = sum(entry["n_member"] + entry["n_nonmember"] for entry in entries)
            row["queries"]["mean_per_sample"] = row["queries"]["evaluation"] / judged
    if all("seconds" in entry for entry in entries):
        row["seconds"] = sum(entry["seconds"] for entry in entries)
    return row


def pool_estimate(estimates: Sequence[Mapping[str, Any]], *, overlap: float = 0.0) -> Row:
    """Estimates of several seeds, as report.json writes them, as one: `pool`, with ``sd`` over seeds from two on."""
    runs = [Estimate.from_json(entry) for entry in estimates]
    pooled = pool(runs, overlap=overlap).as_json()
    if len(runs) > 1:
        pooled["sd"] = statistics.stdev(run.value for run in runs)
    return pooled


def pooled_rows(report: Mapping[str, Any]) -> list[Row]:
    """The rows over seeds of a report: its ``pooled`` part, or the attacks pooled now where it has none."""
    rows: list[Row] = report.get("pooled") or pool_seeds(report["attacks"])
    return rows


def final_rows(rows: Sequence[Row]) -> list[Row]:
    """The rows of every attack's last epoch; an attack on an encoder without epochs keeps its row."""
    return at_last_epoch(rows, (*_IDENTITY[:-1], "seed"))


def named(row: Mapping[str, Any]) -> str:
    """How an attack, or an inference of an attribute, is called: with its output and its settings."""
    return ", ".join(filter(None, (row.get("attack") or row["attribute"], row["output"], row.get("settings"))))


def at_last_epoch(rows: Iterable[Row], identity: Sequence[str]) -> list[Row]:
    """Of rows alike in ``identity`` the one of the last epoch."""
    last: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        key = tuple(row.get(name) for name in identity)
        if key not in last or row.get("epoch", 0) >= last[key].get("epoch", 0):
            last[key] = row
    return list(last.values())


def primary_row(rows: Sequence[Row]) -> Row | None:
    """The row of the primary attack at its last epoch, or None where no row is marked."""
    primary = [row for row in final_rows(rows) if row.get("primary")]
    return primary[0] if primary else None


def series_of(row: Row) -> tuple[str, str]:
    """Attack and reference of a row as `series_names` takes them; settings belong to the reference."""
    reference = row["shadow"] if "shadow" in row else row["reference"]
    return row["attack"], ", ".join(filter(None, (reference, row.get("settings"))))


def known_in_words(row: Row) -> str:
    """What the attack of a row was fitted on; of a shadow encoder's owner, what she does not know of the target.

    Example:
        >>> known_in_words({"attack": "lpla", "reference": "known"})
        'known samples'
        >>> kinds = {"distribution": True, "architecture": False, "algorithm": True}
        >>> known_in_words({"attack": "lpla", "reference": "shadow", "shadow": "s", "knowledge": kinds})
        's: all but architecture'
    """
    if "knowledge" not in row:
        words = {"known": "known samples", "nonmembers": "known non-members", "unlabelled": "unlabelled samples"}
        words |= {"audited": "the other candidates and controls"}
        return str(row.get("shadow", words.get(row["reference"], row["reference"])))
    unknown = [kind for kind, known in row["knowledge"].items() if not known]
    if len(unknown) == len(row["knowledge"]):
        return f"{row['shadow']}: none"
    return f"{row['shadow']}: all" + (f" but {', '.join(unknown)}" if unknown else "")


def side_by_side(rows: Sequence[Row], output: str) -> tuple[list[str], list[tuple[str, str, dict[str, Row]]]]:
    """The attacks as columns against targets and what was known: attack names, then (target, known, row by attack).

    Rows of one attack that differ by settings only keep their settings in the column's name.
    """
    here = [row for row in final_rows(rows) if row["output"] == output]
    table: dict[tuple[str, str], dict[str, Row]] = {}
    for row in here:
        name = ", ".join(filter(None, (row["attack"], row.get("settings"))))
        table.setdefault((row["target"], known_in_words(row)), {})[name] = row
    columns = list(dict.fromkeys(name for found in table.values() for name in found))
    return columns, [(target, known, found) for (target, known), found in table.items()]


def series_names(pairs: Iterable[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """How a figure calls each (attack, reference): by what tells it from others of the same attack.

    A reference may name settings after a comma; settings or names that all of an attack share are left out.

    Example:
        >>> series_names([("lpla", "known"), ("lpla", "shadow"), ("encodermi-t", "shadow")])
        {('lpla', 'known'): 'lpla, known', ('lpla', 'shadow'): 'lpla, shadow', ('encodermi-t', 'shadow'): 'encodermi-t'}
    """
    distinct = dict.fromkeys(pairs)
    parts: dict[str, list[list[str]]] = {}
    for attack, reference in distinct:
        parts.setdefault(attack, []).append(reference.split(", "))
    return {
        (attack, reference): ", ".join(
            [attack, *(part for part in reference.split(", ") if not all(part in other for other in parts[attack]))]
        )
        for attack, reference in distinct
    }


def probes(utility: Mapping[str, Any]) -> dict[str, Row]:
    """The estimates of an encoder's utility, as report.json writes it, by probe."""
    return {
        name: {"value": value, "ci95": utility["ci95"][name], "n": utility["n"]}
        for name, value in utility.items()
        if name not in ("n", "ci95")
    }


def false_positive_rates(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """The false-positive rates of the rows, as report.json spells them, largest first."""
    return sorted({alpha for row in rows for alpha in row.get("tpr_at_fpr", {})}, key=lambda a: -float(a))
