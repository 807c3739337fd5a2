"""Describes files that PyTorch does not read as plain data, and the line that converts them.

Its pickle is read so that no class of it is imported and no function called: empty objects stand in for all of them.
"""

from __future__ import annotations

import io
import pickle
import re
import zipfile
from collections import OrderedDict
from typing import Any

CONTAINERS = ("state_dict", "model_state_dict", "model", "net", "network", "teacher", "student", "module")
"""Names under which checkpoints keep their weights; the first that is there is taken."""
_PLAIN = re.compile(
    r"builtins\.(set|dict|list)|torch\.(_utils|serialization|storage|\w*Storage|Size|device|_tensor|nn\.parameter)"
)
_TENSORS = re.compile(r"torch\.(_utils\._rebuild|nn\.parameter)")


class _Empty:
    """Stands in for an object of a class, or for what a function returns; takes whatever it is given."""

    kind = ""

    def __new__(cls, *args: Any, **kwargs: Any) -> _Empty:
        return object.__new__(cls)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.parts: list[Any] = [*args, *kwargs.values()]

    def __setstate__(self, state: Any) -> None:
        self.parts = [*getattr(self, "parts", []), state]

    def __setitem__(self, key: Any, value: Any) -> None:
        self.parts.append(value)

    def append(self, value: Any) -> None:
        """Take an item."""
        self.parts.append(value)


class _Reader(pickle.Unpickler):
    """Reads a pickle with empty objects in place of all classes and functions."""

    def find_class(self, module: str, name: str) -> Any:
        """A class of empty objects that remember what they stand for."""
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        return type(name, (_Empty,), {"kind": f"{module}.{name}".replace("__builtin__", "builtins")})

    def persistent_load(self, pid: Any) -> Any:
        """No storage is read; older files keep the classes of modules so."""
        return pid[1] if pid[0] == "module" else None


def unreadable(data: bytes) -> str:
    """The message for a file that is not plain tensors: the reason, its content and the remedy."""
    remedy = "save its state_dict() anew, or load TorchScript with torchscript"
    if _is_torchscript(data):
        return (
            "the weights are a TorchScript file, which is code (OpenAI publishes CLIP so); save its weights alone: "
            "python -c \"import torch; torch.save(torch.jit.load('FILE', map_location='cpu').state_dict(), 'new.pt')\""
        )
    try:
        held = _held(data)
    except Exception:  # noqa: BLE001 - a damaged pickle may fail in any way
        return f"the weights are neither safetensors nor a PyTorch file of plain tensors; {remedy}"
    if isinstance(held, _Empty):
        what, kept = f"a whole {held.kind} object", "c.state_dict()"
    elif isinstance(held, dict):
        foreign = {str(key): sorted(kinds) for key, value in held.items() if (kinds := _foreign(value))}
        clean = ", ".join(str(key) for key in held if str(key) not in foreign)
        named = ", ".join(f"{key} ({', '.join(kinds[:3])})" for key, kinds in foreign.items())
        what, kept = f"{named}" + (f" beside {clean}" if clean else ""), _kept(held)
    else:
        return f"the file holds a {type(held).__name__}, not a state dict; {remedy}"
    return (
        f"the file holds {what}, not plain tensors alone; if you trust it, for this runs its code, convert it with: "
        f"python -c \"import torch; c = torch.load('FILE', map_location='cpu', weights_only=False); "
        f"torch.save({kept}, 'weights.pth')\""
    )


def _kept(held: dict[Any, Any]) -> str:
    """In Python, what is to be saved of a checkpoint ``c``: its weights."""
    names = [name for name in CONTAINERS if name in held]
    names = names or [str(key) for key, value in held.items() if _holds_tensors(value) and not _foreign(value)]
    names = names or [str(key) for key, value in held.items() if _foreign(value)]
    modules = [name for name in names if isinstance(held[name], _Empty)]
    if modules:
        return f"c[{modules[0]!r}].state_dict()"
    return f"{{k: c[k] for k in {names}}}"


def _foreign(value: Any) -> set[str]:
    """Names of all classes and functions in a value that are no part of plain tensors."""
    return {kind for kind in _kinds(value) if not _PLAIN.match(kind)}


def _holds_tensors(value: Any) -> bool:
    return any(_TENSORS.match(kind) for kind in _kinds(value))


def _kinds(value: Any) -> set[str]:
    """Names of all classes and functions in a value, at any depth."""
    if isinstance(value, type) and issubclass(value, _Empty):
        return {value.kind}
    if isinstance(value, _Empty):
        return {value.kind}.union(*map(_kinds, getattr(value, "parts", [])))
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple | set) else ()
    return set().union(*map(_kinds, parts))


def _is_torchscript(data: bytes) -> bool:
    if not zipfile.is_zipfile(io.BytesIO(data)):
        return False
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return any("/code/" in name for name in archive.namelist())


def _held(data: bytes) -> Any:
    """The object that ``torch.save`` wrote, with empty objects in it."""
    if zipfile.is_zipfile(io.BytesIO(data)):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            name = next(name for name in archive.namelist() if name.endswith("data.pkl"))
            return _Reader(io.BytesIO(archive.read(name))).load()
    stream = io.BytesIO(data)
    for _ in range(3):  # a magic number, the protocol and the machine stand first in older files
        _Reader(stream).load()
    return _Reader(stream).load()
