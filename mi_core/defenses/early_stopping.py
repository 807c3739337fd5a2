"""Early stopping: serving an earlier checkpoint, which has had fewer looks at its members.

EncoderMI (Liu et al., CCS 2021), section 7: membership accuracy and utility rise together over the epochs of
pre-training, so a provider who stops earlier pays for what is hidden with utility.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

from mi_core.defenses.base import Defense, ProviderData, State
from mi_core.encoders.checkpoint import Encoder


@dataclass(frozen=True)
class EarlyStoppingParameters:
    """No settings: the checkpoint is chosen where the encoder is."""


class EarlyStopping(Defense):
    """An earlier checkpoint of the encoder, as it is.

    Nothing is added and nothing is trained: ``epoch`` names one of the encoder's `checkpoints`. It is the cheapest
    defense of an encoder itself, and the one that others have to beat.
    """

    name = "early-stopping"
    hides = "membership"
    source = "Liu et al., EncoderMI, CCS 2021, section 7"
    needs = frozenset({"epoch"})
    Parameters = EarlyStoppingParameters

    def fit(self, encoder: Encoder, members: ProviderData, outside: ProviderData | None = None) -> State:
        """Nothing to learn."""
        return {}

    def defended(self, encoder: Encoder, state: State) -> Encoder:
        """A copy of the encoder."""
        return copy.deepcopy(encoder).eval()
