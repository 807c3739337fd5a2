"""SD-MI (Gao et al., AAAI 2023; as a baseline in LpLA, AsiaCCS 2025, section 3.2): distances to anchor images.

One query per image, and one per anchor once. The feature is the distance of an image's embedding to the embeddings of
A anchors; the anchor selector, a network on the embedding, weights them; an attack network reads the weighted
distances. The released script draws the anchors from the evaluated samples; here they are images of their own.

LpLA's settings are the default (200 epochs, batches of 128, Adam). ``variant: released`` is the official script:
squared distances, and 5,000 epochs of full-batch SGD at 0.1 (30,000 without the selector), halved every 2,000.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from mi_core import mlp
from mi_core.attacks.base import Attack, Scores, State
from mi_core.checks import VARIANTS, ConfigError, check_choice, check_fields
from mi_core.features.embedding import Embedding
from mi_core.records import Features

_WIDTHS = (512, 512, 512, 512)
_BLOCK = 4096  # samples whose distances are computed at once


@dataclass(frozen=True)
class SDMIParameters:
    """Settings of SD-MI.

    Args:
        anchors: how many of the given anchors are used, from the first on; None: all. The papers take 2,000.
        selector: whether the anchor selector weights the distances.
        variant: ``paper``, or ``released`` for the official script.
        learning_rate: of Adam; the released variant has its own.
        epochs: passes over the reference; None: those of the variant.
        batch_size: samples of the reference per step; the released variant takes all at once.
    """

    anchors: int | None = None
    selector: bool = True
    variant: str = "paper"
    learning_rate: float = 1e-3
    epochs: int | None = None
    batch_size: int = 128

    def __post_init__(self) -> None:
        check_choice("variant", self.variant, VARIANTS)
        check_fields(self, "anchors", low=1)
        self.training()

    def training(self) -> mlp.Training:
        """Optimizer and schedule of the variant."""
        released = self.variant == "released"
        usual = (5000 if self.selector else 30000) if released else 200
        epochs = usual if self.epochs is None else self.epochs
        if released:
            return mlp.Training(0.1, epochs, 0, "sgd", halve_every=2000)
        return mlp.Training(self.learning_rate, epochs, self.batch_size)


class _WeightedDistances(nn.Module):
    """Embedding and distances, side by side, to a logit: the selector multiplies its output onto the distances."""

    def __init__(self, width: int, anchors: int, *, selector: bool) -> None:
        super().__init__()
        self.width = width
        self.selector = nn.Sequential(mlp.layers(width, width, anchors), nn.ReLU()) if selector else None
        self.attack = mlp.layers(anchors, *_WIDTHS, 1, activation=nn.Tanh)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """(B, D + A) to logits (B, 1)."""
        embeddings, distances = inputs[:, : self.width], inputs[:, self.width :]
        if self.selector is not None:
            distances = distances * self.selector(embeddings)
        return self.attack(distances)


class SDMI(Attack):
    """Distances of an embedding to those of anchors, weighted by an anchor selector.

    Where an embedding lies is told by how far it is from the anchors, images of a role of their own (`anchor`) that no
    attack is judged on. As it reads the encoder's own coordinates, reference and target must be equally wide.
    """

    name = "sd-mi"
    queries = "1, and one per anchor image once"
    threat_model = "one embedding, and those of anchor images; some known members and non-members, or a shadow encoder"
    source = "SD-MI (AAAI 2023); LpLA (AsiaCCS 2025), section 3.2"
    reference = frozenset({"known", "shadow"})
    anchored = True
    Parameters = SDMIParameters
    needs = (Embedding(),)

    def _fit(self, features: Features, member: npt.NDArray[np.bool_]) -> State:
        embeddings, distances = features[Embedding()], self._distances(features)
        low, spread = distances.min(axis=0), np.ptp(distances, axis=0)
        spread = np.where(spread > 0, spread, 1.0)
        state: State = {**mlp.standardisation(embeddings), "low": low, "spread": spread, "threshold": np.array(0.0)}
        made, inputs = partial(self._network, embeddings, distances), inputs_of(embeddings, distances, state)
        return state | mlp.weights(mlp.fit(made, inputs, member, self.parameters.training(), seed=self.seed))

    def _score(self, features: Features, state: State) -> Scores:
        self._check_width(features, state)
        embeddings, distances = features[Embedding()], self._distances(features)
        network = mlp.restored(self._network(embeddings, distances), state)
        return mlp.predict(network, inputs_of(embeddings, distances, state))

    def _network(self, embeddings: npt.NDArray[np.floating], distances: npt.NDArray[np.floating]) -> nn.Module:
        return _WeightedDistances(embeddings.shape[1], distances.shape[1], selector=self.parameters.selector)

    def _distances(self, features: Features) -> npt.NDArray[np.float32]:
        assert features.anchors is not None
        count = self.parameters.anchors or len(features.anchors)
        if count > len(features.anchors):
            raise ConfigError(
                f"sd-mi: anchors = {count}, but {len(features.anchors)} are given; lower it, or enlarge the anchor role"
            )
        squared = self.parameters.variant == "released"
        return anchor_distances(features[Embedding()], features.anchors[:count], squared=squared)


def anchor_distances(
    embeddings: npt.NDArray[np.floating], anchors: npt.NDArray[np.floating], *, squared: bool = False
) -> npt.NDArray[np.float32]:
    """Euclidean distances (N, A) of embeddings (N, D) to those of anchors (A, D), or their squares.

    Example:
        >>> anchor_distances(np.array([[0.0, 0.0]]), np.array([[3.0, 4.0]])).tolist()
        [[5.0]]
    """
    rows, columns = (torch.from_numpy(np.ascontiguousarray(part, dtype=np.float32)) for part in (embeddings, anchors))
    distances = torch.cat([torch.cdist(block, columns) for block in rows.split(_BLOCK)])
    return (distances.square() if squared else distances).numpy()


def inputs_of(
    embeddings: npt.NDArray[np.floating], distances: npt.NDArray[np.floating], state: State
) -> npt.NDArray[np.float32]:
    """Standardised embeddings beside distances scaled to [0, 1] by the reference: (N, D + A)."""
    scaled = ((distances - state["low"]) / state["spread"]).astype(np.float32)
    return np.concatenate([mlp.standardised(embeddings, state), scaled], axis=1)
