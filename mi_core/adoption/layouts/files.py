"""Files of weights as tensors by name: which container in them is taken, and what a file holds that cannot be read.

Nothing is unpickled but tensors and plain values; of other objects in a file the tensors alone are read.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import safetensors
import safetensors.torch
import torch

from mi_core.adoption.layouts import listed
from mi_core.adoption.layouts.names import State
from mi_core.adoption.layouts.pickles import CONTAINERS, TORCHSCRIPT, is_torchscript, tensors_in, unreadable
from mi_core.checks import ConfigError

_WRAPPERS = ("module.", "model.")
_WITHIN = re.compile(r"(?:(?<=\.)|^)(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")
_BESIDE: dict[str, str] = {
    r"student$": "the other network; DINO releases the teacher",
    r".*ema.*|momentum.*|target.*": "averaged weights; weights_key chooses them",
    r".*loss.*|criterion.*": "values of the loss",
    r"opt(imi[sz]er.*)?$|.*sched.*|.*scaler.*|callbacks$|loops$": "the state of its training",
}
_JEPA = ("encoder", "predictor", "target_encoder")
_TRAINS = {"encoder$": "the network that trains; I-JEPA evaluates its average, the target encoder"}
_COUNTER = re.compile(r"(^|\.)total_(ops|params)$")  # thop's, which stand outside of wrappers as well


@dataclass(frozen=True)
class Weights:
    """The tensors of a file, and in words what else it holds and why that is left out."""

    state: State
    ignored: tuple[str, ...] = ()


def read_weights(data: bytes, key: str | None = None) -> Weights:
    """The tensors of a weights file, safetensors or PyTorch, also of one that holds other objects, or a whole module.

    Nothing of the file is run: see `pickles`.

    Args:
        data: of the file.
        key: of the entry in it that holds the weights, or what their names begin with, dots between its parts; None:
            the usual one.

    Raises:
        ConfigError: it is neither, or TorchScript; the message tells what it is, and the remedy. Or it has no such key.
    """
    loaded = _loaded(data)
    return unwrap(loaded if key is None else _at(loaded, key))


def _at(loaded: object, key: str) -> object:
    """The entry of a checkpoint under a key."""
    if isinstance(loaded, Mapping):
        if key in loaded:
            return loaded[key]
        first, _, rest = key.partition(".")
        if rest and isinstance(loaded.get(first), Mapping):
            return _at(loaded[first], rest)
        containers = [loaded[name] for name in CONTAINERS if isinstance(loaded.get(name), Mapping)]
        for level in (loaded, *containers):
            below = {str(name): one for name, one in level.items() if str(name).startswith(f"{key}.")}
            if below:
                return {name.removeprefix(f"{key}."): one for name, one in below.items()}
    names = [str(name) for name in loaded] if isinstance(loaded, Mapping) else []
    starts = list(dict.fromkeys(name.partition(".")[0] for name in names))
    raise ConfigError(f"weights_key = {key!r}, but the file has {', '.join(starts[:12]) or 'no keys'}")


def _loaded(data: bytes) -> object:
    try:
        return safetensors.torch.load(data)
    except safetensors.SafetensorError:
        pass
    if is_torchscript(data):
        raise ConfigError(TORCHSCRIPT)
    try:
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception:  # noqa: BLE001 - objects that are no tensors, or a damaged file, which may fail in any way
        pass
    try:
        return tensors_in(data)
    except Exception as error:
        raise ConfigError(unreadable(data)) from error


def unwrap(loaded: object) -> Weights:
    """The tensors of a loaded checkpoint, whatever container they are in.

    Where ``student`` and ``teacher`` stand side by side, the teacher is taken. Other weights beside a container join it
    under their own name.

    Raises:
        ConfigError: there is no dictionary of tensors.
    """
    reasons: dict[str, str] = {}
    if not isinstance(loaded, Mapping):
        raise ConfigError(f"the file holds a {type(loaded).__name__}, not a state dict")
    state = _flat(loaded, reasons)
    if state and all(".lora_" in name for name in state):
        raise ConfigError("the file is a LoRA adapter, a change of another model; give its whole folder")
    if not state:
        raise ConfigError(f"the file holds no tensor; its keys are {sorted(map(str, loaded))[:5]}")
    return Weights(state, tuple(listed(reasons)))


def _flat(level: Mapping[Any, Any], reasons: dict[str, str]) -> State:
    """Tensors by dotted name; ``reasons`` gets every entry that is left out."""
    holding = [str(name) for name, value in level.items() if isinstance(value, Mapping) and _holds(value)]
    joint = set(_JEPA) <= level.keys() and "target_encoder" in holding
    chosen = "target_encoder" if joint else next((name for name in CONTAINERS if name in holding), None)
    reasons_here = _TRAINS if joint else {}
    state: State = {}
    for key, value in level.items():
        name = str(key)
        beside = next((why for pattern, why in (reasons_here | _BESIDE).items() if re.match(pattern, name)), None)
        if key == chosen:
            state |= _flat(value, reasons)
        elif isinstance(value, Mapping) and _holds(value) and beside is None:
            state |= {f"{name}.{inner}": tensor for inner, tensor in _flat(value, reasons).items()}
        elif isinstance(value, torch.Tensor) and (chosen is None or value.ndim):
            state[name] = value
        else:
            reasons[name] = beside or "no weights"
    return _unprefixed(state)


def _holds(value: Mapping[Any, Any]) -> bool:
    """True if there are weights in a dictionary, at any depth; numbers are none."""
    return any(
        bool(entry.ndim) if isinstance(entry, torch.Tensor) else isinstance(entry, Mapping) and _holds(entry)
        for entry in value.values()
    )


def _unprefixed(state: State) -> State:
    """Without what wrappers such as DistributedDataParallel put before every name, and others within names."""
    state = {_WITHIN.sub("", name): tensor for name, tensor in state.items()}
    while True:
        weights = [name for name in state if not _COUNTER.search(name)]
        wrapper = next((start for start in _WRAPPERS if all(name.startswith(start) for name in weights)), None)
        if wrapper is None or not weights:
            return state
        state = {name.removeprefix(wrapper): tensor for name, tensor in state.items()}
