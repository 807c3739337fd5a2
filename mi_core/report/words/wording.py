"""The verdict in plain words, and the rule that led to it with its numbers.

The rule is the one of `mi_core.validity`; nothing is decided here, only said.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mi_core.records import Estimate
from mi_core.report.contents import pooled_rows, primary_row
from mi_core.report.model.attacks import PooledRow
from mi_core.report.model.judgement import Detectable, Evidence, Judged
from mi_core.report.model.report import Report
from mi_core.report.words.answers import BELIEVED, CHANCE, GROUPS, HEADLINES, KINDS, LIMITS, PARTS, SENTENCES, STRONGER
from mi_core.report.words.numbers import count, estimate, interval, percent, rate, small, times
from mi_core.report.words.sides import Sides, sides_of
from mi_core.validity import verdict as verdict_rule

RULE = (
    "By lot, where chance decided which images were trained on, the verdict is “leak” if a randomisation test of the "
    f"attack gives p ≤ {rate(verdict_rule.LEVEL, 2)}; else it is “no evidence”. By choice, where somebody chose the "
    "two groups, it is “leak” if three things hold. First: to explain the result without training, a hidden difference "
    "between the groups would have to exceed anything that the checks saw, or could have missed with so many images, "
    "by a factor that was registered beforehand. Second: the attack has a higher AUC than the blind classifier and "
    "than the same attack on the reference encoders; both differences have 95 % intervals above 0. Third: one of the "
    "references is a trained encoder. If only that encoder or a check is missing, the verdict is “undecided”. If there "
    "is no leak and a check has an AUC above .5, corrected for the number of checks, it is “confounded”. Else it is "
    "“no evidence”, but “undecided” if another planned attack finds something, corrected for the number of attacks. "
    "Before all this it is “undecided” if images, attack or rule were chosen after looking, or if the encoder does not "
    "recognise images."
)
TITLES = {"leak": "Leak", "no-evidence": "No evidence of a leak", "confounded": "Confounded", "undecided": "Undecided"}
_STAGES = {
    "ray_start": "Starting Ray",
    "data": "Reading and splitting data",
    "pretrain": "Pre-training encoders",
    "extract": "Querying encoders",
    "attack": "Attacks and statistics",
    "tune": "Tuning defenses",
    "report": "Writing the report",
}


class _Check(NamedTuple):
    """How a check is called: in numbers, in plain words, and where a leak needs it and it was not made."""

    name: str
    plain: str = ""
    needed: str = ""


_CHECKS = {  # by its field of the validity part
    "blind_auc": _Check(
        "the classifier that never queries the encoder",
        "a check without the encoder",
        "a classifier that never queries the encoder",
    ),
    "semantic_auc": _Check(
        "the classifier on embeddings of a reference encoder", "a check that sees what the images show"
    ),
    "control_auc": _Check(
        "the same attack on reference encoders that did not see the image",
        "the same attack on encoders that did not see the image",
        "the same attack on trained encoders that saw neither group",
    ),
    verdict_rule.RESOLUTION: _Check("what this number of images resolves"),
}


def stages(report: Report) -> dict[str, str]:
    """The stages of a run in words, in their order; where no encoder was trained here none is called trained."""
    trained = any(encoder.objective is not None for encoder in report.encoders.values())
    return _STAGES if trained else _STAGES | {"pretrain": "Loading encoders"}


def probe(name: str) -> str:
    """A downstream probe in words.

    Example:
        >>> probe("knn_200")
        'kNN, k = 200'
    """
    if name.startswith("knn_"):
        return f"kNN, k = {name.removeprefix('knn_')}"
    return {"knn": "kNN", "linear": "linear probe", "zero_shot": "zero-shot"}.get(name, name)


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
    """Say what the report found; without a ``validity`` part the answer is "undecided"."""
    judged = report.judged
    sides, evidence = sides_of(report), report.evidence
    row = primary_row(pooled_rows(report))
    attack_auc = judged.attack_auc or (None if row is None else row.auc)
    robustness, p_value = judged.robustness, None if judged.p_value is None else small(judged.p_value)
    least = times(0.0 if robustness is None else robustness.at_least)
    made = {} if judged.validity is None else judged.validity.checks
    based = "" if row is None else _based(report, row, sides)
    words = {
        "attack": "The attack" if row is None else f"The attack {row.attack} on the {row.output} output",
        "inside": sides.inside,
        "outside": sides.outside,
        "auc": _auc(attack_auc),
        "failed": named_checks(judged, judged.differing),
        "checks": named_checks(judged, made) or "no check",
        "other": judged.other_attack or "",
        "p": p_value or "not known",
        "factor": times(judged.factor or verdict_rule.FACTOR),
        "robustness": least,
        "check": _CHECKS[verdict_rule.RESOLUTION if robustness is None else robustness.check].name,
        "pair": _pair(attack_auc, sides),
        "proved": _proved(evidence, sides),
        "stronger": STRONGER.format(least) if robustness is not None else "",
        "chance": CHANCE.format(p_value) if p_value is not None else "",
        "compared": _compared(judged, made),
        "lower": _lower(attack_auc, sides),
        "based": based,
        "rests": f"{based} {BELIEVED}" if based and not sides.known else based,
        "limits": LIMITS[sides.known],
        "opposite": "it reveals nothing" if sides.known else "they were not used",
        "unseen": _unseen(() if evidence is None else evidence.power),
        "missing": " and ".join(
            check.needed for field, check in _CHECKS.items() if check.needed and getattr(judged, field) is None
        )
        or f"{_CHECKS['control_auc'].needed}; untrained ones show little of how the groups differ",
    }
    reason = judged.reason or ("robust" if judged.verdict == "leak" else "no-checks")
    key = judged.verdict if judged.verdict in PARTS else reason
    close = key == "confounded" and min(judged.differing.values(), default=1.0) > verdict_rule.CLOSE
    kind = [] if report.validity is None else [(GROUPS, KINDS[judged.by or verdict_rule.CHOICE])]
    filled = [(label, " ".join(text.format(**words).split())) for label, text in (*kind, *PARTS[key])]
    return Answer(
        judged.verdict,
        TITLES[judged.verdict],
        "" if sides.known else _question(report, row),
        HEADLINES[sides.known]["close" if close else key].format(**words),
        tuple((label, _capital(text)) for label, text in filled if text),
        judged.warning or "",
        _capital(SENTENCES[key].format(**words)),
        tuple(_conditions(judged.validity)),
    )


def _conditions(validity: verdict_rule.Validity | None) -> Iterator[Condition]:
    """The lines of the rule that were measured."""
    if validity is None:
        return
    if validity.by == verdict_rule.LOT:
        if (p := validity.p_value) is not None:
            name, level = "chance of such scores if training changed nothing", verdict_rule.LEVEL
            yield Condition(name, small(p), f"at most {rate(level, 2)}", p <= level)
        return
    if (robustness := validity.robustness) is not None:
        least, factor = robustness.at_least, validity.factor
        name = f"effect of the attack over that of {_CHECKS[robustness.check].name}"
        yield Condition(name, f"at least {times(least)} times", f"{times(factor)} times", least >= factor)
    for name, entry in (
        ("attack minus blind classifier", validity.delta_auc),
        ("target minus reference encoders", validity.delta_control_auc),
    ):
        if entry is not None:
            yield Condition(name, estimate(entry, 3), "above 0", entry.low > 0)
    told = "none was asked" if validity.control_auc is None else "yes" if validity.trained else "no"
    yield Condition("a reference is a trained encoder", told, "yes", told == "yes")
    for field, entry in validity.checks.items():
        differs = field in validity.differing
        yield Condition(f"AUC of {_CHECKS[field].name}", estimate(entry, 3), "not above .5 (Holm)", not differs)


def _question(report: Report, row: PooledRow | None) -> str:
    """The question of the owner of the images."""
    candidate = report.data.roles.get("candidate")
    n = candidate.n if candidate is not None else None if row is None else row.n_member
    images = "your images" if n is None else sides_of(report).counted(n)
    return f"{'Was' if n == 1 else 'Were'} {images} used to train this encoder?"


def _of_100(entry: Estimate) -> str:
    return f"{100 * entry.value:.0f} of 100"


def _pair(entry: Estimate | None, sides: Sides) -> str:
    """The AUC as what it is: how often the higher score is that of the image inside."""
    if entry is None:
        return ""
    return (
        f"Shown {sides.one} and {sides.other}, the attack tells which is which in {_of_100(entry)} cases; guessing "
        f"gives 50. {_lower(entry, sides)}"
    )


def _lower(entry: Estimate | None, sides: Sides) -> str:
    """The meaning of an attack that is surely worse than guessing; empty: it is not."""
    if entry is None or entry.high >= 0.5:
        return ""
    return f"{_capital(sides.inside)} score lower than {sides.outside}: that is no sign of use, nor of the opposite."


def _compared(judged: Judged, made: Mapping[str, Estimate]) -> str:
    """The checks that were made, in the same unit; where the groups differ, those that tell them apart."""
    fields = judged.differing if judged.verdict == "confounded" else made
    if not fields:
        return ""
    told = _capital(" and ".join(f"{_CHECKS[field].plain} ({_of_100(made[field])})" for field in fields))
    if not judged.differing:
        both = "both " if len(fields) == 2 else "all " if len(fields) > 2 else ""
        return f"{told} {both}found nothing: chance alone gives such numbers."
    beyond = " The attack finds more." if judged.verdict == "leak" else ""
    verb = "tells" if len(fields) == 1 else "tell"
    return f"{told} {verb} the two groups apart that often; guessing gives 50.{beyond}"


def named_checks(judged: Judged, fields: Iterable[str]) -> str:
    """Some of the checks with their numbers."""
    return " and ".join(f"{_CHECKS[field].name}{_auc(getattr(judged, field))}" for field in fields)


def _based(report: Report, row: PooledRow, sides: Sides) -> str:
    """The images and the attack, and what of the user's images is not judged."""
    seeds = len(row.seeds)
    over = f" in {seeds} repetitions" if seeds > 1 else ""
    registered = None if report.validity is None or not row.primary else report.validity.registered
    primary = "" if registered is None else f", chosen {'before' if registered else 'after'} the encoder was queried"
    said = f"{sides.counted(row.n_member)}, {count(row.n_nonmember)} {sides.outside}{over}, and one attack{primary}."
    if (told := report.registration) is not None:
        reports, attacks = told.reports or 1, told.attacks or 1
        if reports > 1 or attacks > 1:
            planned = f"{count(attacks)} {'attack was' if attacks == 1 else 'attacks were'} planned"
            said += f" {planned} on these images; this is report {reports}."
        said += f" {told.note}" if told.note else ""
    if sides.known:
        return said
    fixing = report.data.roles.get("known-nonmember")
    copies = report.data.duplicates_removed + (report.data.near_duplicates_removed or 0)
    unjudged = (
        [f"{count(fixing.n)} more control images set the attack's threshold and are not judged"]
        if fixing is not None and fixing.n
        else []
    )
    unjudged += [f"{count(copies)} {'copy was' if copies == 1 else 'copies were'} left out"] if copies else []
    return f"{said} {_capital('; '.join(unjudged))}." if unjudged else said


