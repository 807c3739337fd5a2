"""Batch norm in parts, by tensors and by kernels, which Triton interprets where there is no GPU."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from mi_core.checks import ShapeError
from mi_core.encoders import batch_norm_kernels
from mi_core.encoders.batch_norm import split_batch_norm
from tests.raising import refused

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("kernels", [False, True])
@pytest.mark.parametrize(
    ("shape", "parts", "dtype", "mean"),
    [
        ((8, 3, 5, 7), 4, torch.float32, 0),  # two blocks of rows
        ((8, 64, 7, 5), 2, torch.float32, 1000),  # one block of two tiles, and one that is not full
        ((16, 5, 1, 1), 8, torch.float32, 0),
        ((24, 70, 3, 2), 8, torch.bfloat16, 2),  # two blocks of channels
    ],
)
def test_each_part_is_normalised_alone(
    shape: tuple[int, ...], parts: int, dtype: torch.dtype, mean: int, kernels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Part p holds the rows p, p + parts, ...; running statistics are the mean over parts; the oracle is float64."""
    monkeypatch.setattr(batch_norm_kernels, "PROGRAMS", 2 * parts)
    monkeypatch.setattr("mi_core.runtime.kernels", lambda name: batch_norm_kernels if kernels else None)
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda tensor: True))
    torch.manual_seed(0)
    network = nn.BatchNorm2d(shape[1])
    nn.init.uniform_(network.weight)
    nn.init.uniform_(network.bias)
    alone = [copy.deepcopy(network).double() for _ in range(parts)]
    split = split_batch_norm(network, parts).to(DEVICE)
    rtol, atol = (1e-2, 3e-2) if dtype == torch.bfloat16 else (1e-4, 2e-3 if mean else 1e-5)
    for _ in range(2):
        images, flow = (torch.randn(shape) + mean).to(dtype), torch.randn(shape).to(dtype)
        given, exact = images.to(DEVICE).requires_grad_(), images.double().requires_grad_()
        result = split(given.contiguous(memory_format=torch.channels_last if mean else torch.contiguous_format))
        assert result.dtype == dtype
        expected = torch.stack([part(exact[row::parts]) for row, part in enumerate(alone)], dim=1).flatten(0, 1)
        own, *shares = torch.autograd.grad(expected, [exact, *nn.ModuleList(alone).parameters()], flow.double())
        found = [result, *torch.autograd.grad(result, [given, *split.parameters()], flow.to(DEVICE))]
        for one, other in zip(found, [expected, own, sum(shares[::2]), sum(shares[1::2])], strict=True):
            torch.testing.assert_close(one.cpu().double(), other, rtol=rtol, atol=atol)
    for name, kept in split.named_buffers():
        of_parts = torch.stack([part.get_buffer(name).double() for part in alone]).mean(dim=0)
        torch.testing.assert_close(kept.cpu().double(), of_parts, rtol=1e-5, atol=1e-5)
    plain = nn.BatchNorm2d(shape[1]).to(DEVICE).eval()
    plain.load_state_dict(split.state_dict())
    torch.testing.assert_close(split.eval()(given), plain(given))


def test_parts_that_cannot_be_normalised_are_refused() -> None:
    normalised = batch_norm_kernels.NormalisedParts
    for count in (6, 4):  # no multiple; one value each
        refused(ShapeError, "a multiple of 8 images", normalised.apply, torch.ones(count, 3, 1, 1), None, None, 4, 1e-5)
