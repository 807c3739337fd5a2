"""What attacks say of the candidates as a whole and one by one: over several seeds for report.json, and in words.

Every seed draws its own controls and its own training, but the candidates are the same: p-values of several seeds
depend on each other and are combined as such (`mi_core.validity.dataset.cauchy_combination`), never averaged. The
p-value of an attack is the larger of Welch's and of the permutation test's, so that both must agree; Holm's adjustment
is over all attacks on one target.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mi_core.metrics.pooled import pool, together
from mi_core.records import Estimate
from mi_core.report.contents import Row
from mi_core.report.words.numbers import count, estimate, percent, rate, share, small
from mi_core.report.words.sides import Sides, sides_of
from mi_core.validity.multiple_testing import cauchy_combination, holm
from mi_core.validity.verdict import CHOICE, LOT, NO_LEAK

_KEY = ("attack", "target", "output", "reference", "settings")


def combine_tests(
    entries: Sequence[Mapping[str, Any]],
    *,
    overlap: float = 0.0,
    known_overlap: float = 0.0,
    planned: Mapping[str, int] = {},
) -> list[Row]:
    """One row per attack, target, output, reference and settings from those of every seed.

    Args:
        entries: each with the key's fields, ``seed``, ``test``: a `DatasetTest` as JSON, and optionally ``least_share``
            and ``share``; ``primary`` where it is so.
        overlap: as `mi_core.metrics.pooled.pool`.
        known_overlap: the same of the known members that ``share`` rests on beside the others.
        planned: by target, attacks that ever ran on these images: a family counts as many at least.

    Returns:
        Rows with ``p`` and ``holm_p``, ``welch_p``, ``permutation_p`` where every seed has one, ``direction`` (higher,
        lower or mixed), ``effect`` pooled, ``needed`` and ``least_share`` as the most cautious seed has them.

    Raises:
        ConfigError: a p-value is not within [0, 1].
    """
    found: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for entry in entries:
        found.setdefault(tuple(entry.get(name) for name in _KEY), []).append(entry)
    rows = [_row(mine, overlap, known_overlap) for mine in found.values()]
    for target in dict.fromkeys(row["target"] for row in rows):
        family = [row for row in rows if row["target"] == target]
        size = max(planned.get(target, 0), len(family))
        for row, adjusted in zip(family, holm([row["p"] for row in family], family=size), strict=True):
            row |= {"holm_p": adjusted, "family": size}
    return rows


def _row(mine: Sequence[Mapping[str, Any]], overlap: float, known_overlap: float) -> Row:
    tests = [entry["test"] for entry in mine]
    row: Row = {name: mine[0][name] for name in (*_KEY, "primary") if name in mine[0]}
    row |= {"seeds": len(mine), "n": together([test["candidates"] + test["controls"] for test in tests], overlap)}
    if all("candidate_groups" in test for test in tests):
        row["groups"] = together([test["candidate_groups"] + test["control_groups"] for test in tests], overlap)
    row["welch_p"] = cauchy_combination([test["welch_p"] for test in tests])
    if all("permutation_p" in test for test in tests):
        row["permutation_p"] = cauchy_combination([test["permutation_p"] for test in tests])
        row["permutations"] = min(test["permutations"] for test in tests)
    row["p"] = max(row["welch_p"], row.get("permutation_p", 0.0))
    directions = {test["direction"] for test in tests}
    row["direction"] = directions.pop() if len(directions) == 1 else "mixed"
    if row["direction"] == "lower":
        row["reversed_p"] = cauchy_combination([test["reversed_p"] for test in tests])
    if all("effect" in test for test in tests):
        effects = [Estimate.from_json(test["effect"]) for test in tests]
        row["effect"] = pool(effects, overlap=overlap).as_json()
    needed = [test.get("needed", {}) for test in tests]
    known = [part for part in ("value", "low", "high") if all(part in one for one in needed)]
    if known:
        row["needed"] = {part: max(one[part] for one in needed) for part in known}
    if all("least_share" in entry for entry in mine):
        row["least_share"] = min(entry["least_share"]["low"] for entry in mine)
    if all("share" in entry for entry in mine):
        shares = [Estimate.from_json(entry["share"]) for entry in mine]
        row["share"] = pool(shares, overlap=max(overlap, known_overlap)).as_json()
    return row


def heading(sides: Sides) -> str:
    """The title of what is said of the candidates."""
    return "Candidates against controls" if sides.known else "Your images against the control images"


def believed(report: Mapping[str, Any]) -> str:
    """What a reader must believe for p-values and flags to mean anything, and how far that was checked."""
    found, sides = report["evidence"], sides_of(report)
    blind = f"AUC {estimate(found['blind_auc'])}, n {count(found['blind_auc']['n'])}"
    if not found["exchangeable"]:
        names = {
            "blind_auc": "a classifier given only files and pixels",
            "semantic_auc": "a classifier on what reference encoders see",
            "control_auc": "the same attack on reference encoders that did not see the image",
        }
        failed = [
            f"{words} (AUC {estimate(found[name])}, n {count(found[name]['n'])})"
            for name, words in names.items()
            if name in found and found[name]["ci95"][0] > 0.5
        ]
        told = ", ".join(f"{one['feature']} (AUC {rate(one['auc'], 2)})" for one in found["telling"])
        said = (
            f"{sides.candidates} and {sides.controls} differ by themselves (they are not exchangeable): "
            f"{' and '.join(failed)} can tell them apart. The largest single differences: {told}. A p-value would "
            "measure how the groups differ, not use, so the report gives none and flags no image. Choose controls that "
            f"were made, saved and selected like {sides.candidates}."
        )
        return said[0].upper() + said[1:]
    if found.get("withheld_because") == NO_LEAK:
        return (
            f"{sides.candidates[0].upper()}{sides.candidates[1:]} were chosen, and the verdict is not leak. So the "
            "report gives no p-value, no share used and no flag: somebody would read them as a leak."
        )
    burst = found.get("bursts")
    scenes = (
        ""
        if burst is None
        else f" {count(burst['images'])} images seem to be of {count(burst['scenes'])} scenes, and the verdict counts "
        "each scene as one; the p-values do not."
    )
    shares = any("share" in row for row in found.get("tests", []))
    known = " The share used also assumes that the known members held back are like those used." if shares else ""
    if report.get("validity", {}).get("by") == LOT:
        return (
            f"By lot: {sides.candidates} and {sides.controls} were drawn from one pool, so nothing but chance and "
            f"training tells them apart. A classifier given only files and pixels: {blind}."
        )
    return (
        f"A classifier given only files and pixels could not tell the two groups apart ({blind}; at most about "
        f"{rate(found['blind_auc']['ci95'][1], 2)}). A better one might. This check cannot see differences outside the "
        f"pixels, such as date, rights or popularity. p-values and flags hold only if {sides.controls} are "
        f"surely unused and otherwise like {sides.candidates} (exchangeable): from the same source, drawn in the same "
        f"way.{known}{scenes}"
    )


def dataset_sentence(row: Row, sides: Sides) -> str:
    """What the test of one attack says of the candidates as a whole: the meaning first, then the numbers."""
    said = []
    if "share" in row:
        said.append(f"share of {sides.candidates} used: {share(row['share'])}")
    if row.get("least_share"):
        least = percent(round(row["least_share"], 3))
        said.append(f"at least {least} of {sides.candidates} were used (95 % confidence)")
    if row["direction"] == "lower":
        reversed_p = small(row["reversed_p"])
        said.append(
            f"{sides.candidates} score lower than {sides.controls} (p in that direction {reversed_p}): no evidence"
        )
    if row["direction"] == "mixed":
        said.append("the direction changes from seed to seed")
    tests = [f"Welch {small(row['welch_p'])}"]
    if "permutation_p" in row:
        tests.append(f"permutation {small(row['permutation_p'])} with {count(row['permutations'])} draws")
    if row["family"] > 1:
        tests.append(f"corrected for {row['family']} attacks by Holm's method")
    said.append(
        f"if none was used, scores so high have a chance of {small(row['holm_p'])} (p of {row['attack']}: "
        f"{small(row['p'])}, {', '.join(tests)})"
    )
    if "effect" in row:
        said.append(f"the groups lie {estimate(row['effect'])} standard deviations apart (Hedges' g)")
    if "value" in row.get("needed", {}):
        units = "groups of candidates" if "groups" in row else "candidates"
        said.append(
            f"if that is real, {count(row['needed']['value'])} {units}, with as many controls for each as here, give "
            "p < .01 in four of five audits"
        )
    return " ".join(f"{part[0].upper()}{part[1:]}." for part in said)


def power_sentence(report: Mapping[str, Any]) -> str:
    """What an audit of this size can see at all; empty where the groups differ by themselves."""
    found = report["evidence"]
    if not found["exchangeable"]:
        return ""
    units = "groups of images" if found["grouped"] else "images"
    size = f"{count(found['n_candidate'])} against {count(found['n_control'])} {units}"
    floor = f"Rates of false alarms below {percent(round(found['fpr_floor'], 4))} cannot be measured."
    sides = sides_of(report)
    candidates = f"the {sides.candidates}" if sides.known else sides.candidates
    told = [
        f"{rate(one['auc'])} or more if {percent(one['used'])} of {candidates} were used"
        for one in found["power"]
        if "auc" in one
    ]
    if not told:
        return f"{size} are too few for a leak of any AUC to be called one in four of five cases. {floor}"
    references = "" if report.get("validity", {}).get("by") == LOT else " with trained references"
    none = [percent(one["used"]) for one in found["power"] if "auc" not in one]
    never = f"; if {none[0]} were used, no AUC is enough" if none else ""
    return (
        f"An audit of this size ({size}){references} says leak in four of five cases where the AUC of those used is "
        f"{', '.join(told)}{never}. Weaker effects are usually missed. {floor}"
    )


def samples_sentence(samples: Mapping[str, Any], sides: Sides) -> str:
    """How many single candidates were flagged; where none could be by itself, how many it would take."""
    at = f"false discovery rate {percent(samples['fdr'])}"
    flagged, several = samples["flagged"], samples["least_flags"] > 1
    whole = samples["n_candidate"]
    among = f"{count(whole)} candidates" if sides.known else sides.counted(whole)
    wrong = f"about 1 in {round(1 / samples['fdr'])} flags is an error" if flagged > 1 else "a flag may be an error"
    said = f"{count(flagged)} of {among} {_are(flagged)} flagged ({f'{wrong}: ' if flagged else ''}{at})."
    if not flagged and several:
        said += (
            f" With {count(samples['n_control'])} controls no single image can be flagged alone; at least "
            f"{count(samples['least_flags'])} must stand out together. To flag one alone you need about "
            f"{count(samples['needed_controls'])} controls."
        )
    if samples.get("grouped"):
        said += " Each group of controls counts once. The rate holds for candidates of different groups."
    return said


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


@dataclass(frozen=True)
class Dots:
    """A picture of 100 of the candidates: so many can be named, so many more were used, of the others nothing is known.

    Args:
        named, used: numbers of 100, ``used`` without those that are named.
        words: the same as a sentence.
    """

    named: int
    used: int
    words: str

    @property
    def kinds(self) -> list[str]:
        """What each of the 100 dots is: ``named``, ``used`` or ``unknown``."""
        return ["named"] * self.named + ["used"] * self.used + ["unknown"] * (100 - self.named - self.used)


def dots(report: Mapping[str, Any]) -> Dots | None:
    """The picture of a report; None where there is no leak or nothing is known of single candidates.

    Shares are rounded down. Named images hold errors, so their number bounds nothing: where it is above the share
    that was used at the least, that share stands in the words as it is.
    """
    found = report.get("evidence", {})
    samples = found.get("samples", [])
    sides = sides_of(report)
    if report.get("validity", {}).get("verdict") != "leak" or not samples or sides.known:
        return None
    named = 100 * samples[0]["flagged"] // samples[0]["n_candidate"]
    least = next((row.get("least_share", 0.0) for row in found.get("tests", []) if row.get("primary")), 0.0)
    used = math.floor(100 * least + 1e-9)
    if not named and not used:
        return None
    said = [f"at least {used} were used (95 % confidence)"] if used else []
    wrong = f" (about 1 in {round(1 / samples[0]['fdr'])} of those by error)"
    few = "fewer than 1" if samples[0]["flagged"] else ""
    said.append(f"{named or few} can be named{wrong}" if named or few else "none of them can be named")
    words = f"Of every 100 of your images, {', and '.join(said)}."
    if report["validity"].get("by") == CHOICE:
        words = f"If nothing but training sets the groups apart: of{words[2:]}"
    return Dots(named, max(0, used - named), words)
