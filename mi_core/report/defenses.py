"""Defenses in a report: what each leaves of everything measured, and a search for the parameters of one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import Any, TypeVar

from mi_core.records import Estimate
from mi_core.report.contents import final_inferences, final_rows, pooled_rows
from mi_core.report.model import defenses as model
from mi_core.report.model.attacks import EncoderPart
from mi_core.report.model.report import Report
from mi_core.report.pooling import grouped
from mi_core.report.words.numbers import settings

_Pair = TypeVar("_Pair", model.AttackPair, model.AttributePair)
_ALIKE: Mapping[type, tuple[str, ...]] = {  # what pairs of one attack or inference have in common
    model.AttackPair: ("attack", "output", "settings"),
    model.AttributePair: ("attribute", "output", "settings"),
}


def compare_defenses(report: Report, defended: Iterable[model.DefendedEncoder]) -> tuple[model.DefenseRow, ...]:
    """The ``defenses`` part: for every defended encoder what it leaves of everything measured.

    Args:
        report: with encoders, attacks (``pooled``) and attribute inference.
        defended: the encoders defended, and what the defenses tell of themselves.

    Returns:
        each with pairs of the plain encoder and the defended one, at the last checkpoints. Utility loss is
        1 - defended / clean (Additive Logistic Mechanism, section 5).
    """
    attacks, inferences = final_rows(pooled_rows(report)), final_inferences(report.attribute_inference)
    return tuple(
        model.DefenseRow(
            **vars(entry),
            utility=_utility(report.encoders[entry.target], report.encoders[entry.served]),
            attacks=_pairs(attacks, entry, model.AttackPair, model.Membership),
            attributes=_pairs(inferences, entry, model.AttributePair, model.Inferred),
        )
        for entry in defended
    )


def _pairs(rows: Sequence[Any], entry: model.DefendedEncoder, pair: type[_Pair], side: type[Any]) -> tuple[_Pair, ...]:
    """Rows on the plain and on the defended encoder that are alike otherwise, as what a ``side`` tells of them."""

    def on(encoder: str) -> dict[tuple[Any, ...], Any]:
        here = [row for row in rows if row.target == encoder]
        told = [side(**{part.name: getattr(row, part.name) for part in fields(side)}) for row in here]
        return dict(zip(map(attrgetter(*_ALIKE[pair]), here), told, strict=True))

    clean, defended = on(entry.target), on(entry.served)
    return tuple(
        pair(**dict(zip(_ALIKE[pair], key, strict=True)), clean=reached, defended=defended[key])
        for key, reached in clean.items()
        if key in defended
    )


def _utility(clean: EncoderPart, defended: EncoderPart) -> tuple[model.UtilityPair, ...]:
    """The utility of both encoders: probes on the embedding, and the accuracy of a classifier on unseen images."""
    before, after = measures(clean), measures(defended)
    pairs = {name: (before[name], after[name]) for name in before if name in after}
    return tuple(
        model.UtilityPair(measure=name, clean=one, defended=two, loss=1 - two.value / one.value if one.value else None)
        for name, (one, two) in pairs.items()
    )


def measures(encoder: EncoderPart) -> dict[str, Estimate]:
    """The utility of an encoder of a report: estimates by probe, before them that of a classifier trained here."""
    trained = {} if encoder.classifier is None else {"classifier": encoder.classifier.test_accuracy}
    return trained | ({} if encoder.utility is None else dict(encoder.utility.probes))


def undefended(entries: Sequence[model.DefenseRow]) -> model.DefenseRow:
    """The undefended side of some defenses: the first entry, with every attack that any of them is measured by.

    A defense may be measured without an attack (``without``), which counts on the plain encoder all the same.
    """
    attacks = {attrgetter(*_ALIKE[model.AttackPair])(pair): pair for entry in entries for pair in entry.attacks}
    inferences = {
        attrgetter(*_ALIKE[model.AttributePair])(pair): pair for entry in entries for pair in entry.attributes
    }
    return replace(entries[0], attacks=tuple(attacks.values()), attributes=tuple(inferences.values()))


def known_as(entry: model.DefenseRow, name: str) -> str:
    """A name of a defense in tables and figures, which tell attacks that do not know it from those that do."""
    return name if entry.adaptive else f"{name}, unknown to attacks"


@dataclass(frozen=True, kw_only=True)
class TableRow:
    """An encoder without a defense, or with one, as a line of a table.

    Args:
        name, details: of the defense.
        utility, loss: of the first measure.
        attack: the strongest one by AUC, with its output; accuracy, auc: what it reaches.
        attribute: the accuracy that exceeds guessing most.
    """

    name: str
    details: str
    utility: Estimate | None = None
    loss: float | None = None
    attack: str | None = None
    accuracy: Estimate | None = None
    auc: Estimate | None = None
    attribute: Estimate | None = None


def defense_tables(report: Report) -> list[tuple[str, list[TableRow]]]:
    """Per defended encoder the rows of its table: without a defense, then each with one."""
    return [
        (target, [_row(undefended(entries), "clean"), *(_row(entry, "defended") for entry in entries)])
        for target, entries in grouped(report.defenses, attrgetter("target")).items()
    ]


def _row(entry: model.DefenseRow, side: str) -> TableRow:
    told: dict[str, Any] = {"name": "none", "details": ""}
    if side == "defended":
        method = "" if entry.label == entry.defense else entry.defense
        details = filter(None, (method, settings({**entry.parameters, **entry.numbers})))
        told = {"name": known_as(entry, entry.label), "details": ", ".join(details)}
    for first in entry.utility[:1]:
        told |= {"utility": getattr(first, side), "loss": first.loss if side == "defended" else None}
    if entry.attacks:
        strongest = max(entry.attacks, key=lambda pair: float(getattr(pair, side).auc.value))
        reached = getattr(strongest, side)
        told |= {"attack": f"{strongest.attack}, {strongest.output}", "accuracy": reached.accuracy, "auc": reached.auc}
    if entry.attributes:
        inferred = [getattr(pair, side) for pair in entry.attributes]
        told["attribute"] = max(inferred, key=lambda one: one.accuracy.value - one.majority.value).accuracy
    return TableRow(**told)


def front_of(search: model.Tuning) -> list[model.TrialRow]:
    """The trials that no other one beats, by the utility that they lose."""
    return sorted((row for row in search.rows if row.pareto), key=loss_of)


def loss_of(trial: model.Trial | model.TrialRow) -> float:
    """The utility that a trial loses; a failed one, and the encoder without a defense, have no such number."""
    return trial.utility_loss or 0.0
