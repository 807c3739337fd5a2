"""Noise once on the weights of a trained head (Yang, Gohari, Topcu, "Additive logistic mechanism for privacy-preserving
self-supervised learning", 2022, algorithm 1), from the logistic, the Laplace or the Gaussian distribution.

One number is drawn per weight and bias; answering any number of queries then costs no more privacy. What a scale
guarantees, and how it is chosen, stands in `privacy`. Noise is the inverse distribution function of 48-bit uniforms in
float64, computed on the CPU: a function of mechanism, scale, seed, the head's weights and the position alone. Two
scales never share their noise, as two such releases would give the weights away.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import logit, ndtri

from mi_core.checks import NumericError, check_range
from mi_core.defenses.base import ProviderData, State
from mi_core.defenses.head import HeadDefense, head_state, trained_head
from mi_core.defenses.privacy import standard_deviation
from mi_core.encoders.checkpoint import Encoder, fingerprint
from mi_core.streams import stream_keys, uniforms

Noise = npt.NDArray[np.float64]


@dataclass(frozen=True)
class NoiseParameters:
    """``scale`` of the noise, in units of the weights: s, b or sigma; at 0 nothing changes."""

    scale: float = 0.02

    def __post_init__(self) -> None:
        check_range("scale", self.scale, 0)


class AdditiveNoise(HeadDefense):
    """Noise on all weights and biases of the head; a subclass names the distribution."""

    Parameters = NoiseParameters
    mechanism: ClassVar[str]
    """A key of `privacy.NORMS`."""

    @staticmethod
    @abstractmethod
    def quantile(probabilities: Noise) -> Noise:
        """The inverse distribution function at scale 1, of probabilities in (0, 1)."""

    def noise(self, identity: str, count: int) -> Noise:
        """The noise (count,) float64 on a head with this fingerprint: position by position, whatever the count."""
        stream = stream_keys(self.seed, "defense", f"{self.name} {float(self.parameters.scale)!r}", [identity])
        drawn = uniforms(stream, epoch=0, view=0, count=2 * count).double().reshape(count, 2)
        centred = drawn[:, 0] + (drawn[:, 1] + 2.0**-25) * 2.0**-24  # (2 k + 1) / 2^49, exact: neither 0 nor 1
        return np.asarray(self.parameters.scale * self.quantile(centred.numpy()), dtype=np.float64)

    def fit(self, encoder: Encoder, members: ProviderData, outside: ProviderData | None = None) -> State:
        """Draw the noise; nothing is learned from the images.

        Raises:
            ConfigError: the encoder is no classifier, or its head is not of weights alone.
            NumericError: weights and noise are too large for the weights' dtype.
        """
        self._check_needs(encoder, members, outside)
        head = trained_head(encoder)
        clean = {name: weight.detach().cpu() for name, weight in head.named_parameters()}
        count = sum(weight.numel() for weight in clean.values())
        noisy = dict(clean)
        if self.parameters.scale > 0:
            noise = torch.from_numpy(self.noise(fingerprint(head), count))
            parts = noise.split([weight.numel() for weight in clean.values()])
            for (name, weight), part in zip(clean.items(), parts, strict=True):
                noisy[name] = (weight.double() + part.reshape(weight.shape)).to(weight.dtype)
                if not bool(noisy[name].isfinite().all()):
                    raise NumericError(
                        f"scale = {self.parameters.scale}: the {name} of the head overflows; lower scale"
                    )
        return head_state(noisy) | {
            "report.scale": np.array(float(self.parameters.scale)),
            "report.standard_deviation": np.array(standard_deviation(self.mechanism, self.parameters.scale)),
            "report.weights": np.array(float(count)),
        }


class AdditiveLogistic(AdditiveNoise):
    """Logistic(0, s): epsilon = sensitivity / s in the 1-norm, with a bell-shaped density."""

    name = "additive-logistic"
    mechanism = "logistic"
    source = "Yang, Gohari, Topcu, Additive logistic mechanism (2022), algorithm 1"

    @staticmethod
    def quantile(probabilities: Noise) -> Noise:
        """ln(p / (1 - p))."""
        return np.asarray(logit(probabilities))


class AdditiveLaplace(AdditiveNoise):
    """Laplace(0, b): epsilon = sensitivity / b in the 1-norm, with the smaller variance."""

    name = "additive-laplace"
    mechanism = "laplace"
    source = "Dwork, McSherry, Nissim, Smith, Calibrating noise to sensitivity (TCC 2006), section 3"

    @staticmethod
    def quantile(probabilities: Noise) -> Noise:
        """ln(2 p) below the median, -ln(2 (1 - p)) above."""
        return np.asarray(np.sign(probabilities - 0.5) * -np.log(2 * np.minimum(probabilities, 1 - probabilities)))


class AdditiveGaussian(AdditiveNoise):
    """Normal(0, sigma^2): (epsilon, delta) by the sensitivity in the 2-norm."""

    name = "additive-gaussian"
    mechanism = "gaussian"
    source = "Dwork, Roth, The algorithmic foundations of differential privacy (2014), appendix A"

    @staticmethod
    def quantile(probabilities: Noise) -> Noise:
        """The quantile of the standard normal."""
        return np.asarray(ndtri(probabilities))
