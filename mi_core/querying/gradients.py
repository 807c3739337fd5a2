"""The loss of each image and the norms of its gradient, from the weights of an encoder.

The losses are those of `mi_core.objectives.image_losses`. One gradient is taken for each image by itself. On a GPU many
images go at once (`torch.func.vmap`). On a CPU, where that is no faster, one goes after the other. The bank and the
embedding of the caption stand still.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch.func import functional_call, grad_and_value, vmap

from mi_core.augmentations.views import make_views
from mi_core.checks import ConfigError
from mi_core.encoders.checkpoint import Encoder
from mi_core.features.loss_gradient import CaptionGradient, LossGradient, ViewsGradient
from mi_core.features.measure import Batch
from mi_core.objectives.image_losses import CAPTION_LOSSES, VIEW_LOSSES
from mi_core.querying.bank import BankAnswers

_AT_ONCE = 2 * 2**30  # bytes of gradients that are in the memory of a GPU together
Weights = dict[str, torch.Tensor]
Beside = dict[str, torch.Tensor]
"""What the loss of images takes beside the views: the embedding of the caption, or keys from elsewhere."""


@dataclass(frozen=True)
class BankKeys:
    """Answers of an encoder for a bank: (A, D) keys of one view of each image, and (A, D) of the captions or None."""

    keys: torch.Tensor
    texts: torch.Tensor | None = None


def key_output(output: str) -> str:
    """The output that gives the keys: a prediction is compared with projections (BYOL, MoCo v3), others with others.

    Example:
        >>> key_output("prediction"), key_output("backbone")
        ('projection', 'backbone')
    """
    return "projection" if output == "prediction" else output


def check_differentiable(name: str, encoder: Encoder) -> None:
    """Raise ConfigError if an encoder is no plain network in this process, whose weights have gradients."""
    if type(encoder) is not Encoder or any(isinstance(one, torch.jit.ScriptModule) for one in encoder.modules()):
        raise ConfigError(f"the encoder {name} gives no gradients of its weights, which a white-box attack needs")


def layer_groups(encoder: Encoder, output: str, layers: int) -> list[list[str]]:
    """Names of the weights that a loss depends on, in at most ``layers`` groups of modules that follow each other.

    Args:
        encoder: whose modules with weights are counted in the order of their definition.
        output: that the loss is read off; heads after it do not count.
        layers: groups, at most.
    """
    read = ("backbone", *list(encoder.heads)[: list(encoder.outputs).index(output)])
    weights = [name for name, _ in encoder.named_parameters() if name.partition(".")[0] in read]
    modules = [list(names) for _, names in groupby(weights, lambda name: name.rpartition(".")[0])]
    parts = np.array_split(np.arange(len(modules)), min(layers, len(modules)))
    return [[name for number in part for name in modules[number]] for part in parts]


def losses_and_gradients(
    encoder: Encoder,
    output: str,
    views: torch.Tensor,
    bank: BankKeys,
    measure: LossGradient,
    texts: torch.Tensor | None = None,
    *,
    together: bool | None = None,
) -> torch.Tensor:
    """The loss of each of B images, and the norm of its gradient by group of layers.

    Args:
        encoder: in evaluation mode; a prediction is drawn to the projections, which then stand still.
        output: that the loss is read off.
        views: (B, V, C, S, S) in [0, 1].
        bank: of `key_output`, by the same encoder, or by its momentum copy where that gives the keys.
        measure: the loss, and its parameters.
        texts: for the loss on captions (B, D) of these, which stand still.
        together: whether images go at once; default: on a GPU.

    Returns:
        (B, 1 + L) float32: the loss, then L <= ``measure.layers`` norms, of the first layers first.

    Raises:
        ConfigError: the encoder gives no gradients.
        ShapeError: the shapes do not fit.
    """
    with torch.inference_mode(mode=False):  # tensors of inference could not be differentiated
        bank = BankKeys(bank.keys.clone(), None if bank.texts is None else bank.texts.clone())
        captions = None if texts is None else texts.clone()
        return _rows(encoder, output, views.clone(), bank, measure, captions, together=together)


def _rows(
    encoder: Encoder,
    output: str,
    views: torch.Tensor,
    bank: BankKeys,
    measure: LossGradient,
    texts: torch.Tensor | None,
    *,
    together: bool | None,
) -> torch.Tensor:
    besides: Beside = {} if texts is None else {"text": texts}
    if measure.momentum:
        besides["keys"] = _keys_of_copy(encoder, output, views)
    groups = layer_groups(encoder, output, measure.layers)
    held = dict(encoder.named_parameters())
    weights = {name: held[name].detach() for group in groups for name in group}

    def loss(weights: Weights, images: torch.Tensor, beside: Beside) -> torch.Tensor:
        answers = functional_call(encoder, weights, (images,))
        queries, keys = answers[output], answers[key_output(output)]
        if isinstance(measure, CaptionGradient):
            of_caption = CAPTION_LOSSES[measure.loss][0]
            return of_caption(queries, beside["text"], bank.keys, bank.texts, measure.temperature, measure.bias)
        assert isinstance(measure, ViewsGradient)
        if "keys" in beside:
            keys = beside["keys"]
        elif output == "prediction":
            keys = keys.detach()
        return VIEW_LOSSES[measure.loss].of(queries, keys, bank.keys, measure.temperature)

    def row(images: torch.Tensor, beside: Beside) -> torch.Tensor:
        gradients, value = grad_and_value(loss)(weights, images, beside)
        norms = [torch.stack([gradients[name].square().sum() for name in group]).sum().sqrt() for group in groups]
        return torch.stack([value, *norms])

    if views.device.type == "cuda" if together is None else together:
        size = sum(weight.numel() * weight.element_size() for weight in weights.values())
        many: Callable[..., Any] = vmap(row, chunk_size=max(1, _AT_ONCE // size))
        return many(views, besides).float()  # type: ignore[no-any-return]
    each = ({name: rows[at] for name, rows in besides.items()} for at in range(len(views)))
    return torch.stack([row(one, beside) for one, beside in zip(views, each, strict=True)]).float()


def _keys_of_copy(encoder: Encoder, output: str, views: torch.Tensor) -> torch.Tensor:
    """Keys (B, V, D) of views (B, V, C, S, S) by the momentum copy; they stand still."""
    copied, shown = encoder.momentum, views.flatten(0, 1)
    assert copied is not None
    with torch.no_grad():
        keys: torch.Tensor = copied(shown)[key_output(output)]
    by_view: torch.Tensor = keys.unflatten(0, views.shape[:2])
    return by_view


def losses_of(
    name: str,
    encoder: Encoder,
    measure: LossGradient,
    batch: Batch,
    bank: BankAnswers,
    texts: torch.Tensor | None,
    outputs: Sequence[str],
) -> dict[str, torch.Tensor]:
    """Losses and norms of gradients (B, 1 + L) by output that a measure is read off.

    Args:
        name: of the encoder, for errors.
        encoder: see `losses_and_gradients`.
        measure: the loss, and its parameters.
        batch: of B images.
        bank: what the encoder answers for the bank, and in which precision.
        texts: (B, D) of the captions of the batch, where the measure takes them.
        outputs: that are read.

    Raises:
        ConfigError: the encoder gives no gradients, has no momentum copy, or the bank is too small.
    """
    check_differentiable(name, encoder)
    read = [output for output in outputs if measure.output in (None, output)]
    views = make_views(batch.images, batch.streams, bank.augmentation, views=measure.views, size=encoder.size)
    if measure.momentum and encoder.momentum is None:
        raise ConfigError(f"the encoder {name} has no momentum copy, which keys: momentum needs")
    bank_texts = None if texts is None else bank.texts(name, encoder, measure.bank)
    keyed = tuple(dict.fromkeys(map(key_output, read)))
    if measure.momentum:
        assert encoder.momentum is not None
        keys = bank.views(f"{name}, its momentum copy", encoder.momentum, keyed, measure.bank)
    else:
        keys = bank.views(name, encoder, keyed, measure.bank)
    keys_of = {output: BankKeys(keys[key_output(output)], bank_texts) for output in read}
    with bank.forward.in_precision():  # views, which are drawn in float32, are drawn by now
        return {
            output: losses_and_gradients(encoder, output, views, keys_of[output], measure, texts) for output in read
        }
