"""Reads the tensors of files that hold other objects beside them, and names files that hold none.

A pickle is read so that no class of it is imported and no function called but those that build a tensor: empty objects
stand in for all others.
"""

from __future__ import annotations

import io
import json
import pickle
import re
import warnings
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

CONTAINERS = ("state_dict", "model_state_dict", "model", "net", "network", "teacher", "student", "module")
"""Names under which checkpoints keep their weights; the first that is there is taken."""
_MAGIC: dict[bytes, str] = {
    b"version https://git-lfs": "a Git-LFS pointer, not the weights; run git lfs pull in its repository",
    b"\x1f\x8b": "compressed (gzip); unpack it",
    b"BZh": "compressed (bzip2); unpack it",
    b"\xfd7zXZ": "compressed (xz); unpack it",
    b"\x28\xb5\x2f\xfd": "compressed (zstd); unpack it",
    b"7z\xbc\xaf": "a 7z archive; unpack it",
    b"\x89HDF": "HDF5, as Keras writes it; convert it to PyTorch",
    b"GGUF": "GGUF; convert it to PyTorch",
    b"\x93NUMPY": "an array of NumPy; save a dictionary of tensors by name with torch.save",
}


class _Stand:
    """Stands in for an object of a class, or for what a function returns; takes whatever it is given."""

    kind = ""

    def __new__(cls, *args: Any, **kwargs: Any) -> _Stand:
        made = object.__new__(cls)
        made.parts = {}
        return made

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.parts: dict[Any, Any] = dict(kwargs)
        for one in args:
            self.__setstate__(one)

    def __call__(self, *args: Any, **kwargs: Any) -> _Stand:
        return self

    def __setstate__(self, state: Any) -> None:
        for one in state if isinstance(state, tuple) else (state,):
            if isinstance(one, dict):
                self.parts |= one

    def __setitem__(self, key: Any, value: Any) -> None:
        self.parts[key] = value

    def append(self, value: Any) -> None:
        """Take an item."""

    extend = add = append


def _strided(storage: Any, offset: int, size: Any, stride: Any, *rest: Any) -> torch.Tensor:
    return torch._utils._rebuild_tensor(storage, offset, size, stride)


_REBUILT: dict[str, Callable[..., Any]] = {
    "torch._utils._rebuild_tensor": _strided,
    "torch._utils._rebuild_tensor_v2": _strided,
    "torch._utils._rebuild_parameter": lambda data, *rest: data,
    "torch._utils._rebuild_parameter_with_state": lambda data, *rest: data,
    "torch._tensor._rebuild_from_type_v2": lambda build, kind, parts, state: build(*parts),
    "builtins.set": lambda items=(): list(items),
}


class _Unpickler(pickle.Unpickler):
    """Puts empty objects in place of all classes and functions, but of dictionaries and of what builds a tensor."""

    def find_class(self, module: str, name: str) -> Any:
        """A dictionary, what builds a tensor, or a class of empty objects that remember what they stand for."""
        kind = f"{module}.{name}".replace("__builtin__", "builtins")
        if kind == "collections.OrderedDict":
            return OrderedDict
        if kind in _REBUILT:  # a function of its own, for a pickle may set attributes of what it is given
            return partial(_REBUILT[kind])
        return type(name, (_Stand,), {"kind": kind})


class _Pickles:
    """In place of the module `pickle`, for ``torch.load``."""

    Unpickler = _Unpickler

    @staticmethod
    def load(stream: Any, **settings: Any) -> Any:
        """An object of its own, as the first ones of an older file."""
        return _Unpickler(stream, **settings).load()


def tensors_in(data: bytes) -> Any:
    """The content of a file by ``torch.save``, as dictionaries; objects without tensors are empty, others unfolded.

    A module becomes its state dict. The file must not be TorchScript, which would be run.

    Raises:
        Exception: of any kind, if the file is damaged or no such file.
    """
    with warnings.catch_warnings(action="ignore"):  # that the source of an empty class is not found
        return _unfolded(torch.load(io.BytesIO(data), "cpu", _Pickles, weights_only=False), ())


