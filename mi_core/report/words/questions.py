"""Questions beside the verdict, in words: how much attacks find at most, what is memorised, whether a promise holds."""

from __future__ import annotations

import math

from mi_core.report.model.judgement import Bound
from mi_core.report.model.report import DpAudit, Memorisation
from mi_core.report.words.numbers import chance, count, estimate, percent, plain, rate, small
from mi_core.validity.bound import MET, NOT_MET

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
