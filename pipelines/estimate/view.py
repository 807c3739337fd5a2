"""An estimate as people and programs read it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.table import Table
from rich.text import Text

from mi_core.costs import Quantity
from pipelines.console import count_of
from pipelines.estimate.calibration import PER_CHECKPOINT, PER_IMAGE, QueryCost
from pipelines.estimate.run import Cluster, Estimate
from pipelines.estimate.stage_costs import StageCost

_HOURS = ("cpu_hours", "gpu_hours", "wall_hours")
STEPS = {"decode": "decode", "augment": "views", "forward": "forward", "features": "features", "commit": "commit"}


def as_json(found: Estimate, wanted: Cluster | None = None) -> dict[str, Any]:
    """The estimate as plain values: every uncertain number with its 95 % interval; hours, seconds, bytes."""
    content: dict[str, Any] = {
        "stages": {name: _stage(found, name) for name in found.stages},
        "total": {name: found.spent(name, list(found.stages)).as_json() for name in _spendable(found)},
        "encoders": {
            name: {"images": asked.images.as_json(), "queries": asked.queries.as_json()}
            for name, asked in found.encoders.items()
        },
        "seconds_per_image": {name: _timed(cost) for name, cost in found.query_costs.items()},
        "training_seconds_per_image": {
            name: {
                **cost.per_image.as_json(),
                "device": cost.device,
                "steps": cost.steps,
                "batch": cost.batch,
            }
            for name, cost in found.training_costs.items()
        },
        "longest_training_hours": found.longest.as_json(),
        "prices": found.prices.known,
        "notes": list(found.notes),
    }
    return content | ({} if wanted is None else {"cluster": asdict(wanted)})


def _spendable(found: Estimate) -> tuple[str, ...]:
    return ("cpu_hours", "gpu_hours", *(("money",) if found.prices.known else ()))


def _stage(found: Estimate, name: str) -> dict[str, Any]:
    stage = found.stages[name]
    fields = {field: getattr(stage, field).as_json() for field in ("images", *_HOURS, "queries", "gigabytes")}
    return fields | ({"money": found.money(name).as_json()} if found.prices.known else {})


def _timed(cost: QueryCost) -> dict[str, Any]:
    return {
        **{name: cost.step(name).as_json() for name in (*PER_IMAGE, *PER_CHECKPOINT)},
        "bytes_per_row": cost.row_bytes.as_json(),
        "bytes_per_file": cost.file_bytes,
        "device": cost.device,
        "images": cost.images,
        "chunks": len(cost.chunks),
        "chunk": cost.batch,
        "startup_seconds": cost.startup,
    }


def render(found: Estimate, wanted: Cluster | None = None) -> RenderableType:
    """Tables of stages, of encoders and of what was timed, and what there is to know about them."""
    parts: list[RenderableType] = [_stages(found), _encoders(found), _steps(found.query_costs)]
    return Group(*parts, *(Text(line) for line in _lines(found, wanted)))


def _stages(found: Estimate) -> Wide:
    money = bool(found.prices.known)
    names = [name for name, stage in found.stages.items() if stage.images.value]
    columns = ("images", "queries", "CPU time", "GPU time", "here", "stored", *(("money",) if money else ()))
    rows = [[*_cells(found.stages[name]), *([decimal(found.money(name))] if money else [])] for name in names]
    cpu, gpu = (found.spent(name, names) for name in ("cpu_hours", "gpu_hours"))
    last = ["", "", duration(cpu), duration(gpu) if gpu.value else "", "", ""]
    rows.append([*last, *([decimal(found.spent("money", names))] if money else [])])
    shown = [place for place in range(len(columns)) if any(row[place] for row in rows)]
    told = [(name, [row[place] for place in shown]) for name, row in zip([*names, "total"], rows, strict=True)]
    return Wide("stage", [columns[place] for place in shown], told, total=True)


def _cells(stage: StageCost) -> Iterator[str]:
    yield count(stage.images)
    yield count(stage.queries) if stage.queries.value else ""
    for name in _HOURS:
        hours = getattr(stage, name)
        yield duration(hours) if hours.value else ""
    yield size(stage.gigabytes) if stage.gigabytes.value else ""


def _encoders(found: Estimate) -> Wide:
    rows = [(name, [count(asked.images), count(asked.queries)]) for name, asked in found.encoders.items()]
    return Wide("encoder", ["images", "queries"], rows)


def _steps(costs: Mapping[str, QueryCost]) -> Wide:
    rows = [
        (
            name,
            [
                *(decimal(cost.step(step) * 1000) for step in STEPS),
                decimal(cost.row_bytes),
                f"{len(cost.chunks)} x {cost.batch}",
            ],
        )
        for name, cost in costs.items()
    ]
    return Wide("ms per image", [*STEPS.values(), "bytes", "timed"], rows)


def _lines(found: Estimate, wanted: Cluster | None) -> Iterator[str]:
    for name, cost in found.training_costs.items():
        rate = decimal(cost.per_image * 1000)
        yield f"training {name}: {rate} ms per image and epoch, {cost.steps} steps of {cost.batch} images timed"
    if found.training_costs:
        yield f"the longest training alone takes {duration(found.longest)} with the run's workers"
    if wanted is not None:
        yield (
            f"to query within {wanted.hours:g} h: {count_of(wanted.encoder_actors, 'encoder actor', 'encoder actors')} "
            f"and {count_of(wanted.readers, 'reader', 'readers')} on {count_of(wanted.nodes, 'node', 'nodes')}"
        )
    if not found.prices.known:
        yield "no money: the config has no prices"
    yield from (f"note: {note}" for note in found.notes)


class Wide:
    """A table that is never cut: what does not fit stands below, each part beginning with the names of the rows.

    Args:
        first: head of the names.
        columns: heads of the others.
        rows: name and cells.
        total: whether the last row is set apart.
    """

    def __init__(
        self, first: str, columns: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]], *, total: bool = False
    ) -> None:
        self.first, self.columns, self.rows, self.total = first, columns, rows, total

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        """The parts, of as many columns as fit."""
        edge = _EXTRA + max(cell_len(name) for name in (self.first, *(name for name, _ in self.rows)))
        parts: list[list[int]] = [[]]
        used = edge
        for place, column in enumerate(self.columns):
            width = _EXTRA + max(cell_len(text) for text in (column, *(cells[place] for _, cells in self.rows)))
            if parts[-1] and used + width > options.max_width:
                parts.append([])
                used = edge
            parts[-1].append(place)
            used += width
        yield from map(self._part, parts)

    def _part(self, places: Sequence[int]) -> Table:
        table = Table(box=box.SIMPLE_HEAD)
        table.add_column(self.first, overflow="fold")
        for place in places:
            table.add_column(self.columns[place], justify="right", overflow="fold")
        for number, (name, cells) in enumerate(self.rows):
            last = self.total and number == len(self.rows) - 2
            table.add_row(name, *(cells[place] for place in places), end_section=last)
        return table


_EXTRA = 3  # padding of a column, and the edge beside it


def spread(quantity: Quantity, written: Any) -> str:
    """A number with half its interval in percent, where it has one.

    Example:
        >>> spread(Quantity(3.0), str), spread(Quantity(100.0, 25.0), lambda value: f"{value:.0f}")
        ('3.0', '100 ±10%')
    """
    if quantity.exact:
        return str(written(quantity.value))
    half = (quantity.interval()[1] - quantity.value) / quantity.value
    return f"{written(quantity.value)} ±{half:.0%}" if half >= 0.005 else f"{written(quantity.value)} ±<1%"


def count(quantity: Quantity) -> str:
    """A number of things, to the unit."""
    return spread(quantity, lambda value: f"{value:,.0f}")


def decimal(quantity: Quantity) -> str:
    """A number with three significant digits, or to the unit where it is larger."""
    return spread(quantity, _short)


def duration(hours: Quantity) -> str:
    """A time in hours, minutes or seconds, whichever its value is read in.

    Example:
        >>> duration(Quantity(2.5)), duration(Quantity(0.02)), duration(Quantity(1e-3, 1e-8))
        ('2.5 h', '1.2 min', '3.6 s ±20%')
    """
    factor, unit = (1, "h") if hours.value >= 1 else (60, "min") if hours.value * 60 >= 1 else (3600, "s")
    return spread(hours * factor, lambda value: f"{_short(value)} {unit}")


def size(gigabytes: Quantity) -> str:
    """Bytes in TB, GB, MB or kB (powers of 1000), whichever they are read in."""
    units = ((1e-3, "TB"), (1.0, "GB"), (1e3, "MB"))
    factor, unit = next(((factor, unit) for factor, unit in units if gigabytes.value * factor >= 1), (1e6, "kB"))
    return spread(gigabytes * factor, lambda value: f"{_short(value)} {unit}")


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
