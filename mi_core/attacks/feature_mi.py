"""Feature-MI (Fe-MI in LpLA, AsiaCCS 2025, section 3.2): a network on the embedding itself.

One query per image. Fitted on known members and non-members of the target, as LpLA is; fitted on a shadow encoder it
is EncoderMI's Baseline-D (CCS 2021, section 5.1), though coordinates of two encoders mean different things.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mi_core.attacks.base import Scores, State
from mi_core.attacks.network import HiddenParameters, NetworkAttack
from mi_core.features.embedding import Embedding
from mi_core.records import Features


@dataclass(frozen=True)
class FeatureMIParameters(HiddenParameters):
    """Settings of the network, which has two hidden layers with ReLU (LpLA, table 1).

    Args:
        hidden: width of the hidden layers; the paper gives none.
        learning_rate: of Adam; the paper gives none.
    """

    hidden: int = 256
    learning_rate: float = 1e-3
    epochs: int = 500
    batch_size: int = 128


class FeatureMI(NetworkAttack):
    """A network on standardised embeddings.

    It assumes nothing of where membership shows, and so has everything to learn: the reference has to be large. The
    embeddings of reference and target must be equally wide.
    """

    name = "feature-mi"
    threat_model = "one embedding; some known members and non-members, or a shadow encoder"
    source = "LpLA (AsiaCCS 2025), section 3.2, Fe-MI; EncoderMI (CCS 2021), section 5.1, Baseline-D"
    reference = frozenset({"known", "shadow"})
    needs = (Embedding(),)
    Parameters = FeatureMIParameters

    def _inputs(self, features: Features) -> npt.NDArray[np.float32]:
        return np.asarray(features[Embedding()], dtype=np.float32)

    def _score(self, features: Features, state: State) -> Scores:
        self._check_width(features, state)
        return super()._score(features, state)
