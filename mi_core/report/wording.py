"""The verdict in plain words, and the rule that led to it with its numbers.

The rule is the one of `mi_core.validity`; nothing is decided here, only said.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mi_core.report.contents import Row, pooled_rows, primary_row
from mi_core.report.numbers import count, interval, percent, rate
from mi_core.report.sides import Sides, sides_of
from mi_core.validity import verdict as verdict_rule

RULE = (
    "The verdict is “leak” if the attack has a higher AUC than the blind classifier and than the same attack on the "
    "control encoder: both differences have 95 % intervals above 0. It is “confounded” if there is no leak, but one of "
    "these two checks has an interval above .5 itself; else “no evidence”. It is “undecided” if a check is missing, or "
    "if nothing is found in an encoder that recognises images no better than an untrained one."
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
_CONDITIONS = {  # key of the validity part: what it is
    "delta_auc": "attack minus blind classifier",
    "delta_control_auc": "target minus control encoder",
    "blind_auc": "blind classifier",
    "control_auc": "same attack on the control encoder",
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
    """One line of the rule: a measured AUC or difference, and whether its interval lies above ``bound``."""

    name: str
    entry: Mapping[str, Any]
    bound: float

    @property
    def holds(self) -> bool:
        """Whether the lower bound of the interval is above ``bound``."""
        return bool(self.entry["ci95"][0] > self.bound)


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
        "control": _auc(validity.get("control_auc")),
        "far": "far " if _far(validity) else "",
    }
    said = "broken" if verdict == "undecided" and warning else verdict
    plain = {
        "inside": sides.inside,
        "outside": sides.outside,
        "pair": _pair(attack_auc, sides),
        "proved": _proved(report, sides),
        "compared": _compared(validity),
        "rests": _rests(report, row, sides),
        "limits": _LIMITS[sides.known],
        "opposite": "it reveals nothing" if sides.known else "they were not used",
        "unseen": _unseen(report),
    }
    headline = _HEADLINES[sides.known][said]
    filled = [(label, " ".join(text.format(**plain).split())) for label, text in _PARTS[said]]
    parts = tuple((label, _capital(text)) for label, text in filled if text)
    return Answer(
        verdict,
        TITLES[verdict],
        "" if sides.known else _question(report, row),
        headline,
        parts,
        warning,
        _capital(_SENTENCES[said].format(**numbers)),
        tuple(
            Condition(_CONDITIONS[key], validity[key], bound)
            for clause in verdict_rule.RULE
            for key, bound in clause.above.items()
            if key in validity
        ),
    )


_HEADLINES = {  # whether the truth is known, what is said
    True: {
        "leak": "Yes: this encoder reveals which images it was trained on.",
        "no-evidence": "No evidence that this encoder reveals its training images.",
        "confounded": "No answer: the two groups of images differ by themselves.",
        "undecided": "No answer: there is nothing to compare the attack with.",
        "broken": "No answer: this encoder does not seem to work.",
    },
    False: {
        "leak": "Yes: at least some of them were.",
        "no-evidence": "There is no evidence that they were.",
        "confounded": "No answer: your images and the control images differ by themselves.",
        "undecided": "No answer: there is nothing to compare the attack with.",
        "broken": "No answer: this encoder does not seem to work.",
    },
}
_SURE, _RESTS, _SILENT, _NEXT = "How sure", "What it rests on", "What it does not say", "What to do"
_PARTS = {
    "leak": (("", "{proved}"), (_SURE, "{pair} {compared}"), (_RESTS, "{rests}"), (_SILENT, "{limits}")),
    "no-evidence": (
        (_SURE, "{pair} {unseen}"),
        (_RESTS, "{rests}"),
        (_SILENT, "This does not prove that {opposite}."),
    ),
    "confounded": (
        ("Why", "{compared} Whatever an attack finds may come from that difference, not from training."),
        (_RESTS, "{rests}"),
        (_SILENT, "This says neither that {inside} were used nor that they were not."),
        (_NEXT, "Choose {outside} that were made, saved and selected like {inside}."),
    ),
    "undecided": (
        ("What was measured", "{pair}"),
        ("What is missing", "A leak needs two checks: one without the encoder, and the same attack on an encoder that "
         "saw neither group."),
        (_RESTS, "{rests}"),
    ),
    "broken": (
        (_SILENT, "An encoder that learned nothing gives nothing away. So this audit says nothing about the encoder "
         "you meant."),
        (_NEXT, "Repair the weights or the preprocessing, and run the audit again."),
        (_RESTS, "{rests}"),
    ),
}  # fmt: skip
_LIMITS = {  # whether the truth is known, what a leak does not say
    True: "That anybody copied, stored or published the images. “Leak” means only that the encoder treats images it "
    "was trained on differently.",
    False: "That anybody copied, stored or published your images, or that the use was not allowed. “Leak” means only "
    "that the encoder treats images it was trained on differently. A single named image may be one of the errors.",
}
_NO_BETTER = (
    "{attack}{auc} does not separate {inside} from {outside} better than both a blind classifier that never queries "
    "the encoder{blind} and the same attack on an encoder that saw neither group{control}."
)
_SENTENCES = {
    "leak": (
        "{attack} separates {inside} from {outside}{auc}, {far}better than a blind classifier that never queries "
        "the encoder{blind} and than the same attack on an encoder that saw neither group{control}."
    ),
    "no-evidence": _NO_BETTER,
    "confounded": (
        "{inside} and {outside} differ even without the encoder’s training: a blind classifier that never queries "
        "the encoder{blind} or the same attack on an encoder that saw neither group{control} tells them apart. So the "
        "result of {it}{auc} is no sign of a leak."
    ),
    "undecided": (
        "{attack} was measured{auc}, but not against both a blind classifier and an encoder that saw neither group. "
        "Without these controls its success says nothing about training."
    ),
    "broken": f"{_NO_BETTER} That is expected of an encoder that learned nothing.",
}


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
        "gives 50."
    )


def _compared(validity: Mapping[str, Any]) -> str:
    """The two controls in the same unit."""
    controls = [validity[name] for name in ("blind_auc", "control_auc") if name in validity]
    if len(controls) < 2:
        return ""
    blind, control = map(_of_100, controls)
    if all(entry["ci95"][0] <= 0.5 for entry in controls):
        return (
            f"A check without the encoder ({blind}) and the same attack on an encoder that saw neither group "
            f"({control}) both found nothing."
        )
    beyond = ". The attack finds more than both." if validity["verdict"] == "leak" else "."
    return (
        f"A check without the encoder is right in {blind} cases. The same attack on an encoder that saw neither group "
        f"is right in {control}{beyond}"
    )


def _rests(report: Mapping[str, Any], row: Row | None, sides: Sides) -> str:
    """The images, the attack, and what has to be believed."""
    if row is None:
        return ""
    seeds = len(row.get("seeds", []))
    over = f" in {seeds} repetitions" if seeds > 1 else ""
    primary = ", chosen before the encoder was queried" if row.get("primary") else ""
    said = (
        f"{sides.counted(row['n_member'])}, {count(row['n_nonmember'])} {sides.outside}{over}, and one attack{primary}."
    )
    if sides.known:
        return said
    return f"{said} The answer holds only if the control images come from the same source as yours and were never used."


def _proved(report: Mapping[str, Any], sides: Sides) -> str:
    """How many of the images were surely used, and how many can be named."""
    found = report.get("evidence", {})
    least = next((row.get("least_share", 0) for row in found.get("tests", []) if row.get("primary")), 0)
    samples = found.get("samples", [])[:1]
    n = found.get("n_candidate", 0)
    whole = sides.candidates if found.get("grouped") else f"the {sides.counted(n)}" if sides.known else sides.counted(n)
    said = []
    if least >= 0.01:
        said.append(f"at least {percent(math.floor(100 * least) / 100)} of {whole} were used (95 % confidence)")
    if samples and samples[0]["flagged"]:
        wrong = round(1 / samples[0]["fdr"])
        named = f"{count(samples[0]['flagged'])} of {'them' if said else whole}"
        said.append(f"{named} can be named (about 1 in {wrong} of those by error)")
    if not said:
        return ""
    start = "Without using the known answer, the audit finds that " if sides.known else ""
    return start + ", and ".join(said) + "."


def _unseen(report: Mapping[str, Any]) -> str:
    """What would have been told from guessing, in the unit of the attack; a leak must beat both controls, too."""
    least = report.get("evidence", {}).get("detectable_auc")
    if least is None:
        return ""
    often = f"{100 * least:.0f} times in 100"
    told = f"an attack that is right {often} is usually told from guessing; a leak verdict needs more"
    return f"With this many images, {told}."


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def _auc(entry: Mapping[str, Any] | None) -> str:
    if entry is None:
        return ""
    return f" (AUC {rate(entry['value'])} {interval(entry['ci95'])}, {count(entry['n'])} images)"


def _far(validity: Mapping[str, Any]) -> bool:
    deltas = [validity[key] for key in ("delta_auc", "delta_control_auc") if key in validity]
    return bool(deltas) and all(delta["ci95"][0] > _FAR for delta in deltas)
