"""The verdict in plain words, and the rule that led to it with its numbers.

The rule is the one of `mi_core.validity`; nothing is decided here, only said.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mi_core.report.contents import Row, pooled_rows, primary_row
from mi_core.report.words.answers import GROUPS, HEADLINES, KINDS, LIMITS, PARTS, SENTENCES
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
    "references is a trained encoder. If only that encoder or a check is missing, the verdict is “undecided”. If the "
    "verdict is not “leak” and a check has an interval above .5, it is “confounded”. Else it is “no evidence”. Instead "
    "of “no evidence” it is “undecided” if the encoder does not recognise images, and instead of “leak” if images, "
    "attack or rule were chosen after looking."
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
_CHECKS = {  # field of the validity part: what it is
    "blind_auc": "the classifier that never queries the encoder",
    "semantic_auc": "the classifier on embeddings of a reference encoder",
    "control_auc": "the same attack on reference encoders that did not see the image",
    verdict_rule.RESOLUTION: "what this number of images resolves",
}
_FAR = 0.1  # a lower bound of a difference that deserves the word "far"


def stages(report: Mapping[str, Any]) -> dict[str, str]:
    """The stages of a run in words, in their order; where no encoder was trained here none is called trained."""
    trained = any("objective" in encoder for encoder in report.get("encoders", {}).values())
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
    """One line of the rule.

    Args:
        name: what is measured.
        measured, needed: both in words.
        holds: whether the condition is met; of every line that speaks for a leak.
    """

    name: str
    measured: str
    needed: str
    holds: bool


@dataclass(frozen=True)
class Answer:
    """What the report found, from plain words to numbers.

    Args:
        verdict: its key; title: its name.
        question: what the owner of the images asks; empty where the truth is known.
        headline: the answer in one sentence.
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


def answer(report: Mapping[str, Any]) -> Answer:
    """Say what the report found.

    Args:
        report: the content of report.json. Without a ``validity`` part the answer is "undecided".
    """
    validity = report.get("validity", {})
    sides = sides_of(report)
    verdict = validity.get("verdict", "undecided")
    warning = validity.get("warning", "")
    row = primary_row(pooled_rows(report))
    attack_auc = validity.get("attack_auc") or (row or {}).get("auc")
    attack = "The attack" if row is None else f"The attack {row['attack']} on the {row['output']} output"
    numbers = {
        "attack": attack,
        "it": attack[0].lower() + attack[1:],
        "inside": sides.inside,
        "outside": sides.outside,
        "auc": _auc(attack_auc),
        "blind": _auc(validity.get("blind_auc")),
        "failed": _failed(validity),
        "control": _auc(validity.get("control_auc")),
        "far": "far " if _far(validity) else "",
        "p": small(validity["p_value"]) if "p_value" in validity else "not known",
        "factor": times(validity.get("factor", verdict_rule.FACTOR)),
        "robustness": times(validity.get("robustness", {}).get("at_least", 0.0)),
        "check": _CHECKS[validity.get("robustness", {}).get("check", verdict_rule.RESOLUTION)],
    }
    by = validity.get("by", verdict_rule.CHOICE)
    said = _said(validity)
    plain = {
        "inside": sides.inside,
        "outside": sides.outside,
        "pair": _pair(attack_auc, sides),
        "proved": _proved(report, sides),
        "robust": _robust(validity),
        "chance": _chance(validity),
        "compared": _compared(validity),
        "lower": _lower(attack_auc, sides).strip(),
        "based": _based(report, row, sides),
        "rests": _rests(report, row, sides),
        "limits": LIMITS[sides.known],
        "opposite": "it reveals nothing" if sides.known else "they were not used",
        "unseen": _unseen(report),
        "missing": _missing(validity),
    }
    headline = HEADLINES[sides.known].get(said) or HEADLINES[sides.known][verdict]
    kind = [] if not validity else [(GROUPS, KINDS[by])]
    filled = [(label, " ".join(text.format(**plain).split())) for label, text in (*kind, *PARTS[said])]
    parts = tuple((label, _capital(text)) for label, text in filled if text)
    return Answer(
        verdict,
        TITLES[verdict],
        "" if sides.known else _question(report, row),
        headline,
        parts,
        warning,
        _capital(SENTENCES[said].format(**numbers)),
        tuple(_conditions(validity)),
    )


