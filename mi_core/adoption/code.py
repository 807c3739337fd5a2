"""Code as an encoder: TorchScript files and Python callables, which run what others wrote, and ONNX graphs."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import io
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn

from mi_core.checks import ConfigError, ShapeError, import_extra
from mi_core.encoders.checkpoint import fingerprint


class CodeBackbone(nn.Module):
    """Code as a backbone: images (B, C, H, W) to what holds embeddings (B, D); see `embedding_of`.

    Args:
        function: the code.

    ``taken`` says what was taken of the last answer, where that was no embedding itself; else it is empty.
    """

    def __init__(self, function: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.function = function
        self.taken = ""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Images (B, C, H, W) to embeddings (B, D) float32."""
        embeddings, self.taken = embedding_of(self.function(images))
        return embeddings.to(images.device, torch.float32)


@dataclass(frozen=True)
class GivenNetwork:
    """A network as code, which stays where it is and as it is; no module of what asks it.

    Args:
        network: in evaluation mode.
        place: where it is.
        dtype: of what it reads.
    """

    network: nn.Module
    place: torch.device
    dtype: torch.dtype

    def __call__(self, images: torch.Tensor) -> Any:
        """What it returns for images (B, C, H, W)."""
        return self.network(images.to(self.place, self.dtype))


_NAMED = ("image_embeds", "pooler_output", "x_norm_clstoken")  # of transformers and of DINOv2; the first wins


def embedding_of(answer: Any) -> tuple[torch.Tensor, str]:
    """The embedding in what a network returns, and in words what was taken; empty: the answer itself.

    Args:
        answer: an array or tensor (B, D); maps (B, C, H, W) or (B, H, W, C), H = W, whose mean over space is taken; or
            one of these alone in a tuple or list, alone in a dictionary or the fields of a class, or among others under
            a name that transformers or DINOv2 give to the embedding of an image.

    Raises:
        ShapeError: it holds no tensor.
        ConfigError: it holds several embeddings, or a vector per token; the message shows how to choose.
    """
    fields = _fields(answer)
    if fields is not None:
        held = {name: one for name, one in fields.items() if isinstance(one, torch.Tensor | np.ndarray)}
        name = next((name for name in _NAMED if name in held), next(iter(held), None) if len(held) == 1 else None)
        if name is None and held:
            first = next(iter(held))
            way = f"[{first!r}]" if isinstance(answer, Mapping) or isinstance(first, int) else f".{first}"
            raise ConfigError(
                f"the encoder returned a {type(answer).__name__} of {', '.join(map(str, held))}; give a function that "
                f"chooses one, such as lambda x: model(x){way}"
            )
        if name is not None:
            rows, words = embedding_of(held[name])
            what = f"entry {name}" if isinstance(name, int) else str(name)
            return rows, f"of a {type(answer).__name__} the {what} is taken" + (f", {words}" if words else "")
    if isinstance(answer, np.ndarray):
        answer = torch.from_numpy(answer)
    if not isinstance(answer, torch.Tensor):
        raise ShapeError(f"the encoder returned a {type(answer).__name__}, expected an array or tensor (B, D)")
    return _pooled(answer)


def _fields(answer: Any) -> dict[Any, Any] | None:
    """The entries of a dictionary, tuple, list or dataclass by name or position; None: it is none of these."""
    if isinstance(answer, Mapping):
        return dict(answer)
    if isinstance(answer, tuple | list):
        return dict(enumerate(answer)) if not hasattr(answer, "_asdict") else dict(answer._asdict())
    return dict(vars(answer)) if is_dataclass(answer) and not isinstance(answer, type) else None


def _pooled(answer: torch.Tensor) -> tuple[torch.Tensor, str]:
    shape = tuple(answer.shape)
    if len(shape) == 3:
        raise ConfigError(
            f"the encoder returned {shape}, a vector for every token; give a function that chooses, such as "
            "lambda x: model(x)[:, 0] for the class token, or lambda x: model(x).mean(1)"
        )
    if len(shape) != 4:
        return answer, ""
    first, last = shape[2] == shape[3], shape[1] == shape[2]
    if first == last and shape[1:] != (1, 1, 1):
        raise ConfigError(
            f"the encoder returned {shape}, which does not tell its channels; give a function that takes the mean over "
            "space, such as lambda x: model(x).mean((2, 3))"
        )
    return answer.mean(dim=(2, 3) if first else (1, 2)), f"of maps {shape[1:]} the mean over space is taken"


