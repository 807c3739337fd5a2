"""The evidence of attacks on the candidates as a whole and one by one, in words."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mi_core.report.model.judgement import CandidateTest, Evidence, SampleAnswers
from mi_core.report.model.report import Report
from mi_core.report.words.numbers import count, estimate, percent, rate, share, small
from mi_core.report.words.sides import Sides, sides_of
from mi_core.report.words.wording import named_checks
from mi_core.validity.verdict import CHOICE, LOT, NO_LEAK


def heading(sides: Sides) -> str:
    """The title of what is said of the candidates."""
    return "Candidates against controls" if sides.known else "Your images against the control images"


def believed(report: Report, evidence: Evidence) -> str:
    """The assumption without which p-values and flags mean nothing, and how far it was checked."""
    sides = sides_of(report)
    blind = f"AUC {estimate(evidence.blind_auc)}, n {count(evidence.blind_auc.n)}"
    if not evidence.exchangeable and report.validity is not None:
        failed = named_checks(report.validity, report.validity.differing)
        told = ", ".join(f"{telling.feature} (AUC {rate(telling.auc, 2)})" for telling in evidence.telling)
        said = (
            f"{sides.candidates} and {sides.controls} differ by themselves (they are not exchangeable): "
            f"{failed} can tell them apart. The largest single differences: {told}. A p-value would measure how the "
            "groups differ, not use, so the report gives none and flags no image. Choose controls that were made, "
            f"saved and selected like {sides.candidates}."
        )
        return said[0].upper() + said[1:]
    if evidence.withheld_because == NO_LEAK:
        return (
            f"{sides.candidates[0].upper()}{sides.candidates[1:]} were chosen, and the verdict is not leak. So the "
            "report gives no p-value, no share used and no flag: somebody would read them as a leak."
        )
    bursts = evidence.bursts
    scenes = (
        ""
        if bursts is None
        else f" {count(bursts.images)} images seem to be of {count(bursts.scenes)} scenes, and the verdict counts "
        "each scene as one; the p-values do not."
    )
    shares = any(row.share is not None for row in evidence.tests)
    known = " The share used also assumes that the known members held back are like those used." if shares else ""
    if report.judged.by == LOT:
        return (
            f"By lot: {sides.candidates} and {sides.controls} were drawn from one pool, so nothing but chance and "
            f"training tells them apart. A classifier given only files and pixels: {blind}."
        )
    return (
        f"A classifier given only files and pixels could not tell the two groups apart ({blind}; at most about "
        f"{rate(evidence.blind_auc.high, 2)}). A better one might. This check cannot see differences outside the "
        f"pixels, such as date, rights or popularity. p-values and flags hold only if {sides.controls} are "
        f"surely unused and otherwise like {sides.candidates} (exchangeable): from the same source, drawn in the same "
        f"way.{known}{scenes}"
    )


def dataset_sentence(row: CandidateTest, sides: Sides) -> str:
    """The result of one attack's test of the candidates as a whole: the meaning first, then the numbers."""
    said = []
    if row.share is not None:
        said.append(f"share of {sides.candidates} used: {share(row.share)}")
    if row.least_share:
        least = percent(round(row.least_share, 3))
        said.append(f"at least {least} of {sides.candidates} were used (95 % confidence)")
    if row.reversed_p is not None:
        said.append(
            f"{sides.candidates} score lower than {sides.controls} (p in that direction {small(row.reversed_p)}): no "
            "evidence"
        )
    if row.direction == "mixed":
        said.append("the direction changes from seed to seed")
    tests = [f"Welch {small(row.welch_p)}"]
    if row.permutation_p is not None and row.permutations is not None:
        tests.append(f"permutation {small(row.permutation_p)} with {count(row.permutations)} draws")
    if row.family > 1:
        tests.append(f"corrected for {row.family} attacks by Holm's method")
    said.append(
        f"if none was used, scores so high have a chance of {small(row.holm_p)} (p of {row.attack}: "
        f"{small(row.p)}, {', '.join(tests)})"
    )
    if row.effect is not None:
        said.append(f"the groups lie {estimate(row.effect)} standard deviations apart (Hedges' g)")
    if row.needed is not None and row.needed.value is not None:
        units = "candidates" if row.groups is None else "groups of candidates"
        said.append(
            f"if that is real, {count(row.needed.value)} {units}, with as many controls for each as here, give "
            "p < .01 in four of five audits"
        )
    return " ".join(f"{part[0].upper()}{part[1:]}." for part in said)


