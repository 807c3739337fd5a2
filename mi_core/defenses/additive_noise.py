"""Noise once on the weights of a trained head (Yang, Gohari, Topcu, "Additive logistic mechanism for privacy-preserving
self-supervised learning", 2022, algorithm 1), from the logistic, the Laplace or the Gaussian distribution.

For a provider who trains an encoder on images that are no secret, and a classifier's last layer on images that are one.
What he serves is the classifier with the noisy weights. They hide the images of the last layer from those who cannot
compute the noise: the seed is a secret then, and serves one release.

One number is drawn per weight and bias of the last layer; answering any number of queries then costs no more privacy.
What a scale guarantees, and how it is chosen, stands in `mi_core.defenses.privacy`. Noise is the inverse distribution
function of 48-bit uniforms in float64, computed on the CPU: a function of mechanism, scale, seed, the head's weights
and the position alone. Two scales never share their noise, as two such releases would give the weights away.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import logit, ndtri
from torch import nn

from mi_core.checks import ConfigError, NumericError, check_choice, check_fields, check_range
from mi_core.defenses import privacy
from mi_core.defenses.base import PreparedDefense, ProviderData, Spread, State
from mi_core.defenses.convex_head import UnitLinear, sensitivity_bound, solve_head
from mi_core.defenses.head import HeadDefense, head_inputs, head_state, trained_head
from mi_core.defenses.sensitivity import ADJACENCIES, Array, HeadTraining, Train, draw_pairs, pair_distance, train_head
from mi_core.encoders.checkpoint import Encoder, fingerprint
from mi_core.hashing import digest64
from mi_core.streams import stream_keys, uniforms
from mi_core.training.optimizers import OptimizerParameters

Noise = npt.NDArray[np.float64]
CONVEX = "convex"
HEADS = ("gradient", CONVEX)
_NORMS = ("one", "two")
QUANTILES: dict[str, Callable[[Noise], Noise]] = {
    "logistic": logit,  # ln(p / (1 - p))
    "laplace": lambda p: np.sign(p - 0.5) * -np.log(2 * np.minimum(p, 1 - p)),
    "gaussian": ndtri,
}
"""Inverse distribution functions at scale 1, of probabilities in (0, 1), by mechanism."""


@dataclass(frozen=True)
class NoiseParameters:
    """How much noise, and whether what it guarantees is told.

    A guarantee is about one training. So with ``pairs`` the head, linear softmax, is trained anew, as those of the
    pairs are; without, it stays as it was trained, and nothing is guaranteed. A ``convex`` head is always trained anew,
    and its sensitivity is proved (`mi_core.defenses.convex_head`): the guarantee then holds for every pair, and
    ``pairs`` only tell how far random ones are apart.

    Args:
        scale: of the noise, in units of the weights: s, b or sigma; at 0 nothing changes.
        epsilon: above 0: the smallest scale that guarantees it is taken instead of ``scale``. A sampled sensitivity is
            computed from the private images, so a scale that rests on it shows something of them, and gamma does not
            count; it counts for a ``scale`` that was chosen without them.
        delta: at which epsilon is told, of Gaussian noise.
        rule: of Gaussian noise: ``analytic``, exact, or ``classic``, proved for epsilon below 1.
        pairs: m, how many adjacent data sets the sensitivity is sampled over; 500 in the paper for CIFAR-10.
        adjacency: what one of a pair is to the other: ``replace-one`` image, or ``leave-one-out``.
        epochs: of the head's training anew.
        batch_size: of that training; 0: all images at once.
        optimizer: of that training: ``adamw``, ``adam``, ``sgd`` or ``lars``.
        learning_rate: of that training.
        weight_decay: of that training.
        head: ``gradient``: trained as above; ``convex``: on unit-length embeddings, to the optimum.
        penalty: of a convex head, on half the squared 2-norm of its weights; above 0.
    """

    scale: float = 0.02
    epsilon: float = 0.0
    delta: float = 1e-5
    rule: str = "analytic"
    pairs: int = 0
    adjacency: str = "replace-one"
    epochs: int = 100
    batch_size: int = 0
    optimizer: str = "sgd"
    learning_rate: float = 0.1
    weight_decay: float = 0.0
    head: str = "gradient"
    penalty: float = 0.01

    def __post_init__(self) -> None:
        check_fields(self, "scale", "epsilon", "pairs", low=0)
        check_range("delta", self.delta, 0, 1, open_low=True, open_high=True)
        check_choice("rule", self.rule, privacy.RULES)
        check_choice("adjacency", self.adjacency, ADJACENCIES)
        check_choice("head", self.head, HEADS)
        check_range("penalty", self.penalty, 0, open_low=True)
        if self.head == CONVEX and self.adjacency != "replace-one":
            raise ConfigError(f"adjacency = {self.adjacency}: the sensitivity of a convex head is that of replace-one")
        if self.epsilon and not self.pairs and self.head != CONVEX:
            raise ConfigError(f"epsilon = {self.epsilon:g} needs a sensitivity; set pairs (500 in the paper)")
        self.training(2)

    def training(self, classes: int) -> HeadTraining:
        """How the head is trained, where its sensitivity is sampled."""
        optimizer = OptimizerParameters(
            name=self.optimizer, learning_rate=self.learning_rate, weight_decay=self.weight_decay, warmup=0.0
        )
        return HeadTraining(classes, self.epochs, self.batch_size, optimizer)


class AdditiveNoise(HeadDefense, PreparedDefense):
    """Noise on all weights and biases of the head; a subclass names the mechanism."""

    Parameters = NoiseParameters
    late = frozenset({"scale", "epsilon", "delta", "rule"})
    mechanism: ClassVar[str]
    """A key of `privacy.NORMS`."""

    @property
    def adjacencies(self) -> tuple[str, ...]:
        """The adjacency of the pairs that are sampled. Of a convex head the proved bound holds for both.

        A scale that is calibrated by a sampled sensitivity shows something of the images: see `NoiseParameters`.

        A scale that is calibrated to an ``epsilon`` shows the number of images, of which a convex head's bound depends.
        So then its promise is about a replaced image alone, which leaves the number as it is. Of Gaussian noise the
        number ``epsilon_leave_one_out`` is the epsilon of an image that is there or not
        (`mi_core.defenses.privacy.rescaled_epsilon`); of the others there is none, as the tails have no common bound.
        """
        if self.parameters.head != CONVEX:
            return (self.parameters.adjacency,)
        return ADJACENCIES[:1] if self.parameters.epsilon else ADJACENCIES

    def _served_head(self, encoder: Encoder) -> nn.Module:
        """The trained head, or a convex one of its shape, without biases."""
        head = super()._served_head(encoder)
        if self.parameters.head != CONVEX:
            return head
        assert isinstance(head, nn.Linear)
        unit = UnitLinear(head.in_features, head.out_features, bias=False, device=head.weight.device)
        return unit.train(head.training)

    def noise(self, identity: str, count: int, scale: float | None = None) -> Noise:
        """The noise (count,) float64 on a head with this fingerprint: position by position, whatever the count."""
        size = float(self.parameters.scale if scale is None else scale)
        stream = stream_keys(self.seed, "defense", f"{self.name} {size!r}", [identity])
        drawn = uniforms(stream, epoch=0, view=0, count=2 * count).double().reshape(count, 2)
        centred = drawn[:, 0] + (drawn[:, 1] + 2.0**-25) * 2.0**-24  # (2 k + 1) / 2^49, exact: neither 0 nor 1
        return np.asarray(size * QUANTILES[self.mechanism](centred.numpy()), dtype=np.float64)

    def prepare(
        self, encoder: Encoder, members: ProviderData, outside: ProviderData | None = None, *, spread: Spread = map
    ) -> State:
        """The head as it is trained anew, and its sensitivity; nothing without pairs or a convex head.

        The seed of that training is a function of the encoder alone, so that every mechanism and scale has one head.

        Raises ConfigError: the encoder is no classifier with one linear layer, or the members have no classes;
        NumericError: a training diverged.
        """
        self._check_needs(encoder, members, outside)
        head = trained_head(encoder)
        settings = self.parameters
        if not settings.pairs and settings.head != CONVEX:
            return {}
        if not isinstance(head, nn.Linear):
            raise ConfigError(f"the sensitivity is sampled of one linear layer, not of {type(head).__name__}")
        if members.labels is None:
            raise ConfigError(f"the defense {self.name} needs classes of the training images")
        inputs = head_inputs(encoder, members.images).numpy()
        labels = members.labels.numpy()
        seed = digest64("head", fingerprint(encoder))
        train: Train = partial(train_head, training=settings.training(head.out_features), seed=seed)
        if settings.head == CONVEX:
            train = partial(_solved, classes=head.out_features, penalty=settings.penalty)
        weights = train(inputs, labels, np.ones(len(labels), dtype=bool))
        split = head.out_features * head.in_features
        prepared = {"weight": weights[:split].reshape(head.weight.shape)}
        if settings.pairs:
            pairs = draw_pairs(len(labels), settings.pairs, adjacency=settings.adjacency, seed=seed)
            distance = partial(pair_distance, inputs=inputs, targets=labels, train=train)
            norms = np.max(list(spread(distance, pairs)), axis=0)
            prepared |= {f"{name}_norm": np.array(norm) for name, norm in zip(_NORMS, norms, strict=True)}
        if settings.head == CONVEX:
            for name, many in zip(_NORMS, (split, None), strict=True):
                proved = sensitivity_bound(settings.penalty, len(labels), weights=many)
                prepared[f"proved_{name}_norm"] = np.array(proved)
            prepared["images"] = np.array(len(labels))
            return prepared
        return prepared | {"bias": weights[split:]}

    def release(self, encoder: Encoder, prepared: State) -> State:
        """Draw the noise, on the head as it is or as `prepare` trained it.

        Raises ConfigError: the encoder is no classifier, or its head is not of weights alone; NumericError: weights and
        noise are too large for the weights' dtype.
        """
        head = self._served_head(encoder)
        report = self._guarantee(prepared)
        with torch.no_grad():
            for name, weight in head.named_parameters():
                if name in prepared:
                    weight.copy_(torch.from_numpy(prepared[name]))
        weights: dict[str, torch.Tensor] = {name: weight.detach().cpu() for name, weight in head.named_parameters()}
        counts = [weight.numel() for weight in weights.values()]
        scale = report["scale"]
        if scale > 0:
            noise = torch.from_numpy(self.noise(fingerprint(head), sum(counts), scale))
            for (name, clean), part in zip(weights.items(), noise.split(counts), strict=True):
                weights[name] = (clean.double() + part.reshape(clean.shape)).to(clean.dtype)
                if not bool(weights[name].isfinite().all()):
                    raise NumericError(f"scale = {scale}: the {name} of the head overflows; lower scale")
        report |= {
            "standard_deviation": privacy.standard_deviation(self.mechanism, scale),
            "weights": float(sum(counts)),
        }
        return head_state(weights) | {f"report.{name}": np.array(value) for name, value in report.items()}

    def _guarantee(self, prepared: State) -> dict[str, float]:
        """Scale of the noise and, where a sensitivity was sampled, what it guarantees."""
        settings = self.parameters
        if not prepared:
            return {"scale": float(settings.scale)}
        norm = f"{_NORMS[privacy.NORMS[self.mechanism] - 1]}_norm"
        proved = prepared.get(f"proved_{norm}")
        sensitivity = float(prepared[norm] if proved is None else proved)
        given = {"delta": settings.delta, "rule": settings.rule}
        if settings.epsilon:
            bound = privacy.calibrated(self.mechanism, settings.epsilon, sensitivity, **given)
        else:
            bound = privacy.guarantee(self.mechanism, settings.scale, sensitivity, **given)
        return {
            "scale": float(bound.scale),
            **({"epsilon": float(bound.epsilon)} if bound.scale else {}),
            **({"delta": bound.delta} if bound.scale and bound.delta else {}),
            **self._without_one(prepared, bound.scale),
            "sensitivity": sensitivity,
            **({"pairs": float(settings.pairs)} if settings.pairs else {}),
            **({"sampled_sensitivity": float(prepared[norm])} if settings.pairs and proved is not None else {}),
            **({} if proved is not None else {"gamma": privacy.random_dp_gamma(settings.pairs)}),
            **({} if proved is not None else {"pairs_for_gamma_5_percent": float(privacy.pairs_for_gamma(0.05))}),
        }

    def _without_one(self, prepared: State, scale: float) -> dict[str, float]:
        """The epsilon of an image that is there or not, where the scale is calibrated to the number of images."""
        settings = self.parameters
        images = int(prepared.get("images", 0))
        if not settings.epsilon or self.mechanism != "gaussian" or images < 2:
            return {}
        distance = sensitivity_bound(settings.penalty, images)
        fewer = sensitivity_bound(settings.penalty, images - 1)
        other = privacy.calibrated(
            self.mechanism, settings.epsilon, fewer, delta=settings.delta, rule=settings.rule
        ).scale
        weights = int(prepared["weight"].size)
        return {
            "epsilon_leave_one_out": privacy.rescaled_epsilon((scale, other), distance, weights, delta=settings.delta)
        }


def _solved(inputs: Array, labels: Array, present: npt.NDArray[np.bool_], *, classes: int, penalty: float) -> Noise:
    """The weights (C D,) of a convex head."""
    return solve_head(inputs[present], labels[present], classes=classes, penalty=penalty).ravel()


class AdditiveLogistic(AdditiveNoise):
    """Logistic(0, s): epsilon = sensitivity / s in the 1-norm, with a bell-shaped density.

    At equal epsilon its variance is 1.645 times that of Laplace noise (`mi_core.defenses.privacy`).
    """

    name = "additive-logistic"
    mechanism = "logistic"
    source = "Yang, Gohari, Topcu, Additive logistic mechanism (2022), algorithm 1"


class AdditiveLaplace(AdditiveNoise):
    """Laplace(0, b): epsilon = sensitivity / b in the 1-norm, with the smaller variance.

    The older mechanism with the same guarantee as logistic noise, at less noise: the one to compare that with.
    """

    name = "additive-laplace"
    mechanism = "laplace"
    source = "Dwork, McSherry, Nissim, Smith, Calibrating noise to sensitivity (TCC 2006), section 3"


class AdditiveGaussian(AdditiveNoise):
    """Normal(0, sigma^2): (epsilon, delta) by the sensitivity in the 2-norm.

    A head has many weights, and a change that is spread over them is far shorter in the 2-norm than in the 1-norm: so
    this noise can be much smaller, at the price of a delta.
    """

    name = "additive-gaussian"
    mechanism = "gaussian"
    source = "Dwork, Roth, The algorithmic foundations of differential privacy (2014), appendix A"
