"""The upper limit of what attacks reach, in words."""

from __future__ import annotations

import math

from mi_core.report.model.judgement import Bound
from mi_core.report.words.numbers import count, rate
from mi_core.validity.bound import MET, NOT_MET

HEADING = "How much do these attacks find at most?"
MEANING = (
    "This bounds these attacks on these images only: another attack may find more. Each limit has 95 % confidence, and "
    "so has the largest, however many attacks there are (intersection-union test, Berger 1982). Where somebody chose "
    "the two groups, a difference between them moves the limit too, up or down."
)


def sentence(entry: Bound) -> str:
    """The result of one encoder."""
    which = "the only attack" if entry.attacks == 1 else f"the highest of {count(entry.attacks)} attacks"
    said = f"AUC at most {upward(entry.at_most)} (95 %): {entry.attack}, {which} on the {entry.output} output."
    return said + _bound(entry)


def _bound(entry: Bound) -> str:
    """A sentence on whether the bound is kept; empty: there is none."""
    if entry.bound is None or entry.outcome is None:
        return ""
    return f" {outcome_sentence(entry, entry.bound, entry.outcome)}"


def outcome_sentence(entry: Bound, bound: float, outcome: str) -> str:
    """The meaning of an outcome.

    Args:
        entry: with the limits.
        bound: that the AUC is to stay under.
        outcome: of `mi_core.validity.bound.OUTCOMES`.
    """
    said = wanted(bound)
    if outcome == MET:
        return f"The bound {said} is met."
    if outcome == NOT_MET:
        highest = max(entry.limits, key=lambda row: row.low)
        return f"The bound {said} is not met: {highest.attack} has at least {_down(highest.low)} (95 %)."
    return f"Whether the bound {said} is met cannot be told with so many images."


def basis(entry: Bound) -> str:
    """A caveat for readers; empty: none."""
    said = []
    if entry.planned is not None and entry.planned > entry.attacks:
        said.append(
            f"{count(entry.planned)} attacks were registered on this output: the others do not apply or were left out."
        )
    if entry.registered is False:
        said.append("Images, attack or bound were chosen after the first query.")
    return " ".join(said)


def wanted(bound: float) -> str:
    """A bound as it was given.

    Example:
        >>> wanted(0.55), wanted(0.525), wanted(1.0)
        ('.55', '.525', '1')
    """
    return f"{bound:g}".removeprefix("0")


def upward(value: float) -> str:
    """An upper limit, rounded up.

    Example:
        >>> upward(0.5301), upward(0.53), upward(1.0)
        ('.531', '.530', '1.000')
    """
    return rate(math.ceil(1000 * value - 1e-9) / 1000)


def _down(value: float) -> str:
    """A lower limit, rounded down."""
    return rate(math.floor(1000 * value + 1e-9) / 1000)
