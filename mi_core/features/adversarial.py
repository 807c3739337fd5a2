"""Answers of a classifier to images crafted on another: one per class, by targeted projected gradient descent."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mi_core.augmentations.views import clean
from mi_core.checks import ConfigError, check_range
from mi_core.features.measure import Measure, Oracle
from mi_core.features.pgd import targeted_pgd
from mi_core.runtime import tf32


@dataclass(frozen=True)
class AdversarialLogits(Measure):
    """Logits of images that another classifier takes for each class in turn.

    Args:
        epsilon: the largest change of a pixel, in (0, 1].
        steps: of the descent.
        classes: L, of both classifiers.
    """

    epsilon: float = 8 / 255
    steps: int = 10
    classes: int = 10

    kind = "adversarial"
    consumes = "adversarial"
    output = "logits"
    searches = True

    def __post_init__(self) -> None:
        check_range("epsilon", self.epsilon, 0, 1, open_low=True)
        check_range("steps", self.steps, 1)
        check_range("classes", self.classes, 2)

    def query_count(self, views: int) -> int:
        """A query per class."""
        return self.classes

    def shape(self, views: int, width: int) -> tuple[int, ...]:
        """(L, L): the image for each class, and what it is taken for."""
        return self.classes, self.classes

    def answers(self, oracle: Oracle, sent: torch.Tensor | None) -> dict[str, torch.Tensor]:
        """Logits of the crafted images."""
        classify, batch = oracle.crafter(), oracle.batch
        images = clean(batch.images).repeat_interleave(self.classes, dim=0)
        wanted = torch.arange(self.classes, device=images.device).repeat(len(batch.images))
        with torch.inference_mode(mode=False), tf32(True):  # gradients are needed, of which the sign alone counts
            crafted = targeted_pgd(classify, images.clone(), wanted.clone(), epsilon=self.epsilon, steps=self.steps)
        logits = oracle.embed(crafted, ("logits",))["logits"]
        if logits.shape[1] != self.classes:
            raise ConfigError(
                f"encoder {oracle.name} tells {logits.shape[1]} classes; set classes of baseline-c to that"
            )
        return {"logits": logits.unflatten(0, (-1, self.classes))}
