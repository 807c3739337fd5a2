"""The mean similarity of views against known non-members: EncoderMI-T without a shadow encoder.

The attacker sees embeddings of V augmented views of an image and knows some images that the target was not trained on.
The score is that of EncoderMI-T (Liu et al., CCS 2021, section 4.3), the mean over the pairs of views; an image is
called a member if it exceeds all but a chosen share of the known non-members. The threshold is the conformal one: with
n exchangeable non-members at most a share ``fpr`` of new ones lies at or above it, on average (Vovk et al., 2005).
"""

from __future__ import annotations

from dataclasses import dataclass

from mi_core.attacks.encodermi import PairwiseAttack, PairwiseParameters
from mi_core.attacks.threshold import ConformalAttack
from mi_core.checks import check_range


@dataclass(frozen=True)
class MeanCosineParameters(PairwiseParameters):
    """Settings of the attack.

    Args:
        fpr: share of non-members that may be called members, in (0, 1]; .05 takes 19 known ones, .01 takes 99.
    """

    fpr: float = 0.05

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("fpr", self.fpr, 0, 1, open_low=True)


class MeanCosine(PairwiseAttack, ConformalAttack):
    """Mean similarity of an image's views, with a threshold from known non-members.

    For encoders that somebody else trained: nothing has to be trained, and no member has to be known. The known
    non-members (role `known-nonmember`; where candidates are audited, a part of the controls) must be of the kind of
    the audited images, else the threshold does not hold for them.
    """

    name = "mean-cosine"
    queries = "10 at 10 views"
    threat_model = "embeddings of augmented views; some known non-members, no shadow encoder"
    source = "score of EncoderMI-T (CCS 2021), section 4.3; conformal threshold"
    Parameters = MeanCosineParameters
