"""Code as an encoder: TorchScript files and Python callables. Both run what others wrote."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import io
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from mi_core.checks import ConfigError, ShapeError
from mi_core.encoders.checkpoint import fingerprint


class CodeBackbone(nn.Module):
    """Code as a backbone: images (B, C, H, W) to embeddings (B, D), an array or a tensor."""

    def __init__(self, function: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Images (B, C, H, W) to embeddings (B, D)."""
        embeddings = self.function(images)
        if isinstance(embeddings, np.ndarray):
            embeddings = torch.from_numpy(embeddings)
        if not isinstance(embeddings, torch.Tensor):
            raise ShapeError(f"the encoder returned a {type(embeddings).__name__}, expected an array or tensor (B, D)")
        return embeddings.to(images.device)


def code_backbone(load: str, data: bytes | None) -> tuple[CodeBackbone, str]:
    """The backbone of ``torchscript`` or ``python:module:function``, and a hash of the code.

    Raises:
        ConfigError: no file, no such function, or something that is neither.
    """
    kind, _, name = load.partition(":")
    function, mark = _scripted(data) if kind == "torchscript" else _imported(name)
    if isinstance(function, nn.Module):
        function = function.eval()
    return CodeBackbone(function), mark


def _scripted(data: bytes | None) -> tuple[Any, str]:
    if data is None:
        raise ConfigError("load = 'torchscript' needs weights, the file that torch.jit.save wrote")
    try:
        function: Any = torch.jit.load(io.BytesIO(data), map_location="cpu")
    except RuntimeError as error:
        raise ConfigError(f"not a TorchScript file: {' '.join(str(error).split())[:120]}") from error
    return function, hashlib.sha256(data).hexdigest()


def _imported(name: str) -> tuple[Any, str]:
    """A callable by ``module:function``, and a hash of the file that defines it."""
    module_name, colon, attribute = name.partition(":")
    if not colon:
        raise ConfigError(f"load = 'python:{name}': write python:module:function")
    try:
        module = importlib.import_module(module_name)
        function = getattr(module, attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"load = 'python:{name}': {error}; the module must be importable on every node") from error
    except Exception as error:
        raise ConfigError(f"load = 'python:{name}': {module_name} raises {type(error).__name__}: {error}") from error
    if not callable(function):
        raise ConfigError(f"load = 'python:{name}' is a {type(function).__name__}, not callable")
    try:
        source = inspect.getsource(module)
    except (OSError, TypeError) as error:
        raise ConfigError(f"load = 'python:{name}': {module_name} has no Python source to take a hash of") from error
    weights = fingerprint(function) if isinstance(function, nn.Module) else ""
    return function, hashlib.sha256(f"{name}:{source}:{weights}".encode()).hexdigest()
