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
from mi_core.attacks.regression import LEAST, RegressionAttack
from mi_core.checks import ConfigError, check_range
from mi_core.features.neighbour_density import parse_neighbours
from mi_core.features.part_energy import parse_parts
from mi_core.features.patch_similarity import parse_grid
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
        if self.grid:
            parse_grid(self.grid)
        if self.parts:
            parse_parts(self.parts)
        if self.neighbours:
            parse_neighbours(self.neighbours)
        if self.parts and self.caption:
            raise ConfigError("parts are read off a backbone, captions off a projection; ask for one of them")
        check_range("penalty", self.penalty, 0, open_low=True)


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
    def needs(self) -> tuple[str, ...]:
        """Cosines of views, two norms, and patches, parts, neighbours or the caption."""
        chosen = self.parameters
        needs = ["pairwise:cosine", "norm:1", "norm:2"]
        needs += [f"patches:{chosen.grid}"] if chosen.grid else []
        needs += [f"parts:{chosen.parts}"] if chosen.parts else []
        needs += [f"neighbours:{chosen.neighbours}"] if chosen.neighbours else []
        return (*needs, *(["caption:cosine"] if chosen.caption else []))

    def _columns(self, features: Features) -> Iterator[Scores]:
        for need in self.needs:
            yield from _read_off(need, features)


def _read_off(need: str, features: Features) -> Iterator[Scores]:
    """What is read off one feature, (N,) each."""
    values = np.asarray(features.values[need], dtype=np.float64)
    if need.startswith(("pairwise", "patches")):
        angles = fisher_z(values)
        yield fisher_z(values.mean(axis=1))
        yield np.log(np.maximum(angles.std(axis=1), LEAST))
        yield from (angles.min(axis=1), angles.max(axis=1))
    elif need.startswith("parts"):  # divergences from the uniform and from a bumpy distribution
        yield from values.reshape(len(values), 2, -1).mean(axis=2).T
    elif need == "norm:1":  # over the 2-norm: how many coordinates are large
        second = np.asarray(features.values["norm:2"], dtype=np.float64)
        yield np.log(np.maximum(values, LEAST) / np.maximum(second, LEAST))
    elif need == "norm:2":
        yield np.log(np.maximum(values, LEAST))
    elif need.startswith("neighbours"):
        yield -fisher_z(values)
    else:
        yield values
