"""Optimisers and learning-rate schedules of the published pre-training recipes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn

from mi_core.checks import ConfigError, check_choice, check_range

OPTIMIZERS = ("adamw", "adam", "sgd", "lars")
SCHEDULES = ("constant", "cosine", "step")


class LARS(torch.optim.Optimizer):
    """Layer-wise adaptive rates (You, Gitman, Ginsburg, 2017, algorithm 1), as MoCo v3 trains its ResNets.

    Weights of one axis (biases, norms) get neither decay nor adaptation.

    Args:
        parameters: weights.
        lr: global learning rate.
        weight_decay, momentum: as in SGD.
        trust: eta, the share of a layer's norm by which it may move.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        lr: float,
        weight_decay: float = 0.0,
        momentum: float = 0.9,
        trust: float = 0.001,
    ) -> None:
        super().__init__(parameters, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum, "trust": trust})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One step; gradients must be there."""
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                update = weight.grad
                if weight.ndim > 1:
                    update = update.add(weight, alpha=group["weight_decay"])
                    lengths = torch.stack([weight.norm(), update.norm()])
                    local = group["trust"] * lengths[0] / lengths[1]
                    update = update * torch.where((lengths > 0).all(), local, torch.ones_like(local))
                state = self.state[weight]
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(weight)
                buffer = state["momentum_buffer"]
                buffer.mul_(group["momentum"]).add_(update)
                weight.add_(buffer, alpha=-group["lr"])


@dataclass(frozen=True)
class OptimizerParameters:
    """AdamW, Adam, SGD or LARS, with linear warm-up and a constant, cosine or step-wise learning rate.

    ``warmup`` is the share of all steps over which the rate rises from 0. ``milestones`` are the shares of all steps
    after which a step-wise rate falls to a tenth; adam's weight decay is added to the gradient, adamw's is not.
    """

    name: str = "adamw"
    learning_rate: float = 1e-3
    weight_decay: float = 1e-4
    momentum: float = 0.9
    schedule: str = "constant"
    warmup: float = 0.03
    milestones: tuple[float, ...] = (0.6, 0.8)

    def __post_init__(self) -> None:
        check_choice("optimizer.name", self.name, OPTIMIZERS)
        check_choice("optimizer.schedule", self.schedule, SCHEDULES)
        check_range("optimizer.learning_rate", self.learning_rate, 0, open_low=True)
        check_range("optimizer.weight_decay", self.weight_decay, 0)
        check_range("optimizer.momentum", self.momentum, 0, 1)
        check_range("optimizer.warmup", self.warmup, 0, 1)
        if sorted(self.milestones) != list(self.milestones) or not all(0 < share < 1 for share in self.milestones):
            raise ConfigError(f"optimizer.milestones = {list(self.milestones)}, allowed: rising shares between 0 and 1")

    def build(self, module: nn.Module) -> torch.optim.Optimizer:
        """The optimiser over the weights of ``module`` that learn, fused where PyTorch has that.

        Raises:
            ConfigError: no weight learns.
        """
        weights = [weight for weight in module.parameters() if weight.requires_grad]
        if not weights:
            raise ConfigError("no weight of the encoder learns; nothing to train")
        rate, decay = self.learning_rate, self.weight_decay
        if self.name == "sgd":
            return torch.optim.SGD(weights, lr=rate, momentum=self.momentum, weight_decay=decay, fused=True)
        if self.name == "lars":
            return LARS(weights, lr=rate, momentum=self.momentum, weight_decay=decay)
        made = torch.optim.Adam if self.name == "adam" else torch.optim.AdamW
        return made(weights, lr=rate, weight_decay=decay, fused=True)

    def rate(self, step: int, steps: int) -> float:
        """Learning rate of step ``step`` (from 0) of ``steps``."""
        warm = round(self.warmup * steps)
        if step < warm:
            return self.learning_rate * (step + 1) / warm
        if self.schedule == "constant":
            return self.learning_rate
        if self.schedule == "step":
            return self.learning_rate * 0.1 ** sum(step >= share * steps for share in self.milestones)
        return self.learning_rate * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))
