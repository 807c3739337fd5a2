"""Gathering embeddings of all workers so that gradients flow back to the worker that made them."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


class _AllGather(torch.autograd.Function):
    """Concatenate equal-sized tensors of all ranks; the gradient is summed over ranks and the own slice taken."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        gathered = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, tensor.contiguous())
        ctx.rows = len(tensor)
        return torch.cat(gathered)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        gradient = gradients[0].contiguous()
        dist.all_reduce(gradient)
        start = dist.get_rank() * ctx.rows
        return gradient[start : start + ctx.rows]


def world() -> tuple[int, int]:
    """(rank, number of workers) of the process group, (0, 1) without one."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def own_rows(count: int, device: torch.device) -> torch.Tensor:
    """Places (count,) of this worker's rows among the gathered rows of all workers."""
    return torch.arange(count, device=device) + world()[0] * count


def gather(tensor: torch.Tensor) -> torch.Tensor:
    """Rows (B, D) of every worker in rank order (W*B, D), differentiable; the tensor itself without a group.

    With the loss of a rank taken over its own rows against all gathered rows, the mean over ranks (what
    DistributedDataParallel computes) of the gradients is the gradient of the whole batch.
    """
    if world()[1] == 1:
        return tensor
    gathered: torch.Tensor = _AllGather.apply(tensor)
    return gathered
