"""The text of report.json, the arrays of its figures, and how its rows are chosen and called."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import resources
from typing import Any, TypeVar

from mi_core.checks import NumericError
from mi_core.report.model.as_json import part_as_json
from mi_core.report.model.attacks import AttackResult, InferenceRow, PooledRow, Sweep
from mi_core.report.model.report import Report
from mi_core.report.pooling import IDENTITY, INFERRED, grouped, pool_seeds

LONGEST = 120  # characters of a text from a report
_Row = TypeVar("_Row", AttackResult, PooledRow, InferenceRow)


def schema(name: str = "report") -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of report.json, or of a ``statement``."""
    text = resources.files("mi_core.report").joinpath(f"{name}.schema.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


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
    groups = grouped(rows, lambda row: tuple(getattr(row, name, None) for name in identity))
    return [max(reversed(group), key=epoch_of) for group in groups.values()]


def epoch_of(row: AttackResult | PooledRow | InferenceRow) -> int:
    """The epoch of a row; 0 of an encoder without epochs."""
    return row.epoch or 0


def primary_row(rows: Iterable[PooledRow]) -> PooledRow | None:
    """The row of the primary attack at its last epoch, or None where no row is marked."""
    return next((row for row in final_rows(rows) if row.primary), None)


def method_in_words(method: str, output: str, settings: str | None) -> str:
    """How an attack, or an inference of an attribute, is called: with its output and its settings."""
    return ", ".join(filter(None, (method, output, settings)))


def is_numeric(sweep: Sweep) -> bool:
    """True if all points of a sweep have a number as their value."""
    return all(point.value is not None for point in sweep.points)


def places_of(sweep: Sweep) -> list[float]:
    """Where the points of a sweep stand on an axis: at their values, or one after the other."""
    values = [point.value for point in sweep.points if point.value is not None]
    return values if len(values) == len(sweep.points) else [float(number) for number in range(len(sweep.points))]


def carried_rates(rows: Iterable[PooledRow]) -> list[str]:
    """The false-positive rates that the images of some row carry, as report.json spells them, largest first."""
    carried = {alpha for row in rows for alpha, entry in row.tpr_at_fpr.items() if entry.supported}
    return sorted(carried, key=lambda alpha: -float(alpha))


def final_inferences(rows: Iterable[InferenceRow]) -> list[InferenceRow]:
    """The rows of every encoder's last epoch."""
    return at_last_epoch(rows, INFERRED[:-1])


def plain(text: Any, longest: int = LONGEST) -> str:
    """A text of unknown origin in one line of printable characters, cut where it is long.

    Example:
        >>> plain("two\\nlines, and \\u202eturned"), plain("x" * 9, 5)
        ('two lines, and �turned', 'xxxx…')
    """
    line = " ".join(str(text[: 4 * longest] if isinstance(text, str) else text).split())
    shown = "".join(letter if letter.isprintable() else "\ufffd" for letter in line)
    return shown if len(shown) <= longest else f"{shown[: longest - 1]}…"