class OnnxGraph:
    """An ONNX graph as a function of images (B, C, H, W), computed on the CPU, without gradients.

    A graph of (B, H, W, C) gets its axes so, and one of a fixed batch gets the last one filled up.

    Args:
        data: of the file.
        output: that is the embedding; empty: the only one, or the one with a name that `embedding_of` knows.

    ``channels`` and ``side``: of the images that it takes; None: the graph does not say.

    Raises:
        ConfigError: onnxruntime (the onnx extra) is missing, or it is no graph from square images to one embedding.
    """

    def __init__(self, data: bytes, output: str = "") -> None:
        runtime = import_extra("onnxruntime", "an ONNX file", "onnx")
        options = runtime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = torch.get_num_threads(), _FATAL
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", os.devnull)
        if _EXTERNAL in data:  # onnxruntime would look in the current folder; what is there has no fingerprint
            raise ConfigError(f"the ONNX file keeps its weights in another file; {_IN_ONE}")
        try:
            self._session = runtime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        except Exception as error:
            raise ConfigError(f"onnxruntime takes no such file: {' '.join(str(error).split())[:160]}") from error
        images, names = self._session.get_inputs(), [one.name for one in self._session.get_outputs()]
        told = ", ".join(f"{one.name} {one.type} {one.shape}" for one in images)
        if len(images) != 1 or len(images[0].shape) != 4 or images[0].type not in _FLOATS:
            raise ConfigError(f"the graph takes {told}, not images (B, C, H, W) of floats alone; export such a one")
        self._input, self._dtype = images[0].name, _FLOATS[images[0].type]
        self._batch, *axes = (one if isinstance(one, int) else None for one in images[0].shape)
        self._last = axes[2] in (1, 3) and axes[0] not in (1, 3)
        self.channels, self.side, width = (axes[2], *axes[:2]) if self._last else axes
        if None not in (self.side, width) and self.side != width:
            raise ConfigError(f"the graph takes {told}, and images here are square; export it for square ones")
        self._output = output or next((one for one in _NAMED if one in names), names[0] if len(names) == 1 else "")
        if self._output not in names:
            raise ConfigError(f"the graph has the outputs {', '.join(names)}; choose one, as in load: onnx:{names[0]}")

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """Images (B, C, H, W) to what the output holds of them (B, ...)."""
        answers, count = [], self._batch or len(images)
        for part in images.detach().float().cpu().split(count):
            sent = torch.cat([part, part[-1:].expand(count - len(part), -1, -1, -1)])
            array = np.ascontiguousarray(sent.permute(0, 2, 3, 1) if self._last else sent, dtype=self._dtype)
            answers.append(self._session.run([self._output], {self._input: array})[0][: len(part)])
        return torch.from_numpy(np.concatenate(answers))


_EXTERNAL = b"\x0a\x08location\x12"  # the entry of a tensor that names its file
_FATAL = 4  # the severity of what onnxruntime logs
_FLOATS = {"tensor(float)": np.float32, "tensor(float16)": np.float16}
_IN_ONE = "join them: python -c \"import onnx; onnx.save(onnx.load('FILE'), 'one.onnx')\""


def code_backbone(load: str, data: bytes | None) -> tuple[CodeBackbone, str]:
    """The backbone of ``torchscript``, ``onnx`` or ``python:module:function``, and a hash of the code.

    Raises:
        ConfigError: no file, no such function, or something that is neither.
    """
    kind, _, name = load.partition(":")
    if kind == "python":
        function, mark = _imported(name)
    elif data is None:
        raise ConfigError(f"load = {load!r} needs weights, the file of the graph or of torch.jit.save")
    else:
        function, mark = OnnxGraph(data, name) if kind == "onnx" else _scripted(data), file_mark(load, data)
    if isinstance(function, nn.Module):
        function = function.eval()
    return CodeBackbone(function), mark


def file_mark(load: str, data: bytes) -> str:
    """A hash of a TorchScript or ONNX file, and of the output that ``load`` names."""
    return hashlib.sha256(data + load.partition(":")[2].encode()).hexdigest()


def _scripted(data: bytes) -> Any:
    try:
        return torch.jit.load(io.BytesIO(data), map_location="cpu")
    except RuntimeError as error:
        raise ConfigError(f"not a TorchScript file: {' '.join(str(error).split())[:120]}") from error


def imported(field: str, name: str) -> tuple[ModuleType, Any]:
    """A module, and a callable in it by ``module:function``.

    Args:
        field: of the config that names it, for errors.
        name: without ``python:``.

    Raises:
        ConfigError: there is no such module or callable.
    """
    module_name, colon, attribute = name.partition(":")
    if not colon:
        raise ConfigError(f"{field} = 'python:{name}': write python:module:function")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))  # as workers have it, so that every command finds the same modules
    try:
        module = importlib.import_module(module_name)
        function = getattr(module, attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{field} = 'python:{name}': {error}; the module must be importable on every node") from error
    except Exception as error:
        raise ConfigError(f"{field} = 'python:{name}': {module_name} raises {type(error).__name__}: {error}") from error
    if not callable(function):
        raise ConfigError(f"{field} = 'python:{name}' is a {type(function).__name__}, not callable")
    return module, function


def _imported(name: str) -> tuple[Any, str]:
    """A callable by ``module:function``, and a hash of the file that defines it."""
    module, function = imported("load", name)
    try:
        source = inspect.getsource(module)
    except (OSError, TypeError) as error:
        raise ConfigError(
            f"load = 'python:{name}': {module.__name__} has no Python source to take a hash of"
        ) from error
    weights = fingerprint(function) if isinstance(function, nn.Module) else ""
    return function, hashlib.sha256(f"{name}:{source}:{weights}".encode()).hexdigest()
