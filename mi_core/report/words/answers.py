"""The answers of a report, by the verdict and its reason: headlines, what follows, and the same with numbers.

Names in braces are filled in by `mi_core.report.words.wording`.
"""

from __future__ import annotations

from mi_core.validity.verdict import CHOICE, LOT

_NO_ANSWER = {
    "no-checks": "No answer: a check was not made without which nothing may be called a leak.",
    "untrained-references": "No answer: the attack was compared with untrained encoders only.",
    "after-looking": "No answer: what is judged was chosen after looking.",
    "encoder-broken": "No answer: with these views the encoder does not recognise images.",
    "another-attack": "No answer: the attack that was registered first found nothing, but {other} found something.",
    "close": "No answer: the groups could not be told apart from groups that differ by themselves.",
}
HEADLINES = {  # whether the truth is known, what is said
    True: {
        "by-lot": "Yes: this encoder reveals which images it was trained on.",
        "robust": "This encoder treats the members differently than the non-members, more than any check explains.",
        "no-evidence": "No evidence that this encoder reveals its training images.",
        "confounded": "No answer: the two groups of images differ by themselves.",
        **_NO_ANSWER,
    },
    False: {
        "by-lot": "Yes: the encoder was trained on images that the lot drew.",
        "robust": "A strong sign, but no proof: the encoder treats your images differently than the control images, "
        "more than any check explains.",
        "no-evidence": "There is no evidence that they were.",
        "confounded": "No answer: your images and the control images differ by themselves.",
        **_NO_ANSWER,
    },
}
BELIEVED = "The answer holds only if the control images come from the same source as yours and were never used."
CHANCE = "If training had changed nothing, a lot would give so clear a result with a chance of {}."
STRONGER = (
    "To explain this without training, a hidden difference between the two groups would have to be at least {} times "
    "as strong as anything that the checks saw, or could have missed with so many images."
)
GROUPS = "How the groups came about"
KINDS = {
    LOT: "By lot: chance alone decided which images were trained on. So a difference that chance does not "
    "explain comes from training.",
    CHOICE: "By choice: somebody chose the two groups. So no test can prove that images were used (Zhang, "
    "Das, Kamath and Tramer, SaTML 2025); a difference that nobody looked for may stand behind any result.",
}
_NO_PROBABILITY = "That is not the probability that an image was used."
_SURE, _RESTS, _SILENT, _NEXT = "How sure", "What it rests on", "What it does not say", "What to do"
PARTS = {
    "by-lot": (
        ("", "{proved}"),
        (_SURE, f"{{pair}} {_NO_PROBABILITY} {{chance}}"),
        (_RESTS, "{rests}"),
        (_SILENT, "{limits}"),
    ),
    "robust": (
        ("", "{stronger}"),
        (_SURE, f"{{pair}} {_NO_PROBABILITY} {{compared}}"),
        (_RESTS, "{rests}"),
        (_SILENT, "{limits}"),
    ),
    "no-evidence": (
        (_SURE, "{pair} {unseen}"),
        (_RESTS, "{rests}"),
        (_SILENT, "This does not prove that {opposite}."),
    ),
    "confounded": (
        ("Why", "{compared} Whatever an attack finds may come from how the groups differ, not from training. {lower}"),
        (_RESTS, "{based}"),
        (_SILENT, "This says neither that {inside} were used nor that they were not."),
        (_NEXT, "Choose {outside} that were made, saved and selected like {inside}."),
    ),
    "no-checks": (
        ("What was measured", "{pair} {compared}"),
        ("What is missing", "{missing}."),
        (_NEXT, "Run the audit without --quick (in Python without quick=True), or name trained encoders: --reference, "
         "in a config validity.references."),
        (_RESTS, "{based}"),
    ),
    "after-looking": (
        ("What was measured", "{pair}"),
        ("What is missing", "A plan from before the first query. Whoever chooses after looking finds something by "
         "chance."),
        (_NEXT, "Run this plan on images that nobody has looked at, in a new folder."),
        (_RESTS, "{based}"),
    ),
    "another-attack": (
        ("What was measured", "{pair} {other}, finds more than chance explains, with all planned attacks counted."),
        ("What is missing", "A leak rests on the attack that was registered for it, no evidence on all of them."),
        (_NEXT, "Register {other} as the attack of the verdict, in a new folder, on images that nobody has looked at."),
        (_RESTS, "{based}"),
    ),
    "encoder-broken": (
        ("Why", "That may come from the weights, or from views, size or normalisation unlike those of its training. "
         "So this audit says nothing about the encoder you meant."),
        (_NEXT, "Give the views of its training (queries.augmentation; in Python augmentation=), see that weights, "
         "size and normalisation are right, and run the audit again."),
        (_RESTS, "{based}"),
    ),
}  # fmt: skip
PARTS["untrained-references"] = PARTS["no-checks"]
LIMITS = {  # whether the truth is known, what a leak does not say
    True: "That anybody copied, stored or published the images. “Leak” means only that the encoder treats images it "
    "was trained on differently.",
    False: "That anybody copied, stored or published your images, or that the use was not allowed. “Leak” means only "
    "that the encoder treats images it was trained on differently. A single named image may be one of the errors.",
}
SENTENCES = {
    "by-lot": "{attack} separates {inside} from {outside}{auc}. A randomisation test has p {p}.",
    "robust": "{attack} separates {inside} from {outside}{auc}, better than {checks}. Its effect is at least "
    "{robustness} times that of {check}; the factor was {factor}.",
    "no-evidence": "{attack}{auc} does not separate {inside} from {outside} so much better than {checks} that the rule "
    "says leak.",
    "confounded": "{attack}{auc} says nothing about training. {inside} and {outside} differ even without it: {failed} "
    "can tell them apart.",
    **dict.fromkeys(_NO_ANSWER, "{attack} was measured{auc}, beside {checks}."),
}