def _said(validity: Mapping[str, Any]) -> str:
    """What is said: of a leak by how the groups came about, of an undecided verdict by its reason, else the verdict."""
    verdict = validity.get("verdict", "undecided")
    if verdict == "leak":
        return "by-lot" if validity.get("by") == verdict_rule.LOT else "robust"
    return str(validity.get("reason", "no-checks") if verdict == "undecided" else verdict)


def _conditions(validity: Mapping[str, Any]) -> Iterator[Condition]:
    """The lines of the rule that were measured."""
    if "attack_auc" not in validity:
        return
    found = verdict_rule.Validity.from_json(validity)
    if found.by == verdict_rule.LOT:
        if found.p_value is not None:
            level = rate(verdict_rule.LEVEL, 2)
            yield Condition(
                "chance of such scores if training changed nothing",
                small(found.p_value),
                f"at most {level}",
                found.p_value <= verdict_rule.LEVEL,
            )
        return
    if (robustness := found.robustness) is not None:
        least = robustness.at_least
        name = f"effect of the attack over that of {_CHECKS[robustness.check]}"
        yield Condition(name, f"at least {times(least)} times", f"{times(found.factor)} times", least >= found.factor)
    for name, entry in (
        ("attack minus blind classifier", found.delta_auc),
        ("target minus reference encoders", found.delta_control_auc),
    ):
        if entry is not None:
            yield Condition(name, estimate(entry.as_json(), 3), "above 0", entry.low > 0)
    told = "none was asked" if found.control_auc is None else "yes" if found.trained else "no"
    yield Condition("a reference is a trained encoder", told, "yes", told == "yes")
    for field, entry in found.checks.items():
        told = estimate(entry.as_json(), 3)
        yield Condition(f"AUC of {_CHECKS[field]}", told, "lower end at most .5", entry.low <= 0.5)


def _question(report: Mapping[str, Any], row: Row | None) -> str:
    """What the owner of the images asks."""
    roles = report.get("data", {}).get("roles", {})
    n = roles.get("candidate", {}).get("n") or (row or {}).get("n_member")
    images = "your images" if n is None else sides_of(report).counted(n)
    return f"{'Was' if n == 1 else 'Were'} {images} used to train this encoder?"


def _of_100(entry: Mapping[str, Any]) -> str:
    return f"{100 * entry['value']:.0f} of 100"


def _pair(entry: Mapping[str, Any] | None, sides: Sides) -> str:
    """The AUC as what it is: how often the higher score is that of the image inside."""
    if entry is None:
        return ""
    return (
        f"Shown {sides.one} and {sides.other}, the attack tells which is which in {_of_100(entry)} cases; guessing "
        f"gives 50.{_lower(entry, sides)}"
    )


def _lower(entry: Mapping[str, Any] | None, sides: Sides) -> str:
    """What it means that an attack is surely worse than guessing; empty: it is not."""
    if entry is None or entry["ci95"][1] >= 0.5:
        return ""
    return f" {_capital(sides.inside)} score lower than {sides.outside}: that is no sign of use, nor of the opposite."


def _robust(validity: Mapping[str, Any]) -> str:
    """How strong a hidden difference would have to be."""
    least = validity.get("robustness", {}).get("at_least")
    if least is None:
        return ""
    return (
        "To explain this without training, a hidden difference between the two groups would have to be at least "
        f"{times(least)} times as strong as anything that the checks saw, or could have missed with so many images."
    )


def _chance(validity: Mapping[str, Any]) -> str:
    """The randomisation test in words."""
    if "p_value" not in validity:
        return ""
    chance = small(validity["p_value"])
    return f"If training had changed nothing, a lot would give so clear a result with a chance of {chance}."


def _compared(validity: Mapping[str, Any]) -> str:
    """The checks in the same unit."""
    named = {
        "blind_auc": "a check without the encoder",
        "semantic_auc": "a check that sees what the images show",
        "control_auc": "the same attack on encoders that did not see the image",
    }
    found = {name: validity[field] for field, name in named.items() if field in validity}
    if validity.get("verdict") == "confounded":
        found = {name: entry for name, entry in found.items() if entry["ci95"][0] > 0.5}
    if not found:
        return ""
    told = " and ".join(f"{name} ({_of_100(entry)})" for name, entry in found.items())
    if all(entry["ci95"][0] <= 0.5 for entry in found.values()):
        both = "both " if len(found) == 2 else "all " if len(found) > 2 else ""
        return f"{_capital(told)} {both}found nothing: chance alone gives such numbers."
    beyond = " The attack finds more." if validity["verdict"] == "leak" else ""
    verb = "tells" if len(found) == 1 else "tell"
    return f"{_capital(told)} {verb} the two groups apart that often; guessing gives 50.{beyond}"