def power_sentence(report: Report, evidence: Evidence) -> str:
    """The smallest effect that an audit of this size can see; empty where the groups differ by themselves."""
    if not evidence.exchangeable:
        return ""
    units = "groups of images" if evidence.grouped else "images"
    size = f"{count(evidence.n_candidate)} against {count(evidence.n_control)} {units}"
    floor = f"Rates of false alarms below {percent(round(evidence.fpr_floor, 4))} cannot be measured."
    sides = sides_of(report)
    candidates = f"the {sides.candidates}" if sides.known else sides.candidates
    told = [
        f"{rate(detectable.auc)} or more if {percent(detectable.used)} of {candidates} were used"
        for detectable in evidence.power
        if detectable.auc is not None
    ]
    if not told:
        return f"{size} are too few for a leak of any AUC to be called one in four of five cases. {floor}"
    references = "" if report.judged.by == LOT else " with trained references"
    none = [percent(detectable.used) for detectable in evidence.power if detectable.auc is None]
    never = f"; if {none[0]} were used, no AUC is enough" if none else ""
    return (
        f"An audit of this size ({size}){references} says leak in four of five cases where the AUC of those used is "
        f"{', '.join(told)}{never}. Weaker effects are usually missed. {floor}"
    )


def samples_sentence(samples: SampleAnswers, sides: Sides) -> str:
    """How many single candidates were flagged; where none could be by itself, how many it would take."""
    at = f"false discovery rate {percent(samples.fdr)}"
    flagged, whole = samples.flagged, samples.n_candidate
    among = f"{count(whole)} candidates" if sides.known else sides.counted(whole)
    wrong = f"about 1 in {round(1 / samples.fdr)} flags is an error" if flagged > 1 else "a flag may be an error"
    are = "is" if flagged == 1 else "are"
    said = f"{count(flagged)} of {among} {are} flagged ({f'{wrong}: ' if flagged else ''}{at})."
    if not flagged and samples.least_flags > 1 and samples.needed_controls is not None:
        said += (
            f" With {count(samples.n_control)} controls no single image can be flagged alone; at least "
            f"{count(samples.least_flags)} must stand out together. To flag one alone you need about "
            f"{count(samples.needed_controls)} controls."
        )
    if samples.grouped:
        said += " Each group of controls counts once. The rate holds for candidates of different groups."
    return said


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
    evidence, sides = report.evidence, sides_of(report)
    if report.judged.verdict != "leak" or evidence is None or not evidence.samples or sides.known:
        return None
    samples, test = evidence.samples[0], evidence.primary_test
    named = 100 * samples.flagged // samples.n_candidate
    least = 0.0 if test is None else test.least_share or 0.0
    used = math.floor(100 * least + 1e-9)
    if not named and not used:
        return None
    said = [f"at least {used} were used (95 % confidence)"] if used else []
    wrong = f" (about 1 in {round(1 / samples.fdr)} of those by error)"
    few = "fewer than 1" if samples.flagged else ""
    said.append(f"{named or few} can be named{wrong}" if named or few else "none of them can be named")
    words = f"Of every 100 of your images, {', and '.join(said)}."
    if report.judged.by == CHOICE:
        words = f"If nothing but training sets the groups apart: of{words[2:]}"
    return Dots(named, max(0, used - named), words)
