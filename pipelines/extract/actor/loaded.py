"""Encoders that an actor keeps in memory between chunks."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import nn

from mi_core.encoders.checkpoint import Encoder
from pipelines.errors import UserError
from pipelines.run.folder import SeedFolder

ON_CPU = 2 * 2**30  # bytes of weights that an actor without a GPU keeps
OF_GPU = 0.25  # share of its part of a GPU's memory that an actor keeps weights in


class Checkpoint(NamedTuple):
    """A checkpoint of an encoder of a run."""

    folder: SeedFolder
    encoder: str
    epoch: int


class LoadedEncoders:
    """Encoders by checkpoint; when their weights exceed a budget, those used longest ago leave.

    Args:
        load: builds an encoder on the actor's device.
        budget: bytes of weights. The encoders in use stay, even beyond it.
    """

    def __init__(self, load: Callable[[Checkpoint], Encoder], budget: int) -> None:
        self.load, self.budget = load, budget
        self.builds = 0
        self.kept: OrderedDict[Checkpoint, Encoder] = OrderedDict()
        self.sizes: dict[Checkpoint, int] = {}  # bytes of all that were ever loaded

    def __call__(self, wanted: Sequence[Checkpoint]) -> list[Encoder]:
        """The encoders of some checkpoints, loaded where they are not kept."""
        for checkpoint in wanted:
            if checkpoint not in self.kept:
                self.kept[checkpoint] = self.load(checkpoint)
                self.sizes[checkpoint] = weights_of(self.kept[checkpoint])
                self.builds += 1
            self.kept.move_to_end(checkpoint)
        while len(self.kept) > len(set(wanted)) and self._bytes(self.kept) > self.budget:
            self.kept.popitem(last=False)
        return [self.kept[checkpoint] for checkpoint in wanted]

    def rounds(self, wanted: Sequence[Sequence[Checkpoint]]) -> list[list[int]]:
        """Split what is wanted into rounds, each of which fits the budget: positions in order, each once."""
        for checkpoint in dict.fromkeys(one for some in wanted for one in some):
            if checkpoint not in self.sizes:
                self([checkpoint])
        rounds: list[list[int]] = []
        held: set[Checkpoint] = set()
        for position, some in enumerate(wanted):
            if rounds and self._bytes(held | {*some}) <= self.budget:
                rounds[-1].append(position)
                held |= {*some}
            else:
                rounds.append([position])
                held = {*some}
        return rounds

    def _bytes(self, checkpoints: Iterable[Checkpoint]) -> int:
        return sum(self.sizes[checkpoint] for checkpoint in checkpoints)


def device_with(gpus: float) -> torch.device:
    """The device of an actor that holds some GPUs, on which its passes were planned.

    Raises:
        UserError: it holds GPUs, but PyTorch sees none.
    """
    if gpus and not torch.cuda.is_available():
        raise UserError(
            f"resources.gpus_per_actor = {gpus:g}, but PyTorch sees no GPU there; install PyTorch with CUDA, or set it "
            "to 0"
        )
    return torch.device("cuda" if gpus else "cpu")


def weights_of(module: nn.Module) -> int:
    """Bytes of the parameters and buffers of a module."""
    return sum(tensor.numel() * tensor.element_size() for tensor in (*module.parameters(), *module.buffers()))


def budget_on(device: torch.device, gpus: float) -> int:
    """Bytes of weights that an actor keeps on a device.

    Args:
        device: of the actor.
        gpus: GPUs that the actor holds, such as .5.
    """
    if device.type != "cuda":
        return ON_CPU
    return int(OF_GPU * min(1.0, gpus) * torch.cuda.get_device_properties(device).total_memory)
