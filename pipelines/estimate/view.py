"""An estimate as people and programs read it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from mi_core.costs import Range
from pipelines.console import count_of
from pipelines.estimate.run import HOUR, Amounts, Cluster, Estimate
from pipelines.extract.telemetry import STEPS

STEP_WORDS = dict(zip(STEPS, ("decoding", "views", "encoder", "features", "storing"), strict=True))
TIME = ((1.0, "h"), (60.0, "min"), (HOUR, "s"), (1000 * HOUR, "ms"))
BYTES = ((1e-3, "TB"), (1.0, "GB"), (1e3, "MB"), (1e6, "kB"))
UNITS: Mapping[str, tuple[tuple[float, str], ...]] = {
    "images": ((1.0, "images"),),
    "queries": ((1.0, "queries"),),
    "cpu_hours": tuple((factor, f"{unit} of CPU time") for factor, unit in TIME),
    "gpu_hours": tuple((factor, f"{unit} of GPU time") for factor, unit in TIME),
    "wall_hours": tuple((factor, f"{unit} here") for factor, unit in TIME),
    "gigabytes": tuple((factor, f"{unit} stored") for factor, unit in BYTES),
    "money": ((1.0, "of money"),),
}


def as_json(found: Estimate, wanted: Cluster | None = None) -> dict[str, Any]:
    """The estimate as plain values: hours, seconds, bytes; ``range`` = [low, high] where a number is uncertain."""
    totals = [name for name in found.total if name in ("cpu_hours", "gpu_hours", "wall_hours", "money")]
    content: dict[str, Any] = {
        "stages": {stage: _plain(amounts) for stage, amounts in found.stages.items()},
        "total": _plain({name: found.total[name] for name in totals}),
        "encoders": {name: _plain(amounts) for name, amounts in found.encoders.items()},
        "seconds_per_image": {
            name: {
                **_plain({step: cost.step(step) for step in STEPS} | {"bytes_per_row": cost.row_bytes}),
                "bytes_per_file": cost.file_bytes,
                "images": sum(chunk.images for chunk in cost.chunks),
                "chunks": len(cost.chunks),
                "chunk": cost.batch,
                "startup_seconds": cost.startup,
            }
            for name, cost in found.timed.items()
        },
        "training_seconds_per_image": {
            name: {**cost.per_image.as_json(), "steps": cost.steps, "batch": cost.batch}
            for name, cost in found.trained.items()
        },
        "longest_training_hours": found.longest.as_json(),
        "prices": dict(found.prices),
        "notes": list(found.notes),
    }
    return content | ({} if wanted is None else {"cluster": asdict(wanted)})


def _plain(amounts: Amounts) -> dict[str, Any]:
    return {name: one.as_json() for name, one in amounts.items()}


def lines(found: Estimate, wanted: Cluster | None = None) -> Iterator[str]:
    """The estimate in words: the whole run, its stages and encoders, the measured times, notes."""
    money = f"costs {amount(found.total['money'])}" if found.prices else "has no known price (give `prices`)"
    time, queries = amount(found.total["wall_hours"], *TIME), amount(found.total["queries"], *UNITS["queries"])
    yield f"The run takes about {time} here, asks {queries} and {money}."
    for name, amounts in [*found.stages.items(), ("total", found.total)]:
        yield f"{name}: {_words(amounts)}"
    for name, amounts in found.encoders.items():
        yield f"encoder {name}: {_words(amounts)}"
    for name, cost in found.timed.items():
        steps = ", ".join(f"{words} {per_image(cost.step(step))}" for step, words in STEP_WORDS.items())
        chunks = f"{len(cost.chunks)} chunks of up to {count_of(cost.batch, 'image', 'images')}"
        yield f"{name}: per image {steps}, {amount(cost.row_bytes, (1, 'bytes stored'))}; timed on {chunks}"
    for name, training in found.trained.items():
        steps = f"{count_of(training.steps, 'step', 'steps')} of {count_of(training.batch, 'image', 'images')}"
        yield f"training {name}: {per_image(training.per_image)} per image and epoch; timed on {steps}"
    if found.trained:
        yield f"the longest training takes {amount(found.longest, *TIME)} with the run's workers"
    if wanted is not None:
        yield (
            f"to query within {wanted.hours:g} h: {count_of(wanted.encoder_actors, 'encoder actor', 'encoder actors')} "
            f"and {count_of(wanted.readers, 'reader', 'readers')} on {count_of(wanted.nodes, 'node', 'nodes')}"
        )
    yield from (f"note: {note}" for note in found.notes)


def _words(amounts: Amounts) -> str:
    """All amounts above 0 with their units."""
    return ", ".join(amount(one, *UNITS[name]) for name, one in amounts.items() if one.high) or "nothing to do"


def per_image(seconds: Range) -> str:
    """A short time in milliseconds."""
    return amount(seconds, (1000.0, "ms"))


def amount(one: Range, *units: tuple[float, str]) -> str:
    """A number in the largest unit in which it is at least 1, and how low and high it may be.

    Example:
        >>> amount(Range(0.02, 0.015, 0.03), *TIME), amount(Range.exact(2e-3), *BYTES), amount(Range.exact(1234.0))
        ('1.2 min (0.9 to 1.8)', '2 MB', '1,234')
    """
    factor, unit = next((pair for pair in units if one.value * pair[0] >= 1), (units or ((1.0, ""),))[-1])
    value, low, high = (_short(number * factor) for number in (one.value, one.low, one.high))
    return f"{value} {unit}".strip() + ("" if low == high else f" ({low} to {high})")


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
