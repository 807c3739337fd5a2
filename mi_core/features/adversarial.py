"""Answers of a classifier to images crafted on another, one per class.

By targeted projected gradient descent (Madry et al., ICLR 2018) within a ball of the largest change of a pixel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from mi_core.augmentations.views import clean
from mi_core.checks import ConfigError, check_range, check_shape
from mi_core.features.measure import Measure, Oracle
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


def targeted_pgd(
    classify: Callable[[torch.Tensor], torch.Tensor],
    images: torch.Tensor,
    classes: torch.Tensor,
    *,
    epsilon: float,
    steps: int,
) -> torch.Tensor:
    """Images close to the given ones that the classifier should take for given classes.

    Each step goes 2.5 epsilon / steps along the sign of the gradient of the cross-entropy (as Madry et al.'s released
    code has it), from the image itself: nothing is random.

    Args:
        classify: images to logits (N, L), differentiable.
        images: (N, C, H, W) float32 in [0, 1].
        classes: (N,) int64, wanted.
        epsilon: the largest change of a pixel, in (0, 1].
        steps: at least 1.

    Returns (N, C, H, W) float32 in [0, 1], each pixel within epsilon of the given one.
    Raises ConfigError: epsilon or steps are out of range; ShapeError: the shapes do not fit.
    """
    check_range("epsilon", epsilon, 0, 1, open_low=True)
    check_range("steps", steps, 1)
    check_shape("classes", classes, "N", N=check_shape("images", images, "N C H W")[0])
    low, high = (images - epsilon).clamp_min(0), (images + epsilon).clamp_max(1)
    changed = images.clone()
    with torch.enable_grad():
        for _ in range(steps):
            changed = changed.detach().requires_grad_(True)
            loss = F.cross_entropy(classify(changed).float(), classes, reduction="sum")
            (gradient,) = torch.autograd.grad(loss, changed)
            changed = (changed - 2.5 * epsilon / steps * gradient.sign()).clamp(low, high)
    return changed.detach()
