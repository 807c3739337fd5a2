"""What a report says of defenses: utility, membership and attributes of every defended encoder beside the plain one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mi_core.report.attributes import final_inferences
from mi_core.report.contents import Row, final_rows, pooled_rows, probes
from mi_core.report.words.numbers import setting

_SAME_ATTACK = ("attack", "output", "settings")
_SAME_ATTRIBUTE = ("attribute", "output", "settings")


def compare_defenses(report: Mapping[str, Any], defended: Sequence[Row]) -> list[Row]:
    """The ``defenses`` part of report.json: for every defended encoder what it leaves of everything measured.

    Args:
        report: with encoders, attacks (``pooled``) and attribute inference.
        defended: ``defense``, ``label``, ``target`` (the encoder defended), ``served`` (its name with the defense),
            ``parameters`` and ``numbers`` (what the defense tells of itself) of each; ``adaptive`` is False where
            attacks do not know it.

    Returns:
        Each entry with ``utility``, ``attacks`` and ``attributes``: pairs ``clean`` and ``defended``, at the last
        checkpoints. Utility loss is 1 - defended / clean (Additive Logistic Mechanism, section 5).
    """
    attacks, inferences = final_rows(pooled_rows(report)), final_inferences(report.get("attribute_inference", []))
    return [
        {
            **entry,
            "utility": _utility(report["encoders"][entry["target"]], report["encoders"][entry["served"]]),
            "attacks": _pairs(attacks, entry, _SAME_ATTACK, ("accuracy", "auc")),
            "attributes": _pairs(inferences, entry, _SAME_ATTRIBUTE, ("accuracy", "majority")),
        }
        for entry in defended
    ]


def _pairs(rows: Sequence[Row], entry: Row, same: Sequence[str], estimates: Sequence[str]) -> list[Row]:
    """Rows on the plain and on the defended encoder that are alike otherwise."""

    def on(encoder: str) -> dict[tuple[Any, ...], Row]:
        return {tuple(row.get(name) for name in same): row for row in rows if row["target"] == encoder}

    clean, defended = on(entry["target"]), on(entry["served"])
    return [
        {name: row[name] for name in same if name in row}
        | {
            side: {name: found[name] for name in estimates if name in found}
            for side, found in (("clean", row), ("defended", defended[key]))
        }
        for key, row in clean.items()
        if key in defended
    ]


def _utility(clean: Row, defended: Row) -> list[Row]:
    """What both encoders are good for: probes on the embedding, and the accuracy of a classifier on unseen images."""
    found = []
    for measure, before in measures(clean).items():
        after = measures(defended).get(measure)
        if after is not None:
            loss = {"loss": 1 - after["value"] / before["value"]} if before["value"] else {}
            found.append({"measure": measure, "clean": before, "defended": after, **loss})
    return found


def measures(encoder: Mapping[str, Any]) -> dict[str, Row]:
    """What an encoder of a report is good for: estimates by probe, before them that of a classifier trained here."""
    classifier = encoder.get("classifier", {}).get("test_accuracy")
    return ({} if classifier is None else {"classifier": classifier}) | probes(encoder.get("utility", {}))


def by_target(report: Mapping[str, Any]) -> dict[str, list[Row]]:
    """The entries of defenses by what they are compared with."""
    found: dict[str, list[Row]] = {}
    for entry in report.get("defenses", []):
        found.setdefault(entry["target"], []).append(entry)
    return found


def undefended(entries: Sequence[Row]) -> Row:
    """What an encoder is without some defenses: the first entry, with every attack that any of them is measured by.

    A defense may be measured without an attack (``without``), which counts on the plain encoder all the same.
    """
    every: Row = dict(entries[0])
    for part, same in (("attacks", _SAME_ATTACK), ("attributes", _SAME_ATTRIBUTE)):
        pairs = {tuple(pair.get(name) for name in same): pair for entry in entries for pair in entry[part]}
        every[part] = list(pairs.values())
    return every


def known_as(entry: Row, name: str) -> str:
    """A name of a defense in tables and figures, which tell attacks that do not know it from those that do."""
    return name if entry.get("adaptive", True) else f"{name}, unknown to attacks"


def defense_tables(report: Mapping[str, Any]) -> list[tuple[str, list[Row]]]:
    """Per defended encoder the rows of its table: without a defense, then each with one.

    A row holds ``name``, ``details``, ``utility`` and ``loss`` of the first measure, and of the strongest attack by AUC
    its name and estimates; ``attribute``: the accuracy that exceeds guessing most.
    """
    return [
        (target, [_row(undefended(entries), "clean"), *(_row(entry, "defended") for entry in entries)])
        for target, entries in by_target(report).items()
    ]


def _row(entry: Row, side: str) -> Row:
    row: Row = (
        {"name": "none", "details": ""}
        if side == "clean"
        else {"name": known_as(entry, entry["label"]), "details": _words(entry)}
    )
    if entry["utility"]:
        measure = entry["utility"][0]
        row |= {"measure": measure["measure"], "utility": measure[side]}
        if side == "defended" and "loss" in measure:
            row["loss"] = measure["loss"]
    if entry["attacks"]:
        strongest = max(entry["attacks"], key=lambda pair: pair[side]["auc"]["value"])
        row |= {"attack": f"{strongest['attack']}, {strongest['output']}", **strongest[side]}
    if entry["attributes"]:
        told = max(
            entry["attributes"], key=lambda pair: pair[side]["accuracy"]["value"] - pair[side]["majority"]["value"]
        )
        row |= {"attribute": told[side]["accuracy"], "inferred": f"{told['attribute']}, {told['output']}"}
    return row


def _words(entry: Row) -> str:
    """Settings and numbers of a defense, as a table tells them."""
    name = [] if entry["label"] == entry["defense"] else [entry["defense"]]
    return ", ".join([*name, *(setting(*one) for one in (entry["parameters"] | entry["numbers"]).items())])
