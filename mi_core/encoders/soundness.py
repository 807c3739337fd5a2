"""Checks of any encoder before it is used: finite weights, finite answers of the right shape."""

from __future__ import annotations

import torch
from torch import nn

from mi_core.checks import ConfigError, ShapeError
from mi_core.encoders.checkpoint import Encoder


def check_weights(module: nn.Module, whose: str = "") -> None:
    """Raise ConfigError naming the first weight that holds NaN or infinity (of buffers: NaN) and how many there are.

    The name stands after ``whose``.
    """
    parameters = {name for name, _ in module.named_parameters()}
    for name, tensor in module.state_dict().items():
        if not tensor.is_floating_point():
            continue
        bad = ~tensor.isfinite() if name in parameters else tensor.isnan()
        if bool(bad.any()):
            count = f"{int(bad.sum())} values that are NaN or infinite, of {tensor.numel()}"
            raise ConfigError(f"{whose}{name} holds {count}")


@torch.inference_mode()
def check_answers(encoder: Encoder, channels: int, side: int) -> None:
    """Ask for a grey and a noise image, and check every output.

    Args:
        encoder: in evaluation mode, on the CPU.
        channels, side: of the images where the encoder takes any size.

    Raises:
        ConfigError: it fails on such images, or an answer is not finite.
        ShapeError: an answer is not one row per image.
    """
    side = encoder.size or side
    noise = torch.rand(channels, side, side, generator=torch.Generator().manual_seed(0))
    images = torch.stack([torch.full_like(noise, 0.5), noise])
    try:
        answers = encoder(images)
    except (ConfigError, ShapeError):
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:160] or type(error).__name__
        raise ConfigError(f"it does not answer an image of {channels} x {side} x {side}: {reason}") from error
    for output, rows in answers.items():
        if rows.dim() != 2 or len(rows) != len(images) or not rows.shape[1]:
            raise ShapeError(f"{output}: {tuple(rows.shape)} for 2 images, expected an embedding (2, D)")
        if not bool(rows.isfinite().all()):
            which = "a grey image" if not bool(rows[0].isfinite().all()) else "an image of noise"
            raise ConfigError(f"{output}: the embedding of {which} is NaN or infinite")
