"""One score from all that attacks read off an image's embeddings, by a regularised logistic regression.

The idea is that of CDI (Dubinski et al., "CDI: copyrighted data identification in diffusion models", CVPR 2025): many
weak signals of membership, each a number per sample, are weighed together. Here the numbers are those that attacks on
encoders read: how alike views are and how much that varies, norms and their ratio, patches, and where they are asked
for, parts, captions, or how densely other images lie around it.

How it is fitted, on other samples or on the audited ones: see `mi_core.attacks.regression`. The first number is the
mean similarity of views, as `encodermi-t` reads it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mi_core.attacks.base import Scores, fisher_z
from mi_core.attacks.patch_similarity import patches_of
from mi_core.attacks.regression import LEAST, RegressionAttack
from mi_core.checks import ConfigError, check_range
from mi_core.features import Measure
from mi_core.features.caption_similarity import CaptionSimilarity
from mi_core.features.embedding import LpNorm, NeighbourDensity
from mi_core.features.pairwise_similarity import PairwiseSimilarity
from mi_core.features.part_energy import PartEnergies
from mi_core.features.patch_similarity import CenterSimilarity
from mi_core.records import Features


@dataclass(frozen=True)
class CombinedParameters:
    """Settings of the attack.

    Args:
        grid: rows and columns of patches, as `patch-similarity` asks for; empty: no patches are queried.
        parts: as of `part-crop`, such as ``32`` or ``32/2``; empty: none are queried. They are read off a backbone.
        neighbours: ``k/A``, such as ``20/128``, of the mean cosine with the k nearest of A images of the role
            ``anchor``, which costs a query more; empty: it is not read.
        caption: whether the cosine of image and caption is read, as by `clip-cosine`; it is read off a projection.
        penalty: of the squared distance of the weights from their prior, in samples.
    """

    grid: str = "3x3"
    parts: str = ""
    neighbours: str = ""
    caption: bool = False
    penalty: float = 10.0

    def __post_init__(self) -> None:
        self.measures()
        if self.parts and self.caption:
            raise ConfigError("parts are read off a backbone, captions off a projection; ask for one of them")
        check_range("penalty", self.penalty, 0, open_low=True)

    def measures(self) -> tuple[Measure, ...]:
        """Cosines of views, two norms, and patches, parts, neighbours or the caption."""
        chosen: list[Measure] = [PairwiseSimilarity(), LpNorm(1), LpNorm(2)]
        chosen += [patches_of(self.grid)] if self.grid else []
        chosen += [_parts_of(self.parts)] if self.parts else []
        chosen += [_neighbours_of(self.neighbours)] if self.neighbours else []
        chosen += [CaptionSimilarity()] if self.caption else []
        return tuple(chosen)


class Combined(RegressionAttack):
    """A logistic regression over what the other attacks read: similarities, norms, patches.

    Fitted on a shadow encoder or on known samples it is one more attack, and spares the choice among the others. With
    ``reference: audited`` it needs neither a shadow nor a known member: it learns from some of the candidates and
    controls, and judges the next; p-values and intervals then are asymptotic, not exact. It finds any difference
    between the two, so the controls must be of the same kind as the candidates. On a reference encoder it learns anew,
    which shows such a difference.
    """

    name = "combined"
    threat_model = (
        "embeddings of views, of the image and of its patches; a shadow encoder, known samples, or only "
        "the audited samples"
    )
    queries = "20 at 10 views"
    source = "after CDI (CVPR 2025), on the statistics of attacks on encoders"
    Parameters = CombinedParameters

    @property
    def needs(self) -> tuple[Measure, ...]:
        """Cosines of views, two norms, and patches, parts, neighbours or the caption."""
        return self.parameters.measures()  # type: ignore[no-any-return]

    def _columns(self, features: Features) -> Iterator[Scores]:
        for measure in self.needs:
            yield from _read_off(measure, features)


def _read_off(measure: Measure, features: Features) -> Iterator[Scores]:
    """The numbers read off one feature, (N,) each."""
    values = np.asarray(features[measure], dtype=np.float64)
    match measure:
        case PairwiseSimilarity() | CenterSimilarity():
            angles = fisher_z(values)
            yield fisher_z(values.mean(axis=1))
            yield np.log(np.maximum(angles.std(axis=1), LEAST))
            yield from (angles.min(axis=1), angles.max(axis=1))
        case PartEnergies():  # divergences from the uniform and from a bumpy distribution
            yield from values.reshape(len(values), 2, -1).mean(axis=2).T
        case LpNorm(order=1):  # over the 2-norm: how many coordinates are large
            second = np.asarray(features[LpNorm(2)], dtype=np.float64)
            yield np.log(np.maximum(values, LEAST) / np.maximum(second, LEAST))
        case LpNorm():
            yield np.log(np.maximum(values, LEAST))
        case NeighbourDensity():
            yield -fisher_z(values)
        case _:
            yield values


def _parts_of(text: str) -> PartEnergies:
    """The measure of parts as a config has them: their number, and after a slash their ratio."""
    number, _, ratio = text.partition("/")
    if not number.isdigit() or not (ratio or "2").isdigit():
        raise ConfigError(f"parts = {text!r}, allowed: a number, 128 in the paper, and with /4 parts of a quarter side")
    return PartEnergies(int(number), int(ratio or "2"))


def _neighbours_of(text: str) -> NeighbourDensity:
    """The measure of neighbours as a config has them: their number, and after a slash that of the bank."""
    neighbours, _, bank = text.partition("/")
    if not (neighbours.isdigit() and bank.isdigit()):
        raise ConfigError(f"neighbours = {text!r}, allowed: neighbours/images of the bank, as 20/128")
    return NeighbourDensity(int(neighbours), int(bank))
