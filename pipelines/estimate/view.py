"""An estimate as people and programs read it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from mi_core.costs import Range
from mi_core.report.words.numbers import plain
from pipelines.console import count_of
from pipelines.estimate.run import HOUR, Amounts, Cluster, Estimate
from pipelines.extract.actor.telemetry import STEPS

Units = tuple[tuple[float, str], ...]
TIME: Units = ((1.0, "h"), (60.0, "min"), (HOUR, "s"))
BYTES: Units = ((1e-3, "TB"), (1.0, "GB"), (1e3, "MB"), (1e6, "kB"))
AMOUNTS: dict[str, tuple[Units, str]] = {
    "images": (((1.0, "images"),), ""),
    "queries": (((1.0, "queries"),), ""),
    "cpu_hours": (TIME, " of CPU time"),
    "gpu_hours": (TIME, " of GPU time"),
    "wall_hours": (TIME, " here"),
    "gigabytes": (BYTES, " stored"),
    "money": (((1.0, "in the unit of `prices`"),), ""),
}
STEP_WORDS = dict(zip(STEPS, ("decoding", "views", "encoder", "features", "storing"), strict=True))


def as_json(found: Estimate, wanted: Cluster | None = None) -> dict[str, Any]:
    """The estimate as plain values: hours, seconds, bytes; every range as ``value``, ``low`` and ``high``."""
    whole = {"total": {name: asdict(one) for name, one in found.total.items()}}
    return asdict(found) | whole | ({} if wanted is None else {"cluster": asdict(wanted)})


def lines(found: Estimate, wanted: Cluster | None = None) -> Iterator[str]:
    """The estimate in words: the whole run, its stages and encoders, the measured times, notes."""
    clock, asked = amount(found.total["wall_hours"], TIME), _words({"queries": found.total["queries"]})
    money = f"it costs {_words({'money': found.total['money']})}" if found.prices else "the config has no prices"
    yield f"The run takes {'at least' if found.endpoints else 'about'} {clock} here and asks {asked}; {money}."
    for name, amounts in [*found.stages.items(), ("total", found.total)]:
        yield f"{name}: {_words(amounts)}"
    for name, amounts in found.encoders.items():
        yield f"encoder {name}: {_words(amounts)}"
    for name, cost in found.seconds_per_image.items():
        chunks = f"{count_of(cost.chunks, 'chunk', 'chunks')} of up to {count_of(cost.batch, 'image', 'images')}"
        yield f"{name}: {cost.bytes:,.0f} bytes stored per image; timed on {chunks}"
        for source, seconds in cost.seconds.items():
            steps = ", ".join(f"{words} {_milliseconds(seconds[step])}" for step, words in STEP_WORDS.items())
            yield f"    per image of {source}: {steps}"
    for name, training in found.training_seconds_per_image.items():
        steps = f"{count_of(training.steps, 'step', 'steps')} of {count_of(training.batch, 'image', 'images')}"
        yield f"training {name}: {_milliseconds(training.per_image)} per image and epoch; timed on {steps}"
    if found.training_seconds_per_image:
        yield f"the longest training takes {amount(found.longest_training_hours, TIME)} with the run's workers"
    if wanted is not None:
        yield (
            f"to query within {wanted.hours:g} h: {count_of(wanted.encoder_actors, 'encoder actor', 'encoder actors')} "
            f"and {count_of(wanted.readers, 'reader', 'readers')} on {count_of(wanted.nodes, 'node', 'nodes')}"
        )
    yield from (f"note: {note}" for note in found.notes)


def _words(amounts: Amounts) -> str:
    """All amounts above 0 with their units."""
    told = [amount(one, AMOUNTS[name][0]) + AMOUNTS[name][1] for name, one in amounts.items() if one.high]
    return ", ".join(told) or "nothing to do"


def _milliseconds(seconds: Range) -> str:
    return amount(seconds, ((1000.0, "ms"),))


def amount(one: Range, units: Units) -> str:
    """A number in the largest unit in which it is at least 1, with how low and how high it may be.

    Example:
        >>> amount(Range(0.02, 0.015, 0.03), TIME), amount(Range.exact(2e-3), BYTES)
        ('1.2 min (0.9 to 1.8)', '2 MB')
    """
    factor, unit = next((pair for pair in units if one.value * pair[0] >= 1), units[-1])
    value, low, high = (_short(number * factor) for number in (one.value, one.low, one.high))
    return f"{value} {unit}" + ("" if low == high else f" ({low} to {high})")


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else plain(value)
