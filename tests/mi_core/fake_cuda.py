"""A GPU that computes shapes, types and devices but no numbers: PyTorch's FakeTensorMode, and what it lacks here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

CUDA = torch.device("cuda")
_ATEN = torch.ops.aten
_READS = (_ATEN.item.default, _ATEN._local_scalar_dense.default, _ATEN.is_nonzero.default)
_INDEXED = (_ATEN.index.Tensor, _ATEN.index_put.default, _ATEN.index_put_.default, _ATEN._unsafe_index.Tensor)


class HostDetourError(AssertionError):
    """Something of the host was used on the device where a GPU would have waited for a copy."""


class _NoNumbers(TorchDispatchMode):
    """Answers what needs numbers: each number that the host reads is 1, each mask chooses all rows.

    ``read`` counts numbers of the device that the host waited for, ``sent`` tensors that it sent there.
    Indices on the host that choose rows on the device are legal in PyTorch, which copies them and waits: here they are
    refused.
    """

    def __init__(self, mode: FakeTensorMode) -> None:
        super().__init__()
        self.mode, self.read, self.sent = mode, 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(type(given) is torch.Tensor for given in args):  # constants of the package are real
            args = tuple(self.mode.from_tensor(given) if type(given) is torch.Tensor else given for given in args)
        if func in _READS:
            self.read += args[0].device.type == "cuda"
            return {torch.bool: True}.get(args[0].dtype, 1.0 if args[0].is_floating_point() else 1)
        if func is _ATEN.bincount.default:
            counts = (kwargs or {}).get("minlength", args[2] if len(args) > 2 else 0)
            return args[0].new_ones(counts)
        if func is _ATEN._fused_sgd_.default:  # has no fake kernel
            _on_one_device(args[:3])
            return None
        if func in _INDEXED:
            indices = [self._rows(index, args[0]) for index in args[1]]
            args = (args[0], indices, *args[2:])
        result = func(*args, **(kwargs or {}))
        copied = func._schema.name in ("aten::to", "aten::_to_copy")
        if copied and isinstance(args[0], torch.Tensor):  # torch.func gives numbers too
            self.sent += args[0].device.type == "cpu" and result.device.type == "cuda"
        return result

    @staticmethod
    def _rows(index: torch.Tensor | None, of: torch.Tensor) -> torch.Tensor | None:
        if index is None:
            return None
        if index.device != of.device:
            raise HostDetourError(f"indices on {index.device.type} for a tensor on {of.device.type}")
        if index.dtype == torch.bool and index.ndim == 1:
            return torch.arange(len(index), device=index.device)
        return index


def _on_one_device(lists: Sequence[Sequence[torch.Tensor]]) -> None:
    found = {tensor.device for tensors in lists for tensor in tensors}
    if len(found) > 1:
        raise HostDetourError(f"weights, gradients and momenta on {found}")


class _Event:
    """An event of a device that has always done everything."""

    def __init__(self, enable_timing: bool = False) -> None:
        pass

    def record(self) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, after: _Event) -> float:
        return 1.0


class _Stream:
    """A queue of work that is always done."""

    device = CUDA

    def __init__(self, *_: object) -> None:
        pass

    def wait_stream(self, other: _Stream) -> None:
        pass


def _copied(tensor: torch.Tensor, memo: dict[int, torch.Tensor]) -> torch.Tensor:
    if id(tensor) not in memo:
        copied = tensor.detach().clone()
        learns = tensor.requires_grad
        memo[id(tensor)] = nn.Parameter(copied, learns) if isinstance(tensor, nn.Parameter) else copied
    return memo[id(tensor)]


def _zero_gradients(outputs: Sequence[torch.Tensor], *given: Any, **_: Any) -> tuple[torch.Tensor, ...]:
    """Gradients for the inputs asked for; if none are, for all weights that the outputs were computed from."""
    inputs: Sequence[torch.Tensor] = given[3]
    waiting, seen = [output.grad_fn for output in outputs], set()
    while waiting and not inputs:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            node.variable.grad = torch.zeros_like(node.variable)
        waiting += [before for before, _ in node.next_functions]
    return tuple(torch.zeros_like(one) for one in inputs)


def _moved(module: nn.Module, change: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> nn.Module:
    """What ``Module._apply`` does with parameters and buffers, which it cannot where others remember the fake ones."""
    for child in module.children() if recurse else ():
        child._apply(change)
    for name, own in module._parameters.items():
        if own is not None:
            module._parameters[name] = nn.Parameter(change(own.detach()), own.requires_grad)
    for name, kept in module._buffers.items():
        if kept is not None:
            module._buffers[name] = change(kept)
    return module


@contextmanager
def fake_cuda() -> Iterator[_NoNumbers]:
    """Tensors inside are fake; those of ``cuda`` behave as on a GPU in all but numbers.

    Build on the CPU and move to `CUDA`, as the package does: under ``torch.device("cuda")`` a tensor that a module
    forgets to register would be on the device by chance.
    """
    with pytest.MonkeyPatch.context() as patch:
        # autocast switches itself off without a GPU, pinning and events need its driver
        patch.setattr("torch.cuda.amp.common.amp_definitely_not_available", lambda: False)
        patch.setattr("torch.cuda.is_bf16_supported", lambda *_: True)
        patch.setattr("torch.cuda.Event", _Event)
        patch.setattr("torch.cuda.Stream", _Stream)
        patch.setattr("torch.cuda.current_stream", _Stream)
        patch.setattr("torch.cuda.stream", nullcontext)
        patch.setattr("mi_core.encoders.batch_norm._kernels_work", lambda: False)  # they write to real memory
        patch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
        patch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: None)
        patch.setattr(FakeTensor, "__deepcopy__", _copied)  # PyTorch's own reads memory that is not there
        patch.setattr(nn.Module, "_apply", _moved)
        patch.setattr("torch.backends.mha._is_fastpath_enabled", False)  # PyTorch 2.11 has no fake kernel of it
        patch.setattr(nn.init, "trunc_normal_", lambda weight, *_, **__: weight)  # it draws until no number is outside
        patch.setattr(FakeTensorMode, "may_turn_const", lambda *_: False)  # single numbers would be computed for real
        patch.setattr(torch.autograd, "_engine_run_backward", _zero_gradients)  # PyTorch's engine asks the driver
        with FakeTensorMode(allow_non_fake_inputs=True) as mode, _NoNumbers(mode) as numbers:
            yield numbers
