"""The text of report.json, the arrays of its figures, and how its rows are chosen and called."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from mi_core.checks import NumericError, ShapeError, check_finite, check_shape
from mi_core.records import BoolArray, FloatArray
from mi_core.report.figures.images import ViewGrid
from mi_core.report.model.as_json import part_as_json
from mi_core.report.model.attacks import AttackResult, InferenceRow, PooledRow, Sweep
from mi_core.report.model.report import Report
from mi_core.report.pooling import IDENTITY, pool_seeds
from mi_core.report.spread import Spread

_Row = TypeVar("_Row", AttackResult, PooledRow, InferenceRow)


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
        """The number that the attack reads, where it is a single one."""
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
    """The reason why this version cannot read a report, in words; empty: it can.

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


def to_json(part: Any) -> str:
    """The text of report.json, or of a part of it.

    Raises:
        TypeError: a value is None or no JSON value; a missing part has to be left out.
        NumericError: a number is NaN or infinite.

    Example:
        >>> to_json({"schema_version": 1})
        '{\\n  "schema_version": 1\\n}\\n'
    """
    content = part_as_json(part)
    for path, value in _leaves(content, "report"):
        if not isinstance(value, str | int | float):
            raise TypeError(f"{path} is {value!r} ({type(value).__name__}): leave a missing part out of the report")
        if isinstance(value, float) and not math.isfinite(value):
            raise NumericError(f"{path} = {value}: a report holds finite numbers only; leave the part out")
    return json.dumps(content, indent=2, allow_nan=False, ensure_ascii=False) + "\n"


def _leaves(node: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(node, Mapping):
        for key, child in node.items():
            yield from _leaves(child, f"{path}.{key}")
    elif isinstance(node, list | tuple):
        for index, child in enumerate(node):
            yield from _leaves(child, f"{path}[{index}]")
    else:
        yield path, node


def pooled_rows(report: Report) -> tuple[PooledRow, ...]:
    """The rows over seeds of a report: its ``pooled`` part, or the attacks pooled now where it has none."""
    return report.pooled or pool_seeds(report.attacks)


def final_rows(rows: Iterable[_Row]) -> list[_Row]:
    """The rows of every attack's last epoch; an attack on an encoder without epochs keeps its row."""
    return at_last_epoch(rows, (*IDENTITY[:-1], "seed"))


def at_last_epoch(rows: Iterable[_Row], identity: Sequence[str]) -> list[_Row]:
    """Of rows alike in ``identity`` the one of the last epoch."""
    last: dict[tuple[Any, ...], _Row] = {}
    for row in rows:
        key = tuple(getattr(row, name, None) for name in identity)
        if key not in last or epoch_of(row) >= epoch_of(last[key]):
            last[key] = row
    return list(last.values())


def epoch_of(row: AttackResult | PooledRow | InferenceRow) -> int:
    """The epoch of a row; 0 of an encoder without epochs."""
    return row.epoch or 0


def primary_row(rows: Iterable[PooledRow]) -> PooledRow | None:
    """The row of the primary attack at its last epoch, or None where no row is marked."""
    return next((row for row in final_rows(rows) if row.primary), None)


def method_in_words(method: str, output: str, settings: str | None) -> str:
    """How an attack, or an inference of an attribute, is called: with its output and its settings."""
    return ", ".join(filter(None, (method, output, settings)))


def series_of(row: PooledRow) -> tuple[str, str]:
    """Attack and reference of a row as `series_names` takes them; settings belong to the reference."""
    return row.attack, ", ".join(filter(None, (row.shadow or row.reference, row.settings)))


def known_in_words(row: PooledRow) -> str:
    """The reference of a row's attack in words; of a shadow encoder's owner, what she does not know of the target."""
    if row.knowledge is None:
        words = {"known": "known samples", "nonmembers": "known non-members"}
        words |= {"audited": "the other candidates and controls"}
        return row.shadow or words.get(row.reference, row.reference)
    kinds = asdict(row.knowledge)
    unknown = [kind for kind, known in kinds.items() if not known]
    if len(unknown) == len(kinds):
        return f"{row.shadow}: none"
    return f"{row.shadow}: all" + (f" but {', '.join(unknown)}" if unknown else "")


def side_by_side(
    rows: Iterable[PooledRow], output: str
) -> tuple[list[str], list[tuple[str, str, dict[str, PooledRow]]]]:
    """The attacks as columns against targets and what was known: attack names, then (target, known, row by attack).

    Rows of one attack that differ by settings only keep their settings in the column's name.
    """
    table: dict[tuple[str, str], dict[str, PooledRow]] = {}
    for row in final_rows(rows):
        if row.output == output:
            name = ", ".join(filter(None, (row.attack, row.settings)))
            table.setdefault((row.target, known_in_words(row)), {})[name] = row
    columns = list(dict.fromkeys(name for by_name in table.values() for name in by_name))
    return columns, [(target, known, by_name) for (target, known), by_name in table.items()]


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


def carries(row: PooledRow, alpha: str) -> bool:
    """True if a row's images carry the rate at a false-positive rate."""
    return alpha in row.tpr_at_fpr and row.tpr_at_fpr[alpha].supported


def is_numeric(sweep: Sweep) -> bool:
    """True if all points of a sweep have a number as their value."""
    return all(point.value is not None for point in sweep.points)


def places_of(sweep: Sweep) -> list[float]:
    """Where the points of a sweep stand on an axis: at their values, or one after the other."""
    values = [point.value for point in sweep.points if point.value is not None]
    return values if len(values) == len(sweep.points) else [float(number) for number in range(len(sweep.points))]


def false_positive_rates(rows: Iterable[PooledRow]) -> list[str]:
    """The false-positive rates of the rows, as report.json spells them, largest first."""
    return sorted({alpha for row in rows for alpha in row.tpr_at_fpr}, key=lambda alpha: -float(alpha))
