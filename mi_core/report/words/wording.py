"""The verdict in plain words, and the rule that led to it with its numbers.

The rule is the one of `mi_core.validity`; nothing is decided here, only said.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from mi_core.report.contents import pooled_rows, primary_row
from mi_core.report.model.report import Report
from mi_core.report.words.numbers import estimate, rate, small, times
from mi_core.report.words.sentences import WORDS, capital, checks, say, sections, sides_of
from mi_core.validity import verdict as verdict_rule

TITLES = {"leak": "Leak", "no-evidence": "No evidence of a leak", "confounded": "Confounded", "undecided": "Undecided"}


def stages(report: Report) -> dict[str, str]:
    """The stages of a run in words, in their order; where no encoder was trained here none is called trained."""
    return dict(sections(f"{WORDS}/stages.j2", encoders=report.encoders))


@dataclass(frozen=True)
class Condition:
    """One line of the rule; of every line one that holds speaks for a leak."""

    name: str
    measured: str
    needed: str
    holds: bool


@dataclass(frozen=True)
class Answer:
    """The answer of a report, from plain words to numbers.

    Args:
        question: what the owner of the images asks; empty where the truth is known.
        parts: what it means, how sure it is, what it rests on and what it does not say, without a term of statistics:
            each a label, empty for the first, and one or more sentences.
        warning: why the encoder may not be the one that was meant; empty where nothing speaks for that.
        sentence: the same with its numbers.
        conditions: those of the rule that were measured.
    """

    verdict: str
    title: str
    question: str
    headline: str
    parts: tuple[tuple[str, str], ...]
    warning: str
    sentence: str
    conditions: tuple[Condition, ...]

    @property
    def lines(self) -> tuple[str, ...]:
        """The parts, each in one line."""
        return tuple(f"{label}: {text}" if label else text for label, text in self.parts)


def answer(report: Report) -> Answer:
    """Say what the report found; without a ``validity`` part the answer is "undecided".

    Raises:
        ValueError: the verdict has a reason that this version does not know.
    """
    judged, sides, row = report.judged, sides_of(report), primary_row(pooled_rows(report))
    reason = judged.reason or ("robust" if judged.verdict == "leak" else "no-checks")
    (_, headline), (_, question), (_, sentence), *parts = sections(
        f"{WORDS}/answer.j2",
        report=report,
        judged=judged,
        sides=sides,
        row=row,
        key=judged.verdict if judged.verdict in ("confounded", "no-evidence") else reason,
        close=min(judged.differing.values(), default=1.0) > verdict_rule.CLOSE,
        attack_auc=judged.attack_auc or (None if row is None else row.auc),
        made={} if judged.validity is None else judged.validity.checks,
    )
    if not headline:
        raise ValueError(f"{reason!r} is no reason of a verdict")
    return Answer(
        judged.verdict,
        TITLES[judged.verdict],
        question,
        headline,
        tuple((label, capital(text)) for label, text in parts if text),
        judged.warning or "",
        capital(sentence),
        tuple(_conditions(judged.validity)),
    )


def _conditions(validity: verdict_rule.Validity | None) -> Iterator[Condition]:
    """The lines of the rule that were measured."""
    names = checks("name")
    if validity is None:
        return
    if validity.by == verdict_rule.LOT:
        if (p := validity.p_value) is not None:
            name, level = "chance of such scores if training changed nothing", verdict_rule.LEVEL
            yield Condition(name, small(p), f"at most {rate(level, 2)}", p <= level)
        return
    if (robustness := validity.robustness) is not None:
        least, factor = robustness.at_least, validity.factor
        name = f"effect of the attack over that of {names[robustness.check]}"
        yield Condition(name, f"at least {times(least)} times", f"{times(factor)} times", least >= factor)
    for field, entry in (("delta_auc", validity.delta_auc), ("delta_control_auc", validity.delta_control_auc)):
        if entry is not None:
            yield Condition(names[field], estimate(entry, 3), "above 0", entry.low > 0)
    told = "none was asked" if validity.control_auc is None else "yes" if validity.trained else "no"
    yield Condition("a reference is a trained encoder", told, "yes", told == "yes")
    for field, entry in validity.checks.items():
        differs = field in validity.differing
        yield Condition(f"AUC of {names[field]}", estimate(entry, 3), "not above .5 (Holm)", not differs)


@dataclass(frozen=True)
class Dots:
    """A picture of 100 of the candidates: those that can be named, and further ones that were used; and a sentence."""

    named: int
    used: int
    words: str

    @property
    def kinds(self) -> list[str]:
        """The kinds of the 100 dots: ``named``, ``used`` or ``unknown``."""
        return ["named"] * self.named + ["used"] * self.used + ["unknown"] * (100 - self.named - self.used)


def dots(report: Report) -> Dots | None:
    """The picture of a report; None where there is no leak or nothing is known of single candidates.

    Shares are rounded down. Named images hold errors, so their number bounds nothing: where it is above the share
    that was used at the least, that share stands in the words as it is.
    """
    evidence = report.evidence
    if report.judged.verdict != "leak" or evidence is None or not evidence.samples or sides_of(report).known:
        return None
    samples, test = evidence.samples[0], evidence.primary_test
    named = 100 * samples.flagged // samples.n_candidate
    least = 0.0 if test is None else test.least_share or 0.0
    used = math.floor(100 * least + 1e-9)
    if not named and not used:
        return None
    return Dots(named, max(0, used - named), say("dots", report, named, used))