def _proved(evidence: Evidence | None, sides: Sides) -> str:
    """How many of the images were surely used, and how many can be named."""
    if evidence is None:
        return ""
    least = 0.0 if evidence.primary_test is None else evidence.primary_test.least_share or 0.0
    counted = sides.counted(evidence.n_candidate)
    whole = sides.candidates if evidence.grouped else f"the {counted}" if sides.known else counted
    said = []
    if least >= 0.01 and not sides.known:
        said.append(f"at least {percent(math.floor(100 * least) / 100)} of {whole} were used (95 % confidence)")
    for samples in evidence.samples[:1]:
        if samples.flagged:
            named = f"{count(samples.flagged)} of {'them' if said else whole}"
            said.append(f"{named} can be named (about 1 in {round(1 / samples.fdr)} of those by error)")
    if not said:
        return ""
    start = "Without being told which images are members, the audit says: " if sides.known else ""
    return start + ", and ".join(said) + "."


def _unseen(power: Sequence[Detectable]) -> str:
    """The result that would usually have been called a leak, in the unit of the attack, if all images were used."""
    least = next((detectable.auc for detectable in power if detectable.used == 1), None)
    if least is None:
        return "This many images are too few to find a leak, however strong." if power else ""
    return (
        f"With this many images a leak is usually found if the attack is right {100 * least:.0f} times in 100 and all "
        "images were used; of few used images much less is found."
    )


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def _auc(entry: Estimate | None) -> str:
    return "" if entry is None else f" (AUC {rate(entry.value)} {interval(entry.ci95)}, {count(entry.n)} images)"
