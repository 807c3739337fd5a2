"""Names of the two groups of images that attacks tell apart.

Where the truth is known they are members and non-members. Where somebody asks whether images of hers were used, they
are her images and control images: nobody knows who is a member, so accuracy, precision and recall do not exist.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mi_core.records import Estimate
from mi_core.report.model.attacks import PooledRow
from mi_core.report.model.defenses import Inferred, Membership
from mi_core.report.model.report import Report
from mi_core.report.words.numbers import count, estimate, percent, share


@dataclass(frozen=True)
class Sides:
    """The words for both groups.

    Args:
        known: whether it is known who is a member.
        inside, outside: the two groups.
        candidates, controls: the same, where the truth is not used.
        one, other: one image of each.
    """

    known: bool
    inside: str
    outside: str
    candidates: str
    controls: str
    one: str
    other: str

    def counted(self, n: int) -> str:
        """So many images of the first group.

        Example:
            >>> _KNOWN.counted(2), _ASKED.counted(1)
            ('2 members', 'your 1 image')
        """
        return f"{count(n)} {self.inside}" if self.known else f"your {count(n)} {'image' if n == 1 else 'images'}"


_KNOWN = Sides(
    True, "members", "non-members", "candidates", "controls", "one image it was trained on", "one it was not trained on"
)
_ASKED = Sides(
    False, "your images", "control images", "your images", "control images", "one of your images", "one control image"
)


def sides_of(report: Report) -> Sides:
    """The words of a report."""
    return sides_by(report.membership)


def sides_by(membership: str | None) -> Sides:
    """The words where it is ``asked`` who is a member, or ``known``, as where nothing is said.

    Example:
        >>> sides_by("asked").inside, sides_by(None).inside
        ('your images', 'members')
    """
    return _ASKED if membership == "asked" else _KNOWN


def measured_by(rows: Iterable[PooledRow | Membership | Inferred]) -> tuple[str, str]:
    """The estimate by which rows are compared, and its name: accuracy where every row has one, else the AUC."""
    return ("accuracy", "accuracy") if all(row.accuracy is not None for row in rows) else ("auc", "AUC")


def unsupported(sides: Sides) -> str:
    """The meaning of a dagger beside a rate."""
    return f"too few {sides.outside} for this rate"


def rate_or_share(entry: Estimate, sides: Sides) -> str:
    """The estimate under `share_found`: a rate of an attack, or a share of the user's images.

    Example:
        >>> entry = Estimate(0.56, 0.514, 0.61, 440)
        >>> rate_or_share(entry, _KNOWN), rate_or_share(entry, _ASKED)
        ('.560 [.51, .61]', '56 % [51.4 %, 61 %]')
    """
    return estimate(entry) if sides.known else share(entry)


def share_found(alpha: str | float, sides: Sides) -> str:
    """The true-positive rate at a false-positive rate, in words.

    Example:
        >>> share_found("0.01", _KNOWN), share_found("0.01", _ASKED)
        ('TPR at 1 % FPR', 'above 99 % of controls')
    """
    return f"TPR at {percent(alpha)} FPR" if sides.known else f"above {percent(1 - float(alpha))} of controls"


def glossary(sides: Sides) -> dict[str, str]:
    """Term to meaning, with the report's words for the two groups."""
    found = {
        "Encoder": "The model under audit. It turns an image into a list of numbers, an embedding.",
        "Attack": "A test that asks the encoder about an image and judges from its answers or weights whether the "
        "image was used in training. It breaks into nothing.",
        "Leak": "The encoder treats images it was trained on differently, so an attack recognises them.",
        "AUC": f"The chance that the attack gives {sides.one} a higher score than {sides.other}. Guessing gives .5; 1 "
        "separates the two groups completely.",
        "95 % interval": "The range in brackets covers the true value in 19 of 20 audits with other images of "
        "the same kind.",
        "n": "The number of images that a number rests on.",
        "Output": "Where the embedding is read: from the backbone, the body of the encoder, or from the projection, a "
        "small head on top of it that is used in training.",
        "Seed": "The number that all random choices follow from. Another seed is another draw of images.",
        "Membership score": "The number that an attack gives to an image. Higher means more likely used in training.",
        "False-positive rate (FPR)": f"The share of {sides.outside} that the attack wrongly calls used.",
        "Controls": "Images that were surely not used. Checks use them: a blind classifier sees files and pixels and "
        "never asks the encoder; reference encoders, which did not see the image, show how the groups differ anyway.",
        "Shadow encoder": "An encoder that the attacker trains on own images. Its training images are known, so the "
        "attack learns from it what being used looks like.",
        "p-value": "The chance of scores so high, or higher, if none of the images was used. Small means surprising.",
        "Holm": "A p-value made larger because several attacks were tried.",
        "q-value": "The share of errors to expect if this image and all above it are flagged.",
        "Posterior": "The probability that this image was used, given its score and the share used.",
        "Hedges' g": f"How far {sides.candidates} score above {sides.controls}, in standard deviations.",
    }
    if sides.known:
        found["TPR at 1 % FPR"] = "The share of members found while 1 % of the non-members are wrongly flagged."
        found["Precision"] = "The share of true members among the images that the attack calls used."
        found["Recall"] = "The share of members that the attack finds."
    return found


def hint(column: str, terms: dict[str, str]) -> str:
    """The meaning of a column's title; empty where it explains itself.

    Example:
        >>> hint("TPR at 0.1 % FPR", {"TPR at 1 % FPR": "The share found at 1 % FPR."})
        'The share found at 0.1 % FPR.'
        >>> hint("Queries", {})
        ''
    """
    if column.startswith("TPR at "):
        rate = column.removeprefix("TPR at ").removesuffix(" FPR")
        return terms["TPR at 1 % FPR"].replace("1 %", rate)
    names = {"p": "p-value", "q": "q-value", "Its AUC": "AUC", "Effect (Hedges' g)": "Hedges' g"}
    names["False-positive rate"] = "False-positive rate (FPR)"
    return terms.get(names.get(column, column), "")
