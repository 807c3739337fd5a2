"""Quantile regression (Bertran et al., "Scalable membership inference attacks via quantile regression", NeurIPS 2023),
on the mean cosine of an image's views.

The attacker trains no shadow encoder. She knows some images that the target was not trained on, and learns from them
how large the mean cosine of an image like this one is without training: the 1 - alpha quantile, as a function of the
image's embedding, by the pinball loss (section 3). An image is called a member if it exceeds its own quantile.

Quantiles fitted on few images are too low for new ones. So half of the known non-members are kept from the fit, and the
threshold is the conformal one of their residuals (Romano et al., "Conformalized quantile regression", NeurIPS 2019):
a new non-member is called a member with a probability of at most alpha, however bad the regression is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from mi_core import mlp
from mi_core.attacks.base import Scores, State, directions
from mi_core.attacks.encodermi import PairwiseAttack
from mi_core.attacks.network import HiddenParameters, NetworkAttack
from mi_core.attacks.threshold import conformal_threshold, least_nonmembers
from mi_core.checks import NumericError, check_choice, check_range
from mi_core.features import Measure
from mi_core.features.embedding import Embedding
from mi_core.features.pairwise_similarity import METRICS
from mi_core.records import Features


@dataclass(frozen=True)
class QuantileRegressionParameters(HiddenParameters):
    """Settings of the attack.

    Args:
        metric: how alike two embeddings are: ``cosine``, ``correlation`` or ``euclidean``.
        fpr: alpha, the share of non-members that may be called members, in (0, 1]; .05 takes 38 known ones.
        weight_decay: L2 penalty of Adam.
    """

    metric: str = "cosine"
    fpr: float = 0.05
    weight_decay: float = 1e-2
    hidden: int = 64
    batch_size: int = 64

    def __post_init__(self) -> None:
        check_choice("metric", self.metric, METRICS)
        check_range("fpr", self.fpr, 0, 1, open_low=True)
        super().__post_init__()

    def training(self) -> mlp.Training:
        """Optimizer and schedule."""
        return replace(super().training(), weight_decay=self.weight_decay)


class QuantileRegression(PairwiseAttack, NetworkAttack):
    """Mean similarity of views above what it would be for a non-member with such an embedding.

    Some images, such as plain ones, have views that are alike for any encoder. Beside `mean-cosine` this attack takes
    that out, as far as an image's embedding tells it; it costs one more query per image and twice as many known
    non-members.
    """

    name = "quantile-regression"
    queries = "11 at 10 views"
    threat_model = "embeddings of an image and of its views; some known non-members, no shadow encoder"
    source = "Quantile regression attack (NeurIPS 2023), section 3; conformalized (NeurIPS 2019)"
    reference = frozenset({"nonmembers"})
    Parameters = QuantileRegressionParameters

    @property
    def needs(self) -> tuple[Measure, ...]:
        """Similarities of all pairs of views, and the embedding of the image itself."""
        return (*super().needs, Embedding())

    @property
    def needed_nonmembers(self) -> int:
        """Twice as many as ``fpr`` takes: half of them train the network."""
        return 2 * max(1, least_nonmembers(self.parameters.fpr))

    def _inputs(self, features: Features) -> npt.NDArray[np.float32]:
        return directions(features[Embedding()])

    def _fit(self, features: Features, member: npt.NDArray[np.bool_]) -> State:
        known = features.take(~member)
        order = np.random.default_rng(self.seed).permutation(len(known))
        learned, kept = (known.take(part) for part in np.array_split(order, 2))
        if len(known) < self.needed_nonmembers:
            raise NumericError(
                f"{self.name} at fpr = {self.parameters.fpr:g} needs {self.needed_nonmembers} known non-members, half "
                f"of them for the threshold; got {len(known)}"
            )
        inputs, scores = self._inputs(learned), self.statistic(learned)
        scale, score_scale = mlp.standardisation(inputs), mlp.standardisation(scores, axis=None)
        network = mlp.fit(
            lambda: self._network(inputs.shape[1]),
            mlp.standardised(inputs, scale),
            mlp.standardised(scores, score_scale),
            self.parameters.training(),
            seed=self.seed,
            loss=lambda outputs, targets: pinball(outputs, targets, 1 - self.parameters.fpr),
        )
        state = scale | {f"score_{name}": value for name, value in score_scale.items()} | mlp.weights(network)
        residuals = self._score(kept, state)
        return state | {"threshold": np.array(conformal_threshold(residuals, self.parameters.fpr, self.name))}

    def _score(self, features: Features, state: State) -> Scores:
        quantiles = super()._score(features, state)
        return np.asarray(self.statistic(features) - (quantiles * state["score_deviation"] + state["score_mean"]))


def pinball(predictions: torch.Tensor, targets: torch.Tensor, quantile: float) -> torch.Tensor:
    """The loss that the conditional ``quantile`` minimises (Koenker and Bassett, 1978), mean over the batch.

    Example:
        >>> pinball(torch.tensor([0.0, 0.0]), torch.tensor([1.0, -1.0]), 0.75).item()
        0.5
    """
    above = targets - predictions
    return torch.maximum(quantile * above, (quantile - 1) * above).mean()
