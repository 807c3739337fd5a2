"""The audit of a promise of differential privacy, in words."""

from __future__ import annotations

from mi_core.report.model.promises import DpAudit
from mi_core.report.words.numbers import chance, count, percent, plain, small

MEANING = (
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


def epsilon(value: float) -> str:
    """An epsilon as short as it is told apart.

    Example:
        >>> epsilon(2.0), epsilon(0.68349), epsilon(0.0)
        ('2', '0.683', '0')
    """
    return plain(value)


def sentence(entry: DpAudit) -> str:
    """The result of one encoder."""
    shown = f"this run shows at least {epsilon(entry.epsilon)} with {percent(entry.confidence)} confidence"
    if entry.promised is None:
        return f"No epsilon is promised; {shown}."
    return f"Promised epsilon {epsilon(entry.promised.epsilon)}; {shown}: {VERDICTS[entry.verdict]}."


def basis(entry: DpAudit) -> str:
    """The basis of the result."""
    told = f"{count(entry.correct)} of {count(entry.guesses)} guesses right, on {count(entry.canaries)} "
    told += f"{'' if entry.kind == 'plain' else entry.kind + ' '}canaries; delta {chance(entry.delta)}."
    if len(entry.tried) > 1:
        told += f" Best of {len(entry.tried)} numbers of guesses fixed before, corrected for their number."
    if entry.family == "approximate":
        told += " The bound is that of any mechanism."
    if entry.mu is not None:
        told += f" As Gaussian differential privacy: mu of at least {epsilon(entry.mu)}."
    promised = entry.promised
    if promised is not None and promised.replaced is not None:
        told += (
            f" The defense is set to an epsilon of {epsilon(promised.replaced)} for a replaced image. A coin leaves "
        )
        told += f"an image out: of that its noise promises {epsilon(promised.epsilon)}."
    if promised is not None and promised.gamma is not None:
        told += f" The defense promises its epsilon for random pairs of data sets only. {SAMPLED}"
    if entry.any_time_p_value is not None:
        told += (
            f" By bets on one coin after the other, valid whenever you stop adding runs: "
            f"p = {small(entry.any_time_p_value)}."
        )
    return told + f" With every guess right, the run would show {epsilon(entry.most)}."
