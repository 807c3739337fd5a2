"""The membership feature of PartCrop (Zhu et al., CCS 2024): how parts of an image answer to its feature map.

Many small crops (parts) of one global view are queried; the embedding of each is compared with every position of the
global view's feature map. For a member the responses concentrate where the part lies. Each part's response
distribution, the softmax of raw dot products over the positions, is compared with two others by the Kullback-Leibler
divergence: the uniform one, and one shaped like a random Gaussian bump. Both sets of divergences are sorted.

The bump of a part is drawn from the image's own stream, so asking again gives the same feature (the released script
draws anew at each call). Members and non-members go through the same global view; in the released script members
are cropped and non-members resized.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from mi_core.augmentations.simclr import SimCLRAugmentation
from mi_core.checks import check_range, check_shape
from mi_core.features.measure import Measure, Oracle
from mi_core.streams import uniforms

_BUMPS = 2**16  # the index of a view in whose stream bumps are drawn; views of parts stay below it


@dataclass(frozen=True)
class PartEnergies(Measure):
    """How concentrated the responses of parts of an image to its feature map are.

    Args:
        parts: P, from 1 to 65,535.
        ratio: by how much their side is less than the image's: 2 in the paper for CIFAR, 4 for Tiny-ImageNet.
    """

    parts: int = 128
    ratio: int = 2

    kind = "parts"
    consumes = "crops"
    output = "backbone"

    def __post_init__(self) -> None:
        check_range("parts", self.parts, 1, _BUMPS - 1)
        check_range("part_ratio", self.ratio, 1)

    def query_count(self, views: int) -> int:
        """The global view, and the parts."""
        return 1 + self.parts

    def shape(self, views: int, width: int) -> tuple[int, ...]:
        """(2 P,)."""
        return (2 * self.parts,)

    def answers(self, oracle: Oracle, sent: torch.Tensor | None) -> dict[str, torch.Tensor]:
        """Divergences, see `part_energies`."""
        images, streams = oracle.batch.images, oracle.batch.streams
        side = oracle.side or images.shape[2]
        part_side = max(1, side // self.ratio) if oracle.side is None else side  # of one size: parts are enlarged to it
        whole, cut = global_and_parts(images, streams, self.parts, size=side, part_size=part_side)
        tokens = oracle.feature_map(whole)
        return {"backbone": part_energies(oracle.embed(cut, ("backbone",))["backbone"], tokens, streams)}


def part_energies(parts: torch.Tensor, tokens: torch.Tensor, streams: torch.Tensor) -> torch.Tensor:
    """The divergences of each part's response from the uniform distribution and from a random bump, sorted.

    Args:
        parts: (N, P, D) embeddings of the parts.
        tokens: (N, L, D) feature map of the global view.
        streams: (N,) int64, for the bumps.

    Returns (N, 2 P) >= 0: P divergences from uniform in descending order, then P from bumps.
    Raises ShapeError: the shapes do not fit.

    Example:
        >>> part_energies(torch.zeros(1, 1, 2), torch.zeros(1, 4, 2), torch.zeros(1, dtype=torch.int64))[0, 0].item()
        0.0
    """
    count, number, width = check_shape("parts", parts, "N P D")
    _, length, _ = check_shape("tokens", tokens, "N L D", N=count, D=width)
    response = (parts @ tokens.transpose(1, 2)).float().log_softmax(dim=2)  # (N, P, L)
    flat = torch.full_like(response, -math.log(length))
    bumps = _bumps(streams, number, length).log_softmax(dim=2)
    energies = [(response.exp() * (response - other)).sum(dim=2) for other in (flat, bumps)]
    ordered: torch.Tensor = torch.cat(
        [energy.clamp_min(0).sort(dim=1, descending=True).values for energy in energies], dim=1
    )
    return ordered


def _bumps(streams: torch.Tensor, parts: int, length: int) -> torch.Tensor:
    """(N, P, L) log-densities of Gaussian bumps with random centres and widths, over L positions on [0, 1]."""
    drawn = uniforms(streams, epoch=0, view=_BUMPS, count=2 * parts).unflatten(1, (parts, 2))
    position = (torch.arange(length, device=streams.device) + 0.5) / length
    centre, spread = drawn[:, :, :1], 0.05 + 0.45 * drawn[:, :, 1:]
    return torch.square((position - centre) / spread) * -0.5


GLOBAL_VIEW = SimCLRAugmentation(crop_scale=(0.2, 1.0), jitter_probability=0.0, grayscale=0.0)
PART = SimCLRAugmentation(crop_scale=(0.08, 0.2), flip=0.0, jitter_probability=0.0, grayscale=0.0)


def global_and_parts(
    images: torch.Tensor, streams: torch.Tensor, parts: int, *, size: int, part_size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """One random global view of each image, and random parts of that view.

    Args:
        images: (N, C, H, W) uint8, or float32 in [0, 1].
        streams: (N,) int64, from `streams.stream_keys`.
        parts: P parts per image.
        size, part_size: sides S and S' of the views and of the parts.

    Returns (N, C, S, S) and (N, P, C, S', S'), float32 in [0, 1].
    """
    count = len(images)
    whole = GLOBAL_VIEW(images, streams, epoch=0, view=0, size=size)
    index = torch.arange(1, parts + 1, device=streams.device).repeat(count)
    cut = PART(
        whole.repeat_interleave(parts, dim=0), streams.repeat_interleave(parts), epoch=0, view=index, size=part_size
    )
    return whole, cut.unflatten(0, (count, parts))
