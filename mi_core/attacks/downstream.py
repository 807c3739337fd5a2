"""EncoderMI's Baselines A, B and C: the members of an encoder, read off a classifier that was built on it.

A linear layer is trained on the frozen encoder with data of a downstream task, once on the target and once on a shadow
encoder (EncoderMI, Liu et al., CCS 2021, section 5.1). What the shadow's classifier says of the shadow's members and
non-members trains a network, EncoderMI-V's: two hidden layers of 256, Adam at 1e-4, 300 epochs, batches of 100.

``baseline-a`` reads all posteriors in descending order (Salem et al., 2019). ``baseline-b`` reads whether the image and
each of its views are classified correctly (Choquette-Choo et al., 2021): it needs the true classes, those of the
classifier. ``baseline-c`` reads the posteriors of adversarial images (Song et al., 2019), one per class, made by
projected gradient descent within 8/255 on the *shadow's* classifier, for the target and for the shadow alike.

A downstream classifier generalises over all that the encoder saw, so these tell little (the paper finds about 50 %).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mi_core.attacks.metric import ClassifierAttack, posteriors
from mi_core.attacks.network import HiddenParameters, NetworkAttack
from mi_core.features import Measure
from mi_core.features.adversarial import AdversarialLogits
from mi_core.features.embedding import Embedding, ViewEmbeddings
from mi_core.records import Features


@dataclass(frozen=True)
class DownstreamParameters(HiddenParameters):
    """Settings of Baselines A and B.

    Args:
        hidden: width of the two hidden layers.
    """

    hidden: int = 256
    learning_rate: float = 1e-4
    epochs: int = 300
    batch_size: int = 100


class _Downstream(ClassifierAttack, NetworkAttack):
    reference = frozenset({"shadow"})
    Parameters = DownstreamParameters


class BaselineA(_Downstream):
    """Baseline-A: a network on the posteriors in descending order.

    What is left to an attacker who can ask nothing but a classifier that was built on the encoder.
    """

    name = "baseline-a"
    threat_model = "posteriors of a classifier built on the encoder; a shadow encoder with a classifier built on it"
    source = "EncoderMI (CCS 2021), section 5.1, Baseline-A"
    labelled = False

    def _inputs(self, features: Features) -> npt.NDArray[np.float32]:
        return np.asarray(-np.sort(-posteriors(features[Embedding()]), axis=1), dtype=np.float32)


class BaselineB(_Downstream):
    """Baseline-B: a network on which of the image and its views are classified correctly.

    It sees predicted classes alone, no posteriors.
    """

    name = "baseline-b"
    queries = "11 at 10 views"
    threat_model = "classes that a classifier built on the encoder predicts for views, and the true class; a shadow"
    source = "EncoderMI (CCS 2021), section 5.1, Baseline-B"
    needs = (Embedding(), ViewEmbeddings())

    def _inputs(self, features: Features) -> npt.NDArray[np.float32]:
        own, views = (features[measure] for measure in self.needs)
        labels = self._labels(features, own.shape[1])
        called = np.concatenate([own[:, None], views], axis=1).argmax(axis=2)
        return np.asarray(called == labels[:, None], dtype=np.float32)


@dataclass(frozen=True)
class AdversarialParameters(DownstreamParameters):
    """Settings of Baseline C, beside those of A and B.

    Args:
        epsilon: the largest change of a pixel in [0, 1]; 8/255 in the paper.
        steps: of the descent; the paper does not tell its number.
        classes: of the classifiers.
    """

    epsilon: float = 8 / 255
    steps: int = 10
    classes: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        self.measure()

    def measure(self) -> AdversarialLogits:
        """Logits of the adversarial images."""
        digits = float(f"{self.epsilon:.6g}")  # a step of 8 bits is .004; more digits would only make the name longer
        return AdversarialLogits(digits, self.steps, self.classes)


class BaselineC(_Downstream):
    """Baseline-C: a network on the posteriors of one adversarial image per class.

    Images are changed until the shadow's classifier takes them for each class in turn; how the target's classifier
    follows is what the network reads. The attacker needs the weights of her shadow.
    """

    name = "baseline-c"
    queries = "10"
    threat_model = "posteriors of a classifier built on the encoder for crafted images; a shadow with its weights"
    source = "EncoderMI (CCS 2021), section 5.1, Baseline-C"
    labelled = False
    Parameters = AdversarialParameters

    @property
    def needs(self) -> tuple[Measure, ...]:
        """Logits of the adversarial images."""
        return (self.parameters.measure(),)

    def _inputs(self, features: Features) -> npt.NDArray[np.float32]:
        logits = features[self.needs[0]].reshape(len(features), self.parameters.classes, -1)
        return posteriors(logits).reshape(len(features), -1).astype(np.float32)
