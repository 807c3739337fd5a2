"""How the report prints numbers: rates without a leading zero, intervals beside them, counts with commas."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from mi_core.records import Estimate

DAGGER = "†"


def rate(value: float, digits: int = 3) -> str:
    """A fraction or a difference of fractions.

    Example:
        >>> rate(0.9312), rate(1.0), rate(-0.0004), rate(-0.43, 2)
        ('.931', '1.000', '.000', '−.43')
    """
    text = f"{abs(value):.{digits}f}".removeprefix("0")
    return "−" + text if value < 0 and float(text) > 0 else text


def interval(ci95: Sequence[float], digits: int | None = None) -> str:
    """A 95 % interval; without ``digits`` two decimals, three where two would hide its width or its distance from 0.

    Example:
        >>> interval([0.9181, 0.9422]), interval([0.0011, 0.0042]), interval([0.49, 0.53], 3)
        ('[.92, .94]', '[.001, .004]', '[.490, .530]')
    """
    low, high = ci95
    if digits is None:
        digits = 3 if high - low < 0.01 or 0 < abs(low) < 0.01 or 0 < abs(high) < 0.01 else 2
    return f"[{rate(low, digits)}, {rate(high, digits)}]"


def plain(value: float, digits: int = 3) -> str:
    """A number of any size in digits, never as a power of ten: so many digits that count, thousands separated.

    Example:
        >>> plain(1.4639), plain(2e-05), plain(26400), plain(2.0), plain(-0.5)
        ('1.46', '0.00002', '26,400', '2', '−0.5')
    """
    if not math.isfinite(value):
        return str(value)
    number = Decimal(f"{value:.{digits}g}")
    return f"{number.normalize():,f}".replace("-", "−")


def chance(value: float) -> str:
    """A probability that may be very small, like the delta of differential privacy.

    Example:
        >>> chance(1e-05), chance(0.0), chance(1.0)
        ('.00001', '0', '1')
    """
    text = plain(value)
    return text.removeprefix("0") or text


def share(entry: Estimate) -> str:
    """A share of images and its interval, as percentages.

    Example:
        >>> share(Estimate(0.8104, 0.766, 0.9, 440))
        '81 % [76.6 %, 90 %]'
    """
    mark = "" if entry.supported else DAGGER
    return f"{percent(round(entry.value, 3))}{mark} {percents(entry.ci95)}"


def percents(ci95: Sequence[float]) -> str:
    """The interval of a share.

    Example:
        >>> percents([0.7661, 0.9])
        '[76.6 %, 90 %]'
    """
    return f"[{', '.join(percent(round(bound, 3)) for bound in ci95)}]"


def estimate(entry: Estimate, digits: int | None = None) -> str:
    """Value and interval of an estimate; a dagger marks a rate that n does not support.

    Example:
        >>> estimate(Estimate(0.931, 0.918, 0.942, 880))
        '.931 [.92, .94]'
        >>> estimate(Estimate(0.06, 0.0, 0.13, 440, supported=False, false_positives=0))
        '.060† [.00, .13]'
    """
    mark = "" if entry.supported else DAGGER
    return f"{rate(entry.value)}{mark} {interval(entry.ci95, digits)}"


def times(factor: float) -> str:
    """How many times, one decimal, rounded down so that nothing is claimed that was not reached.

    Example:
        >>> times(3.47), times(2.0), times(-0.2)
        ('3.4', '2', '0')
    """
    return f"{max(0.0, math.floor(10 * factor + 1e-9) / 10):,.1f}".removesuffix(".0")


def small(value: float) -> str:
    """A p-value in words: from .001 on as a rate, below as the bound that it stays under.

    Example:
        >>> small(0.0312), small(0.2), small(1e-4), small(3.2e-12)
        ('.031', '.20', '.0001 or less', '.0001 or less')
    """
    return ".0001 or less" if value < 0.00015 else rate(value, 4 if value < 0.001 else 3 if value < 0.1 else 2)


def count(number: float) -> str:
    """A whole number with thousands separators.

    Example:
        >>> count(26400)
        '26,400'
    """
    return f"{number:,.0f}"


def percent(fraction: str | float) -> str:
    """A fraction as a percentage, as short as it is exact.

    Example:
        >>> percent("0.001"), percent(0.01), percent(0.974), percent(1e-7)
        ('0.1 %', '1 %', '97.4 %', '0.00001 %')
    """
    return f"{plain(100 * float(fraction), 4)} %"


def settings(parameters: Mapping[str, Any]) -> str:
    """Parameters by the last part of their names, with their values.

    Example:
        >>> settings({"defenses.0.settings.scale": 0.02131, "defenses.0.epoch": 10})
        'scale 0.02131, epoch 10'
    """
    values = {name: plain(value, 4) if isinstance(value, float) else value for name, value in parameters.items()}
    return ", ".join(f"{name.rpartition('.')[2]} {value}" for name, value in values.items())


def upward(value: float) -> str:
    """An upper limit, rounded up.

    Example:
        >>> upward(0.5301), upward(0.53), upward(1.0)
        ('.531', '.530', '1.000')
    """
    return rate(math.ceil(1000 * value - 1e-9) / 1000)


def downward(value: float) -> str:
    """A lower limit, rounded down."""
    return rate(math.floor(1000 * value + 1e-9) / 1000)


def wanted(bound: float) -> str:
    """A bound as it was given.

    Example:
        >>> wanted(0.55), wanted(0.525), wanted(1.0)
        ('.55', '.525', '1')
    """
    return f"{bound:g}".removeprefix("0")


def duration(seconds: float) -> str:
    """Seconds in the unit a reader would use.

    Example:
        >>> duration(0.42), duration(46.2), duration(200), duration(7500)
        ('0.4 s', '46 s', '3 min 20 s', '2 h 05 min')
    """
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min"
