"""The promise of several encoders together, in words."""

from __future__ import annotations

from mi_core.report.model.promises import ComposedEncoder, Composition
from mi_core.report.words.dp_audit import SAMPLED, epsilon
from mi_core.report.words.numbers import chance, count

MEANING = (
    "Each of these encoders promises differential privacy on its own. Whoever has all of them learns more about an "
    "image that all were trained on, so together they promise less. The promise is about the images of the last "
    "layer's training, given the rest of the encoder. An encoder of the same images that promises nothing, published "
    "beside them, voids it."
)
MECHANISMS = {"gaussian": "Gaussian noise", "sampled-gaussian": "DP-SGD", "unknown": "its epsilon and delta alone"}
METHODS = {"gaussian": "squares added", "numerical": "privacy losses", "sum": "plain sum"}
PAIRS = {"replace-one": "one image replaced", "leave-one-out": "one image there or not"}
_MOST_NAMES = 4


def sentence(entry: Composition) -> str:
    """The promise of a set of encoders."""
    names = [f"“{row.encoder}”" for row in entry.encoders]
    if len(names) > _MOST_NAMES:
        named = f"these {count(len(names))} encoders"
    else:
        named = f"{', '.join(names[:-1])} and {names[-1]}"
    who = f"Whoever publishes {named} together promises"
    if entry.epsilon is None:
        sampled = (entry.gamma or 0.0) >= 1
        what = "the chances that their sampled sensitivities fail" if sampled else "their deltas"
        return f"{who} nothing: {what} add up to 1 or more."
    told, weakest = f"{who} epsilon {epsilon(entry.epsilon)} at delta {chance(entry.delta)}", _weakest(entry)
    return f"{told}, not epsilon {epsilon(weakest)}." if entry.epsilon > weakest else f"{told}."


def basis(entry: Composition) -> str:
    """The basis of the promise."""
    told = f"Images in the training of all of them: {count(entry.images)}."
    if entry.epsilon is not None:
        told += f" {_method(entry)} The delta is the sum of the promised ones."
        if entry.epsilon <= _weakest(entry):
            told += (
                f" It is no larger than that of one alone only because its delta is larger, {chance(entry.delta)}, "
                "or because it is computed more tightly. Whoever publishes more never promises more."
            )
    if len(entry.seeds) > 1:
        told += f" Of {len(entry.seeds)} seeds, seed {entry.seed} promises least, and is shown."
    told += f" Adjacent data sets: {PAIRS[entry.adjacency]}."
    if any(row.converted is not None for row in entry.encoders):
        told += (
            f" Promises about {PAIRS['leave-one-out']} were converted: replacing an image takes two such steps, and "
            "weakens them."
        )
    if entry.gamma is not None and 0 < entry.gamma < 1:
        told += " Sampled sensitivities hold for random pairs of data sets: "
        told += (
            "for those of the images that all have in common, no chance that the promise fails is known."
            if entry.apart
            else f"the promise fails with a chance of at most {chance(entry.gamma)}."
        )
        told += f" {SAMPLED}"
    if entry.hint is not None:
        better = "A promise" if entry.epsilon is None else "A smaller epsilon"
        told += f" {better} may hold; to compute it: {entry.hint}."
    return told


def pairs(row: ComposedEncoder) -> str:
    """The pairs of data sets that the promise of one encoder is about."""
    return ", or ".join(PAIRS[adjacency] for adjacency in row.adjacencies)


def converted(row: ComposedEncoder) -> str:
    """The promise of one encoder as it was composed; empty: as it stands."""
    if row.converted is None:
        return ""
    return f"as composed: epsilon {epsilon(row.converted.epsilon)}, delta {chance(row.converted.delta)}"


def _method(entry: Composition) -> str:
    if entry.method == "sum":
        return "The epsilon is the plain sum."
    how = "exactly: Gaussian noise adds in squares" if entry.method == "gaussian" else "from the privacy losses"
    plain = 0.0 if entry.basic is None else entry.basic
    return f"The epsilon is computed {how}; the plain sum is {epsilon(plain)}."


def _weakest(entry: Composition) -> float:
    """The largest epsilon that one encoder alone promises."""
    return max(float(row.epsilon) for row in entry.encoders)