def _missing(validity: Mapping[str, Any]) -> str:
    """The checks that a leak needs and that were not made."""
    needed = {
        "blind_auc": "a classifier that never queries the encoder",
        "control_auc": "the same attack on trained encoders that saw neither group",
    }
    return " and ".join(name for field, name in needed.items() if field not in validity)


def _failed(validity: Mapping[str, Any]) -> str:
    """The checks that tell the groups apart, with their numbers."""
    found = {name: validity[field] for field, name in _CHECKS.items() if field in validity}
    return " and ".join(f"{name}{_auc(entry)}" for name, entry in found.items() if entry["ci95"][0] > 0.5)


def _rests(report: Mapping[str, Any], row: Row | None, sides: Sides) -> str:
    """The images, the attack, and what has to be believed."""
    said = _based(report, row, sides)
    if sides.known or not said:
        return said
    return f"{said} The answer holds only if the control images come from the same source as yours and were never used."


def _based(report: Mapping[str, Any], row: Row | None, sides: Sides) -> str:
    """The images and the attack."""
    if row is None:
        return ""
    seeds = len(row.get("seeds", []))
    over = f" in {seeds} repetitions" if seeds > 1 else ""
    registered = report.get("validity", {}).get("registered", False)
    primary = ", chosen before the encoder was queried" if row.get("primary") and registered else ""
    said = (
        f"{sides.counted(row['n_member'])}, {count(row['n_nonmember'])} {sides.outside}{over}, and one attack{primary}."
    )
    found = report.get("registration", {})
    if found.get("reports", 1) > 1 or found.get("attacks", 1) > 1:
        said += f" {count(found['attacks'])} attacks were planned on these images; this is report {found['reports']}."
    return said if sides.known else said + _unjudged_in_words(report.get("data", {}))


def _unjudged_in_words(data: Mapping[str, Any]) -> str:
    """The images of the user that are not judged, and why; empty: all are."""
    fixing = data.get("roles", {}).get("known-nonmember", {}).get("n", 0)
    copies = data.get("duplicates_removed", 0) + data.get("near_duplicates_removed", 0)
    told = [f"{count(fixing)} more control images set the attack's threshold and are not judged"] if fixing else []
    told += [f"{count(copies)} {'copy was' if copies == 1 else 'copies were'} left out"] if copies else []
    return f" {_capital('; '.join(told))}." if told else ""


def _proved(report: Mapping[str, Any], sides: Sides) -> str:
    """How many of the images were surely used, and how many can be named."""
    found = report.get("evidence", {})
    least = next((row.get("least_share", 0) for row in found.get("tests", []) if row.get("primary")), 0)
    samples = found.get("samples", [])[:1]
    n = found.get("n_candidate", 0)
    whole = sides.candidates if found.get("grouped") else f"the {sides.counted(n)}" if sides.known else sides.counted(n)
    said = []
    if least >= 0.01 and not sides.known:
        said.append(f"at least {percent(math.floor(100 * least) / 100)} of {whole} were used (95 % confidence)")
    if samples and samples[0]["flagged"]:
        wrong = round(1 / samples[0]["fdr"])
        named = f"{count(samples[0]['flagged'])} of {'them' if said else whole}"
        errors = "" if sides.known else f" (about 1 in {wrong} of those by error)"
        said.append(f"{named} can be named{errors}")
    if not said:
        return ""
    start = "Without being told which images are members, the audit says: " if sides.known else ""
    return start + ", and ".join(said) + "."


def _unseen(report: Mapping[str, Any]) -> str:
    """What would usually have been called a leak, in the unit of the attack, if all images were used."""
    power = report.get("evidence", {}).get("power", [])
    least = next((one.get("auc") for one in power if one["used"] == 1), None)
    if least is None:
        return "This many images are too few to find a leak, however strong." if power else ""
    return (
        f"With this many images a leak is usually found if the attack is right {100 * least:.0f} times in 100 and all "
        "images were used; of few used images much less is found."
    )


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def _auc(entry: Mapping[str, Any] | None) -> str:
    if entry is None:
        return ""
    return f" (AUC {rate(entry['value'])} {interval(entry['ci95'])}, {count(entry['n'])} images)"


def _far(validity: Mapping[str, Any]) -> bool:
    deltas = [validity[key] for key in ("delta_auc", "delta_control_auc") if key in validity]
    return bool(deltas) and all(delta["ci95"][0] > _FAR for delta in deltas)
