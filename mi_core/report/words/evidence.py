"""The evidence of attacks on the candidates as a whole and one by one, in words, and the questions beside the verdict.

These are how much attacks find at most, what is memorised, whether a promise of privacy holds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from mi_core.report.model.judgement import Bound, CandidateTest, Evidence, SampleAnswers
from mi_core.report.model.report import DpAudit, Memorisation, Report
from mi_core.report.words.numbers import chance, count, estimate, percent, plain, rate, share, small
from mi_core.report.words.sides import Sides, sides_of
from mi_core.report.words.wording import named_checks
from mi_core.validity.bound import MET, NOT_MET
from mi_core.validity.verdict import CHOICE, LOT, NO_LEAK

BOUND_HEADING = "How much do these attacks find at most?"
BOUND = (
    "This bounds these attacks on these images only: another attack may find more. Each limit has 95 % confidence, and "
    "so has the largest, however many attacks there are (intersection-union test, Berger 1982). Where somebody chose "
    "the two groups, a difference between them moves the limit too, up or down."
)
MEMORISATION = (
    "Memorisation is the difference that training on one image makes to how an encoder answers about this image. 0 is "
    "no difference. To measure it, further encoders were trained for this report, in pairs: each pair shares the "
    "audited images out by chance, half to one and half to the other. So of each pair one encoder saw an image and the "
    "other did not. The numbers describe these encoders and this way of training. They do not say which images the "
    "audited encoder was trained on, and they do not mean that an image could be restored from an encoder."
)
PROMISE = (
    "Some training images were canaries: a coin for each decided whether it was trained on, and the attack guessed the "
    "coins. A promised epsilon limits how often guesses can be right. So the guesses prove a lower bound of the true "
    "epsilon. “Refuted” means that the promise or its implementation is wrong. “Not refuted” does not mean that the "
    "promise holds: a better attack or more canaries may show more."
)
SAMPLED = (
    "A sampled sensitivity is itself computed from the private images. So the promise counts only if the scale of the "
    "noise was chosen without them."
)
HEAD = (
    "An epsilon here is that of the last layer, as if everybody knew the network below. It promises nothing for images "
    "that the network was trained on too."
)
VERDICTS = {"refuted": "refuted", "not-refuted": "not refuted", "no-promise": "no promise"}


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


def bound_sentence(entry: Bound) -> str:
    """The upper limit of one encoder, and whether the bound is kept, if there is one."""
    which = "the only attack" if entry.attacks == 1 else f"the highest of {count(entry.attacks)} attacks"
    said = f"AUC at most {upward(entry.at_most)} (95 %): {entry.attack}, {which} on the {entry.output} output."
    if entry.bound is None or entry.outcome is None:
        return said
    return f"{said} {outcome_sentence(entry, entry.bound, entry.outcome)}"


def outcome_sentence(entry: Bound, bound: float, outcome: str) -> str:
    """What an outcome of `mi_core.validity.bound.OUTCOMES` means for a bound that the AUC is to stay under."""
    if outcome == MET:
        return f"The bound {wanted(bound)} is met."
    if outcome == NOT_MET:
        highest = max(entry.limits, key=lambda row: row.low)
        least = rate(math.floor(1000 * highest.low + 1e-9) / 1000)
        return f"The bound {wanted(bound)} is not met: {highest.attack} has at least {least} (95 %)."
    return f"Whether the bound {wanted(bound)} is met cannot be told with so many images."


def bound_basis(entry: Bound) -> str:
    """What readers have to know beside it; empty: nothing."""
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


def mean_sentence(entry: Memorisation) -> str:
    """The memorisation of all images together."""
    mean = entry.mean
    shown = "This training memorises images" if mean.low > 0 else "None is shown, since the interval contains 0"
    if mean.high < 0:
        shown = "It lies below 0, the opposite of memorisation"
    start = f"Mean memorisation of {count(mean.n)} images: {estimate(mean)}"
    return f"{start}. {shown} ({count(entry.pairs)} pairs of encoders)."


def single_sentence(entry: Memorisation) -> str:
    """The memorisation of single images."""
    images, number = count(entry.mean.n), count(entry.memorised)
    if not entry.memorised:
        return (
            f"None of the {images} images can be called memorised by itself. That does not show that none is: with few "
            "pairs of encoders only strong memorisation of one image stands out."
        )
    return (
        f"{number} of {images} images can be called memorised one by one; about {percent(entry.fdr)} of these {number} "
        "are expected to be errors."
    )


def measurement(entry: Memorisation) -> str:
    """The attack, the encoder and the output of a measurement."""
    settings = "" if entry.settings is None else f" ({entry.settings})"
    told = f"{entry.attack}{settings}, encoders “{entry.shadow}”, {entry.output} output"
    return f"{told}, epoch {entry.epoch}, seed {entry.seed}"


def promise_sentence(entry: DpAudit) -> str:
    """What guesses show of the promise of one encoder."""
    shown = f"this run shows at least {plain(entry.epsilon)} with {percent(entry.confidence)} confidence"
    if entry.promised is None:
        return f"No epsilon is promised; {shown}."
    return f"Promised epsilon {plain(entry.promised.epsilon)}; {shown}: {VERDICTS[entry.verdict]}."


def promise_basis(entry: DpAudit) -> str:
    """What that rests on."""
    kind = "" if entry.kind == "plain" else f"{entry.kind} "
    said = [
        f"{count(entry.correct)} of {count(entry.guesses)} guesses right, on {count(entry.canaries)} {kind}canaries; "
        f"delta {chance(entry.delta)}."
    ]
    if len(entry.tried) > 1:
        said.append(f"Best of {len(entry.tried)} numbers of guesses fixed before, corrected for their number.")
    if entry.family == "approximate":
        said.append("The bound is that of any mechanism.")
    if entry.mu is not None:
        said.append(f"As Gaussian differential privacy: mu of at least {plain(entry.mu)}.")
    promised = entry.promised
    if promised is not None and promised.replaced is not None:
        said.append(
            f"The defense is set to an epsilon of {plain(promised.replaced)} for a replaced image. A coin leaves an "
            f"image out: of that its noise promises {plain(promised.epsilon)}."
        )
    if promised is not None and promised.gamma is not None:
        said.append(f"The defense promises its epsilon for random pairs of data sets only. {SAMPLED}")
    if entry.any_time_p_value is not None:
        said.append(
            "By bets on one coin after the other, valid whenever you stop adding runs: "
            f"p = {small(entry.any_time_p_value)}."
        )
    return " ".join([*said, f"With every guess right, the run would show {plain(entry.most)}."])
