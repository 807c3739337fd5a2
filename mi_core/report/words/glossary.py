"""The terms of statistics that a report uses, in a sentence or two each."""

from __future__ import annotations

from mi_core.report.words.sides import Sides


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
