"""Targeted projected gradient descent (Madry et al., ICLR 2018) within a ball of the largest change of a pixel."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from mi_core.checks import check_range, check_shape


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

    Returns:
        (N, C, H, W) float32 in [0, 1], each pixel within epsilon of the given one.

    Raises:
        ConfigError: epsilon or steps are out of range.
        ShapeError: the shapes do not fit.
    """
    check_range("epsilon", epsilon, 0, 1, open_low=True)
    check_range("steps", steps, 1)
    (count, *_) = check_shape("images", images, "N C H W")
    check_shape("classes", classes, "N", N=count)
    low, high = (images - epsilon).clamp_min(0), (images + epsilon).clamp_max(1)
    changed = images.clone()
    with torch.enable_grad():
        for _ in range(steps):
            changed = changed.detach().requires_grad_(True)
            loss = F.cross_entropy(classify(changed).float(), classes, reduction="sum")
            (gradient,) = torch.autograd.grad(loss, changed)
            changed = (changed - 2.5 * epsilon / steps * gradient.sign()).clamp(low, high)
    return changed.detach()
