"""Heads of encoders from elsewhere: their linear layers and norms are in the file, their activations are not."""

from __future__ import annotations

import re
from collections.abc import Callable

from torch import nn

from mi_core.adoption.layouts.names import State
from mi_core.checks import ConfigError, check_choice
from mi_core.encoders.heads import Prototypes

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "elu": nn.ELU,
    "leaky-relu": nn.LeakyReLU,
    "tanh": nn.Tanh,
    "none": nn.Identity,
}
"""Activations between the layers of a head, each with PyTorch's default settings; ``none``: nothing."""
_LENGTHS = "weight_g"  # of prototypes


def head_weights(state: State) -> State:
    """Weights of a head under the indices of its layers: a name before the index is dropped, a bare layer is 0.

    Raises:
        ConfigError: two weights would get one name, as those of ``layer1.0`` and ``layer2.0``.

    Example:
        >>> import torch
        >>> sorted(head_weights({"net.2.weight": torch.ones(1), "net.2.bias": torch.ones(1)}))
        ['2.bias', '2.weight']
    """
    names: dict[str, str] = {}
    for name in state:
        match = re.search(r"(?:^|\.)(\d+\..+)$", name)
        own = match[1] if match else f"0.{name}"
        if own in names:
            raise ConfigError(
                f"the order of the layers of a head is not known: {names[own]} and {name} have one number; save the "
                "file with its layers numbered through, as in one nn.Sequential, or without this head"
            )
        names[own] = name
    return {own: state[name] for own, name in names.items()}


def gaps(state: State) -> list[int]:
    """Places in a head whose layer has no weights: the first of every row of missing numbers.

    Example:
        >>> import torch
        >>> gaps({"0.weight": torch.ones(3, 2), "3.weight": torch.ones(1, 3)})
        [1]
    """
    present = _indices(state)
    return [index for index in range(max(present)) if index not in present and (index == 0 or index - 1 in present)]


def head_module(state: State, activation: str = "relu") -> nn.Sequential:
    """A head of the layers that the names and shapes of its weights tell.

    Args:
        state: weights under the indices of the layers, as in `Layout.heads`.
        activation: of `ACTIVATIONS`; it stands once in every row of numbers without weights. Others of the row, such as
            dropout, do nothing in evaluation.

    Raises:
        ConfigError: a layer is neither linear nor a batch norm, or there is no such activation.

    Example:
        >>> import torch
        >>> head_module({"0.weight": torch.ones(3, 2), "2.weight": torch.ones(1, 3), "2.bias": torch.ones(1)}, "gelu")
        Sequential(
          (0): Linear(in_features=2, out_features=3, bias=False)
          (1): GELU(approximate='none')
          (2): Linear(in_features=3, out_features=1, bias=True)
        )
    """
    between = ACTIVATIONS[check_choice("activation", activation, ACTIVATIONS)]
    present, empty = _indices(state), gaps(state)
    return nn.Sequential(
        *(
            _layer(state, index) if index in present else between() if index in empty else nn.Identity()
            for index in range(max(present) + 1)
        )
    )


def widths(state: State) -> tuple[int, int] | None:
    """Input width of the first linear layer of a head and output width of the last; None: it has no linear layer."""
    linear = {int(name.split(".")[0]): one for name, one in state.items() if one.ndim == 2 and _LENGTHS not in name}
    return (linear[min(linear)].shape[1], linear[max(linear)].shape[0]) if linear else None


def _indices(state: State) -> set[int]:
    return {int(name.split(".")[0]) for name in state}


def _layer(state: State, index: int) -> nn.Module:
    own = {name.partition(".")[2]: tensor for name, tensor in state.items() if name.startswith(f"{index}.")}
    if "running_mean" in own:
        return nn.BatchNorm1d(len(own["running_mean"]), affine="weight" in own)
    if own.keys() == {"weight_g", "weight_v"}:
        return Prototypes(own["weight_v"].shape[1], len(own["weight_v"]))
    if "weight" in own and own["weight"].ndim == 2:
        return nn.Linear(own["weight"].shape[1], own["weight"].shape[0], bias="bias" in own)
    raise ConfigError(f"layer {index} of the head holds {sorted(own)}, neither linear, batch norm nor prototypes")