def _unfolded(value: Any, above: tuple[int, ...]) -> Any:
    """Objects as dictionaries of the tensors in them, where there are any; ``above``: what a value stands in."""
    if id(value) in above:
        return None
    inside = (*above, id(value))
    if isinstance(value, _Stand):
        if {"_parameters", "_modules"} <= value.parts.keys():
            return _state_dict(value, inside)
        held = {str(key): _unfolded(one, inside) for key, one in value.parts.items()}
        return {key: one for key, one in held.items() if isinstance(one, torch.Tensor | Mapping)} or value
    return {key: _unfolded(one, inside) for key, one in value.items()} if isinstance(value, dict) else value


def _state_dict(module: _Stand, above: tuple[int, ...]) -> dict[str, torch.Tensor]:
    """The state dict of a module whose class is not built."""
    hidden = module.parts.get("_non_persistent_buffers_set")
    left = hidden if isinstance(hidden, list | set) else ()
    own = {**module.parts["_parameters"], **module.parts.get("_buffers", {})}
    state = {name: one for name, one in own.items() if isinstance(one, torch.Tensor) and name not in left}
    for name, part in module.parts["_modules"].items():
        inner = _unfolded(part, above) if isinstance(part, _Stand) else None
        if isinstance(inner, dict):
            state |= {f"{name}.{key}": one for key, one in inner.items() if isinstance(one, torch.Tensor)}
    return state


def is_torchscript(data: bytes) -> bool:
    """True if a file is TorchScript."""
    if not zipfile.is_zipfile(io.BytesIO(data)):
        return False
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return any("/code/" in name or name.endswith("constants.pkl") for name in archive.namelist())


TORCHSCRIPT = (
    "the weights are a TorchScript file, which is code (OpenAI publishes CLIP so); save its weights alone: "
    "python -c \"import torch; torch.save(torch.jit.load('FILE', map_location='cpu').state_dict(), 'new.pt')\""
)


def unreadable(data: bytes) -> str:
    """The message for a file without tensors that can be read: what it is, and the remedy."""
    start = data[:512].lstrip()
    known = next((what for magic, what in _MAGIC.items() if start.startswith(magic)), None)
    if not data:
        known = "empty (0 bytes); download or save it anew"
    elif start[:1] == b"<":
        known = "a web page or an answer in XML, such as an error or a sign-in; download the file itself"
    elif data[257:262] == b"ustar":
        known = "a tar archive; unpack it"
    elif start[:1] in b"{[":
        index = b'"weight_map"' in data
        known = "the index of a model in several files; give its folder" if index else "JSON; give the file of weights"
    elif data[4:8] == b"TFL3" or re.match(rb"\x08[\x01-\x20][\x12\x1a\x22\x2a\x3a\x42]", data):
        known = "an ONNX file; write load: onnx"
        if data[4:8] == b"TFL3":
            known = "a TFLite file; give the PyTorch weights that it was made of, or load: python:module:function"
    elif data[:2] == b"PK":
        known = _zip_in_words(data)
    elif (whole := _whole_safetensors(data)) > len(data):
        known = f"a safetensors file that is cut short, {len(data):,} of {whole:,} bytes; download it anew"
    elif data[:1] == b"\x80" and known is None:
        known = "a pickle that is damaged, cut short or not of PyTorch; download it anew, or save its state_dict() anew"
    if known is not None:
        return f"the file is {known}"
    return "the weights are neither safetensors nor a PyTorch file; save its state_dict() with torch.save"


def _zip_in_words(data: bytes) -> str:
    if not zipfile.is_zipfile(io.BytesIO(data)):
        return f"a PyTorch or ZIP file that is cut short after {len(data):,} bytes; download or save it anew"
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        names = archive.namelist()
    if any(name.endswith("data.pkl") for name in names):
        return "a PyTorch file whose tensors are damaged or of a kind that is not read; save its state_dict() anew"
    if any(name.endswith(".npy") for name in names):
        return "a NumPy archive; save a dictionary of tensors by name with torch.save"
    return f"a ZIP archive of {', '.join(names[:3])}; unpack it"


def _whole_safetensors(data: bytes) -> int:
    """Bytes that a safetensors file should have by its header; 0: it is none."""
    length = int.from_bytes(data[:8], "little")
    if data[8:9] != b"{" or length > 100_000_000:
        return 0
    if len(data) < 8 + length:
        return 8 + length
    try:
        header = json.loads(data[8 : 8 + length])
        ends = [one["data_offsets"][1] for name, one in header.items() if name != "__metadata__"]
        return 8 + length + max(ends, default=0)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        return 0
