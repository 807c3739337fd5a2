"""Noise on embeddings: what a provider can do without training anything, and how it is averaged away.

Every embedding is answered with noise of mean 0, Gaussian or Laplace, of a size that is fixed once by the members'
embeddings; what the encoder computes on top, posteriors among it, is computed from the noisy embedding. No paper
proposes it for encoders; it is the baseline that the others are held against.

``fresh`` noise is drawn anew for every query. Whoever asks k times and averages is left with 1/k of its variance
(``queries.repeats``), so it hides something from those alone who cannot ask often. It is a pure function of seed, query
and the number of times that the query was asked before. ``fixed`` noise is a pure function of seed and query: asking
again tells nothing new, asking for a near copy does, and so do an image's augmented views.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from mi_core.checks import check_choice, check_finite, check_range
from mi_core.defenses.base import Defended, Defense, ProviderData, State, answers, query_streams
from mi_core.encoders.averaging import Numbering
from mi_core.encoders.checkpoint import Encoder
from mi_core.streams import uniforms

# B queries, D width of the embedding.
DISTRIBUTIONS, MODES, RELATIVE = ("gaussian", "laplace"), ("fixed", "fresh"), ("spread", "norm")
_HALF = 2.0**-25  # half the step between two uniform numbers: moves them into the open interval


@dataclass(frozen=True)
class OutputNoiseParameters:
    """Settings of the noise.

    Args:
        scale: its size, 0 for none. Relative to ``spread``: its standard deviation in each dimension over that of the
            members' embeddings in this dimension. Relative to ``norm``: its root mean square length over the mean
            length of the members' embeddings, the same in all dimensions.
        relative_to: ``spread`` or ``norm``.
        distribution: ``gaussian`` or ``laplace``, of the same variance.
        mode: ``fixed``, the same for the same query, or ``fresh``, new for every query.
    """

    scale: float = 0.5
    relative_to: str = "spread"
    distribution: str = "gaussian"
    mode: str = "fixed"

    def __post_init__(self) -> None:
        check_range("scale", self.scale, 0, 1e6)
        check_choice("relative_to", self.relative_to, RELATIVE)
        check_choice("distribution", self.distribution, DISTRIBUTIONS)
        check_choice("mode", self.mode, MODES)


class OutputNoise(Defense):
    """Noise on every embedding, the same for the same query or new each time.

    It works on any encoder that was trained here, needs no labels, and promises nothing: how much it hides has to be
    measured by attackers who know of it.
    """

    name = "output-noise"
    hides = "membership and attributes"
    source = "none; the baseline of noise on answers"
    Parameters = OutputNoiseParameters

    def fit(self, encoder: Encoder, members: ProviderData, outside: ProviderData | None = None) -> State:
        """Measure the members' embeddings; see `Defense.fit`."""
        self._check_needs(encoder, members, outside)
        embeddings = answers(encoder, members.images, "backbone").double()
        check_finite("embedding of the provider's images", embeddings)
        length = embeddings.norm(dim=1).mean()
        unit = embeddings.std(dim=0, correction=0)
        if self.parameters.relative_to == "norm":
            unit = (length / math.sqrt(embeddings.shape[1])).expand_as(unit)
        deviation = self.parameters.scale * unit
        return {
            "deviation": deviation.float().numpy(),
            "report.noise_length": deviation.norm().numpy(),
            "report.embedding_length": length.numpy(),
        }

    def defended(self, encoder: Encoder, state: State) -> Encoder:
        """The encoder with noise on its embeddings, and whatever it makes of them."""
        return Defended(encoder, "backbone", _Noise(state, self.parameters, self.seed))


class _Noise(Numbering):
    """Embeddings (B, D) to noisy ones."""

    deviation: torch.Tensor

    def __init__(self, state: State, parameters: OutputNoiseParameters, seed: int) -> None:
        super().__init__()
        self.register_buffer("deviation", torch.tensor(state["deviation"]))
        self.settings, self.seed = parameters, seed

    def forward(self, embeddings: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
        if self.settings.scale == 0:
            return embeddings
        streams = query_streams(self.seed, OutputNoise.name, images)
        time = self.numbers(streams) if self.settings.mode == "fresh" else 0
        drawn = uniforms(streams, epoch=0, view=time, count=len(self.deviation))
        return embeddings.float() + self.deviation * standard_noise(drawn, self.settings.distribution)


def standard_noise(drawn: torch.Tensor, distribution: str) -> torch.Tensor:
    """Uniform numbers from `streams.uniforms` to float32 noise of mean 0 and variance 1, by the inverse distribution.

    Args:
        drawn: (B, D) multiples of 2^-24 in [0, 1), each taken for the middle of its step.
        distribution: ``gaussian`` or ``laplace``.
    """
    inside = drawn.double() + _HALF
    if distribution == "gaussian":
        noise: torch.Tensor = torch.special.ndtri(inside)
    else:
        centred = inside - 0.5
        noise = -centred.sign() * torch.log1p(-2 * centred.abs()) / math.sqrt(2)
    return noise.float()
