"""The verdict in plain words, and the rule that led to it with its numbers.

The rule is the one of `mi_core.validity`; nothing is decided here, only said.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mi_core.report.contents import pooled_rows, primary_row
from mi_core.report.numbers import count, interval, rate

RULE = (
    "The verdict is “leak” only if the 95 % intervals of both AUC differences, attack minus blind classifier and "
    "target minus control encoder, lie above 0; else “confounded” if the interval of the blind or of the control "
    "AUC lies above .5; else “no evidence”."
)
TITLES = {"leak": "Leak", "no-evidence": "No evidence of a leak", "confounded": "Confounded", "undecided": "Undecided"}
STAGES = {
    "ray_start": "Starting Ray",
    "data": "Reading and splitting data",
    "pretrain": "Pre-training encoders",
    "extract": "Querying encoders",
    "attack": "Attacks and statistics",
    "tune": "Tuning defenses",
    "report": "Writing the report",
}
_CONDITIONS = (  # key of the validity part, what it is, the bound it has to stay above
    ("delta_auc", "attack minus blind classifier", 0.0),
    ("delta_control_auc", "target minus control encoder", 0.0),
    ("blind_auc", "blind classifier", 0.5),
    ("control_auc", "same attack on the control encoder", 0.5),
)
_FAR = 0.1  # a lower bound of a difference that deserves the word "far"


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
    """The verdict's key and title, one sentence with its numbers, and the conditions of the rule that were measured."""

    verdict: str
    title: str
    sentence: str
    conditions: tuple[Condition, ...]


def answer(report: Mapping[str, Any]) -> Answer:
    """Say what the report found.

    Args:
        report: the content of report.json. Without a ``validity`` part the answer is "undecided".
    """
    validity = report.get("validity", {})
    verdict = validity.get("verdict", "undecided")
    row = primary_row(pooled_rows(report))
    attack_auc = validity.get("attack_auc") or (row or {}).get("auc")
    attack = "The attack" if row is None else f"The attack {row['attack']} on the {row['output']} output"
    numbers = {
        "attack": attack,
        "it": attack[0].lower() + attack[1:],
        "auc": _auc(attack_auc),
        "blind": _auc(validity.get("blind_auc")),
        "control": _auc(validity.get("control_auc")),
        "far": "far " if _far(validity) else "",
        "unseen": _unseen(validity),
    }
    conditions = tuple(Condition(name, validity[key], low) for key, name, low in _CONDITIONS if key in validity)
    return Answer(verdict, TITLES[verdict], _SENTENCES[verdict].format(**numbers), conditions)


_SENTENCES = {
    "leak": (
        "{attack} separates members from non-members{auc}, {far}better than a blind classifier that never queries "
        "the encoder{blind} and than the same attack on an encoder that saw neither group{control}: the encoder "
        "gives away which of these images it was trained on."
    ),
    "no-evidence": (
        "{attack}{auc} does not separate members from non-members better than both a blind classifier that never "
        "queries the encoder{blind} and the same attack on an encoder that saw neither group{control}. This is not "
        "proof that nothing leaks{unseen}."
    ),
    "confounded": (
        "Members and non-members differ even without the encoder’s training: a blind classifier that never queries "
        "the encoder{blind} or the same attack on an encoder that saw neither group{control} tells them apart. What "
        "{it} reaches{auc} must not be read as a leak."
    ),
    "undecided": (
        "{attack} was measured{auc}, but not against both a blind classifier and an encoder that saw neither group. "
        "Without these controls its success says nothing about training."
    ),
}


def _auc(entry: Mapping[str, Any] | None) -> str:
    if entry is None:
        return ""
    return f" (AUC {rate(entry['value'])} {interval(entry['ci95'])}, n {count(entry['n'])})"


def _far(validity: Mapping[str, Any]) -> bool:
    deltas = [validity[key] for key in ("delta_auc", "delta_control_auc") if key in validity]
    return bool(deltas) and all(delta["ci95"][0] > _FAR for delta in deltas)


def _unseen(validity: Mapping[str, Any]) -> str:
    if "delta_auc" not in validity:
        return ""
    high = validity["delta_auc"]["ci95"][1]
    return f": with this many images an AUC up to {rate(max(0.0, high), 2)} above the blind classifier could go unseen"
