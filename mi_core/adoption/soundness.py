"""Checks of any encoder before it is used: finite weights, and answers that are a function of the image alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from mi_core.adoption.code import CodeBackbone
from mi_core.checks import AnswerError, ConfigError, ShapeError, check_shape
from mi_core.encoders.checkpoint import Encoder

NOISY = 1e-4
"""Relative difference of two answers above which it is not the same answer."""
_DEPENDENT = 0.02  # likewise, in other company; the round-off of 16-bit numbers stays below
_NOISES = 3  # images of noise
QUERIES = 2 * 2 + 1 + _NOISES
"""Images that `check_answers` sends."""


@dataclass(frozen=True)
class Answers:
    """Findings on the answers of an encoder.

    Args:
        noise: of `noise_of`.
        notes: what else has to be said about them.
    """

    noise: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def noisy(self) -> bool:
        """True if the encoder answers the same images differently when asked again."""
        return self.noise.get("largest", 0.0) > NOISY

    def words(self) -> str:
        """The remarks on the answers; empty: none."""
        return "; ".join((*self.notes, *((f"it {noise_in_words(self.noise)}",) if self.noisy else ())))


def check_weights(module: nn.Module) -> None:
    """Raise ConfigError naming the first weight that holds NaN or infinity (of buffers: NaN) and how many there are."""
    parameters = {name for name, _ in module.named_parameters()}
    for name, tensor in module.state_dict().items():
        if not tensor.is_floating_point() or bool(tensor.sum().isfinite()):
            continue
        bad = ~tensor.isfinite() if name in parameters else tensor.isnan()
        if bool(bad.any()):
            raise ConfigError(f"{name} holds {int(bad.sum())} values that are NaN or infinite, of {tensor.numel()}")


@torch.no_grad()
def check_answers(encoder: Encoder, channels: int, side: int) -> Answers:
    """Ask for a grey and some noise images, check every output, and ask again: the same, and in other company.

    Networks that a function runs are left as they were, batch norm's statistics included. What a network builds at its
    first call may be trained on later.

    Args:
        encoder: in evaluation mode, on the CPU.
        channels, side: of the images where the encoder takes any size.

    Raises:
        ConfigError: it fails on such images, an answer is not finite, or it depends on the other images of the batch.
        ShapeError: an answer is not one row per image.
    """
    side = encoder.size or side
    noise = torch.rand(_NOISES, channels, side, side, generator=torch.Generator().manual_seed(0))
    images = torch.cat([torch.full_like(noise[:1], 0.5), noise])
    with _with_buffers_restored() as training:
        first = _checked_answers(encoder, images[:2])
        again = _checked_answers(encoder, images[:2])
        company = _checked_answers(encoder, images.flip(0))
    found = noise_of(first, again)
    if training:
        raise ConfigError(
            f"its {training[0]} is in training mode: asking changes it, and an answer depends on what is asked before "
            "and beside; call .eval() on the network first"
        )
    check_company(first, {output: rows.flip(0)[:2] for output, rows in company.items()}, found)
    notes = (encoder.backbone.taken,) if isinstance(encoder.backbone, CodeBackbone) and encoder.backbone.taken else ()
    return Answers(found, notes)


def check_company(
    first: Mapping[str, torch.Tensor], company: Mapping[str, torch.Tensor], noise: Mapping[str, float]
) -> None:
    """Raise ConfigError if the answer to an image depends on the other images of its batch.

    Args:
        first: (N, D) by output.
        company: (N, D) by output, to the same images beside others or alone.
        noise: of `noise_of`, two answers in the same company.
    """
    moved = noise_of(first, company)["largest"]
    if moved > max(_DEPENDENT, 4 * noise["largest"]):
        raise ConfigError(
            f"the answer to an image depends on the other images of the batch, by {_digits(moved)} of the embedding's "
            "length; call .eval() on the network, and answer every image by itself"
        )


def _checked_answers(encoder: Encoder, images: torch.Tensor) -> dict[str, torch.Tensor]:
    """The answers to (N, C, H, W), a grey image first or last; checked."""
    try:
        answers = encoder(images)
    except (AnswerError, ConfigError, ShapeError):
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:160] or type(error).__name__
        raise ConfigError(
            f"it does not answer an image of {images.shape[1]} x {images.shape[2]} x {images.shape[3]}: {reason} "
            f"(images come as {str(images.dtype).removeprefix('torch.')} on the {images.device})"
        ) from error
    for output, rows in answers.items():
        if rows.dim() != 2 or len(rows) != len(images) or not rows.shape[1]:
            raise ShapeError(f"{output}: {tuple(rows.shape)} for {len(images)} images, expected an embedding (B, D)")
        finite = rows.isfinite().all(dim=1)
        if not bool(finite.all()):
            grey = (images == 0.5).flatten(1).all(dim=1)
            which = "a grey image" if bool((grey.to(finite.device) & ~finite).any()) else "an image of noise"
            raise ConfigError(f"{output}: the embedding of {which} is NaN or infinite")
    return dict(answers)


@contextmanager
def _with_buffers_restored() -> Iterator[list[str]]:
    """Buffers of every network that runs in the block are restored; gives the kinds of layers that changed their own.

    A function may hold its network anywhere, so it is noticed as it runs.
    """
    before: dict[nn.Module, dict[str, torch.Tensor]] = {}
    changed: list[str] = []

    def keep(module: nn.Module, inputs: Any) -> None:
        if module.training and module not in before:
            before[module] = {name: one.clone() for name, one in module.named_buffers(recurse=False)}

    hook = register_module_forward_pre_hook(keep)
    try:
        yield changed
    finally:
        hook.remove()
        for module, buffers in before.items():
            for name, kept in buffers.items():
                buffer = module.get_buffer(name)
                if not torch.equal(buffer, kept):
                    changed.append(type(module).__name__)
                    buffer.copy_(kept)


def noise_of(first: Mapping[str, torch.Tensor], again: Mapping[str, torch.Tensor]) -> dict[str, float]:
    """How far two answers to the same images are apart: ``median``, ``largest``, of ``n`` images.

    Args:
        first, again: (N, D) by output.
    """
    apart = torch.stack([relative_differences(first[output], again[output]) for output in first]).amax(dim=0)
    return {"median": float(apart.median()), "largest": float(apart.max()), "n": len(apart)}


def noise_in_words(noise: Mapping[str, float]) -> str:
    """The repeatability of an encoder's answers in words, as a predicate."""
    sent = f"{noise['n']} images sent twice"
    if noise["largest"] <= NOISY:
        return f"gives the same answer again ({sent})"
    return (
        f"gives a different answer again ({sent}): the median difference is {_digits(noise['median'])} of the "
        f"embedding's length, the largest {_digits(noise['largest'])}"
    )


def noise_caveat(name: str, noise: Mapping[str, float]) -> str:
    """A caveat for readers of a report on a noisy encoder."""
    return (
        f"The encoder {name} {noise_in_words(noise)}. Noise hides differences, and another audit of it gives other "
        "scores."
    )


def relative_differences(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Relative distances of two answers to the same queries: (N,) of |a - b| / |a|, Euclidean.

    Args:
        first, second: (N, D).

    Returns:
        (N,) float32, 0 where both are the same, infinity where only the second differs from 0.

    Raises:
        ShapeError: they differ in shape.

    Example:
        >>> relative_differences(torch.tensor([[3.0, 4.0]]), torch.tensor([[3.0, 4.5]])).tolist()
        [0.10000000149011612]
    """
    (count, width) = check_shape("first", first, "N D")
    check_shape("second", second, "N D", N=count, D=width)
    apart = (first.float() - second.float()).norm(dim=1)
    return torch.where(apart == 0, torch.zeros_like(apart), apart / first.float().norm(dim=1))


def _digits(value: float) -> str:
    """Two digits that count, never as a power of ten."""
    return np.format_float_positional(value, precision=2, fractional=False, trim="-")
