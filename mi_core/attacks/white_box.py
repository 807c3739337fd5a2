"""White-box attack: the pre-training loss of an image and the gradient of it, read off the weights of an encoder.

After Nasr, Shokri and Houmansadr (IEEE S&P 2019, section III-A), who read losses and gradients of classifiers: training
lowers the loss of its images, and leaves their gradients small. Here the loss is that of the encoder's framework. It is
that of the views of an image, or of the image and its caption, against a fixed bank of other images
(`mi_core.objectives.image_losses`).
They train a network on whole gradients. Here a regularised logistic regression weighs the loss and the norms of the
gradient by layer, of which a few numbers per image are kept. Gradients are those of the weights that are queried: batch
norms are folded into the convolutions before them (`mi_core.encoders.batch_norm`), so they are no layers of their own.

The loss of a pair has gradients in two towers. Gomez ("Rethinking membership inference attacks for CLIP", AAAI 2026,
abstract) attacks CLIP by gradients too. Those of the image tower are taken here: those of the text tower added nothing
that holds (`configs/results/README.md`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mi_core.attacks.base import Scores
from mi_core.attacks.regression import LEAST, RegressionAttack
from mi_core.checks import check_choice, check_range
from mi_core.features import Measure
from mi_core.features.loss_gradient import CaptionGradient, LossGradient, ViewsGradient
from mi_core.objectives.image_losses import CAPTION_LOSSES, VIEW_LOSSES
from mi_core.records import Features


@dataclass(frozen=True)
class WhiteBoxParameters:
    """Settings of the attack.

    Args:
        loss: that of the encoder's framework. Of the views of an image: ``info-nce`` (SimCLR, MoCo; for Barlow Twins
            too), or ``byol``, ``dino`` (of the output prototypes). Of the image and its caption: ``clip`` or
            ``siglip`` (of a projection).
        temperature: by which cosines or scores are divided, best that of the training; default: .5 of ``info-nce`` (as
            SimCLR), .1 of ``dino`` and ``siglip``, .07 of ``clip``; the other losses have none.
        bias: added to the logits of ``siglip``, best that of the training.
        gradient_views: views of an image whose loss is taken.
        bank: images of the role ``anchor`` that are the negatives, the first by rank of a hash.
        layers: groups of layers whose gradients are told apart, at most.
        keys: ``own``, of the encoder itself, or ``momentum``, of the copy that gave them in training, for encoders that
            are trained here by MoCo, BYOL or DINO or loaded from a checkpoint that holds the copy. With their
            last output that is the loss that was trained on.
        penalty: of the squared distance of the weights from their prior, in samples.
    """

    loss: str = "info-nce"
    temperature: float | None = None
    bias: float = -10.0
    gradient_views: int = 4
    bank: int = 128
    layers: int = 6
    keys: str = "own"
    penalty: float = 10.0

    def __post_init__(self) -> None:
        check_choice("loss", self.loss, (*VIEW_LOSSES, *CAPTION_LOSSES))
        keyed = self.loss in VIEW_LOSSES and VIEW_LOSSES[self.loss].keyed
        check_choice("keys", self.keys, ("own", "momentum") if keyed else ("own",))
        check_range("penalty", self.penalty, 0, open_low=True)
        self.measure()

    def measure(self) -> LossGradient:
        """The loss and the norms."""
        of_caption = self.loss in CAPTION_LOSSES
        usual = CAPTION_LOSSES[self.loss][1] if of_caption else VIEW_LOSSES[self.loss].temperature
        temperature = usual if self.temperature is None else self.temperature
        numbers = (temperature, self.gradient_views, self.bank, self.layers, self.loss)
        if of_caption:
            return CaptionGradient(*numbers, bias=self.bias)
        return ViewsGradient(*numbers, momentum=self.keys == "momentum")


class WhiteBox(RegressionAttack):
    """The loss of an image in pre-training and the norm of its gradient by layer, weighed by a logistic regression.

    The attacker holds the weights of the encoder: its owner, or anyone for whom it was published. Each image costs a
    pass forwards and backwards over its views: of a ResNet-18 on a CPU 1.7 times the price of ten queries. With
    ``reference: shadow`` the shadow needs as many groups of layers as the target, best the same architecture.
    """

    name = "white-box"
    threat_model = "the weights of the encoder; a shadow encoder, known samples, or only the audited samples"
    access = "weights"
    queries = "4"
    source = "after Nasr, Shokri, Houmansadr (IEEE S&P 2019), section III, on the losses of encoders"
    Parameters = WhiteBoxParameters

    @property
    def needs(self) -> tuple[Measure, ...]:
        """Loss and norms of its gradient."""
        return (self.parameters.measure(),)

    def _columns(self, features: Features) -> Iterator[Scores]:
        values = np.asarray(features[self.needs[0]], dtype=np.float64)
        yield -values[:, 0]
        yield from -np.log(np.maximum(values[:, 1:], LEAST)).T
