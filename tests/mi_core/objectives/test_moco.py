"""MoCo's losses against loops written from the papers; the queue, the momentum and the shuffled batch norm."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mi_core.checks import ConfigError, ShapeError
from mi_core.encoders import build_backbone
from mi_core.encoders.batch_norm import SplitBatchNorm2d
from mi_core.objectives.moco import (
    MoCoV1,
    MoCoV1Parameters,
    MoCoV2,
    MoCoV2Parameters,
    MoCoV3,
    MoCoV3Parameters,
    in_batch_info_nce,
    queue_info_nce,
    share_of_own_keys,
)
from tests.raising import refused


def rows(count: int, width: int, seed: int) -> torch.Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed))


def units(count: int, width: int, seed: int) -> torch.Tensor:
    return F.normalize(rows(count, width, seed), dim=1)


def views(batch: int, seed: int = 0) -> torch.Tensor:
    return rows(batch * 2, 3 * 8 * 8, seed).reshape(batch, 2, 3, 8, 8)


def dot(one: torch.Tensor, other: torch.Tensor) -> float:
    return sum(x * y for x, y in zip(one.tolist(), other.tolist(), strict=True))


def test_queue_info_nce_equals_the_paper() -> None:
    """Equation 1 of MoCo: -log exp(q.k+ / t) / sum over the key and the queue."""
    queries, keys, queue = units(4, 6, 1), units(4, 6, 2), units(10, 6, 3)
    total = 0.0
    for query, key in zip(queries, keys, strict=True):
        positive = math.exp(dot(query, key) / 0.2)
        total -= math.log(positive / (positive + sum(math.exp(dot(query, old) / 0.2) for old in queue)))
    assert float(queue_info_nce(queries, keys, queue, 0.2)) == pytest.approx(total / 4, rel=1e-5)


def test_in_batch_info_nce_equals_the_paper() -> None:
    """ctr of MoCo v3's algorithm 1: 2 t CE(q k^T / t, own row), queries and keys normalised there."""
    queries, keys = 3 * rows(5, 6, 1), 2 * rows(5, 6, 2)
    total = 0.0
    for row, query in enumerate(queries):
        logits = [dot(query, key) / math.sqrt(dot(query, query) * dot(key, key)) / 0.7 for key in keys]
        total -= logits[row] - math.log(sum(math.exp(logit) for logit in logits))
    assert float(in_batch_info_nce(queries, keys, 0.7)) == pytest.approx(2 * 0.7 * total / 5, rel=1e-5)


def test_keys_get_no_gradient() -> None:
    queries, keys = rows(3, 4, 1).requires_grad_(), rows(3, 4, 2).requires_grad_()
    in_batch_info_nce(queries, keys, 1.0).backward()
    assert keys.grad is None
    assert queries.grad is not None


def test_bad_input() -> None:
    refused(ShapeError, "keys has shape", queue_info_nce, units(2, 3, 0), units(3, 3, 0), units(4, 3, 0), 0.1)
    refused(ShapeError, "queue has shape", queue_info_nce, units(2, 3, 0), units(2, 3, 0), units(4, 5, 0), 0.1)
    refused(ConfigError, "temperature = 0", in_batch_info_nce, units(2, 3, 0), units(2, 3, 0), 0)
    refused(ShapeError, "keys has shape", in_batch_info_nce, units(2, 3, 0), units(2, 4, 0), 1)


def moco(**changes: object) -> MoCoV2:
    torch.manual_seed(0)
    settings = {"queue": 12, "momentum": 0.75, "projection_width": 5} | changes
    return MoCoV2(build_backbone("conv4", 3, 8), MoCoV2Parameters(**settings))  # type: ignore[arg-type]


def test_the_queue_is_first_in_first_out() -> None:
    """After each step the oldest batch of keys is gone, and the newest stands in its place, in order."""
    network = moco().train()
    expected = network.queue.clone()
    for step, start in enumerate((0, 4, 8, 0)):
        batch = views(4, seed=step)
        key_encoder = (network.key_backbone.state_dict(), network.key_projection.state_dict())
        reference = moco().train()
        reference.key_backbone.load_state_dict(key_encoder[0])
        reference.key_projection.load_state_dict(key_encoder[1])
        with torch.no_grad():
            keys = F.normalize(reference.key_projection(reference.key_backbone(batch[:, 1])), dim=1)
        before = network.queue.clone()
        network(batch)
        assert torch.equal(network.queue, before)  # not yet: the gradient still needs it
        network.after_step(0.5)
        expected[start : start + 4] = keys
        torch.testing.assert_close(network.queue, expected)
    assert network.steps == 4


def test_the_loss_is_that_of_query_key_and_queue() -> None:
    network = moco().train()
    twin = moco().train()
    batch = views(4)
    queries = F.normalize(twin.projection(twin.backbone(batch[:, 0])), dim=1)
    keys = F.normalize(twin.key_projection(twin.key_backbone(batch[:, 1])), dim=1)
    torch.testing.assert_close(network(batch), queue_info_nce(queries, keys, twin.queue, 0.2))


def test_momentum_update() -> None:
    network = moco()
    assert all(
        torch.equal(key, query)
        for key, query in zip(network.key_backbone.parameters(), network.backbone.parameters(), strict=True)
    )
    assert not any(weight.requires_grad for weight in network.key_backbone.parameters())
    old = [weight.clone() for weight in network.key_projection.parameters()]
    with torch.no_grad():
        for weight in network.projection.parameters():
            weight.add_(1.0)
    network.after_step(0.5)
    for before, key, query in zip(
        old, network.key_projection.parameters(), network.projection.parameters(), strict=True
    ):
        torch.testing.assert_close(key, 0.75 * before + 0.25 * query)


def test_v3_momentum_rises_to_one() -> None:
    torch.manual_seed(0)
    network = MoCoV3(build_backbone("conv4", 3, 8), MoCoV3Parameters(momentum=0.6, projection_hidden=8))
    for progress in (0.25, 1.0):
        momentum = 1 - 0.5 * (1 + math.cos(math.pi * progress)) * 0.4
        old = next(network.key_projection.parameters()).clone()
        with torch.no_grad():
            next(network.projection.parameters()).add_(1.0)
        network.after_step(progress)
        expected = momentum * old + (1 - momentum) * next(network.projection.parameters())
        torch.testing.assert_close(next(network.key_projection.parameters()), expected)


def test_v3_loss_is_symmetric_and_predicts_on_the_query_side() -> None:
    torch.manual_seed(0)
    network = MoCoV3(build_backbone("conv4", 3, 8), MoCoV3Parameters(projection_hidden=8, projection_width=6)).train()
    batch = views(4)
    torch.testing.assert_close(network(batch), network(batch.flip(1)))
    queries = [network.prediction(network.projection(network.backbone(batch[:, view]))) for view in range(2)]
    keys = [network.key_projection(network.key_backbone(batch[:, view])) for view in range(2)]
    expected = in_batch_info_nce(queries[0], keys[1], 1.0) + in_batch_info_nce(queries[1], keys[0], 1.0)
    torch.testing.assert_close(network(batch), expected)


def test_heads_are_those_of_the_papers() -> None:
    def layers(head: nn.Module) -> list[tuple[str, tuple[int, ...]]]:
        return [(type(layer).__name__, tuple(weight.shape)) for layer in head for weight in [*layer.parameters()][:1]]  # type: ignore[attr-defined]

    backbone = build_backbone("conv4", 3, 8)
    assert layers(MoCoV1(backbone, MoCoV1Parameters(queue=4)).projection) == [("Linear", (128, 128))]
    assert layers(moco(projection_width=64).projection) == [("Linear", (128, 128)), ("Linear", (64, 128))]
    three = MoCoV3(backbone, MoCoV3Parameters())
    assert [type(layer).__name__ for layer in three.projection] == [
        "Linear", "BatchNorm1d", "ReLU", "Linear", "BatchNorm1d",
    ]  # fmt: skip
    assert not three.projection[-1].affine
    assert [type(layer).__name__ for layer in three.prediction] == ["Linear", "BatchNorm1d", "ReLU", "Linear"]
    vit = MoCoV3(
        build_backbone("vit-tiny/4", 3, 8),
        MoCoV3Parameters(projection_layers=3, prediction_norm=True, freeze_patches=True),
    )
    assert sum(isinstance(layer, nn.Linear) for layer in vit.projection) == 3
    assert isinstance(vit.prediction[-1], nn.BatchNorm1d)
    assert not vit.backbone.conv_proj.weight.requires_grad  # type: ignore[union-attr]
    refused(ConfigError, "use it with a ViT", MoCoV3, backbone, MoCoV3Parameters(freeze_patches=True))


@pytest.mark.parametrize(
    ("settings", "batch", "images", "message"),
    [
        ({"queue": 100}, 8, 1000, r"queue = 100 is not divisible by batch_size = 8.*use 96"),
        (
            {"queue": 96},
            8,
            90,
            r"queue = 96 exceeds the 90 images.*use at most 88, .*key in 52% of the steps, or 40 \(12%\)",
        ),
        ({"queue": 96, "batch_norm_splits": 3}, 8, 1000, r"batch_norm_splits = 3 does not divide the 8 images"),
    ],
)
def test_queue_and_parts_are_checked(settings: dict[str, int], batch: int, images: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MoCoV1.check(MoCoV1Parameters(**settings), batch_size=batch, images=images, workers=1)  # type: ignore[arg-type]


@pytest.mark.parametrize(("queue", "share"), [(500, 0.625), (250, 0.1875), (125, 0.0625)])
def test_the_share_of_steps_in_which_an_image_is_its_own_negative(queue: int, share: float) -> None:
    """Expected where images come in a new order every epoch."""
    assert share_of_own_keys(queue, 125, 500) == share
    assert share_of_own_keys(4096, 256, 10_000) == pytest.approx(0.09, abs=0.005)  # EncoderMI
    assert share_of_own_keys(16_384, 256, 20_000) == pytest.approx(0.34, abs=0.005)  # LpLA


def test_shuffled_keys_come_back_in_order_and_meet_other_parts() -> None:
    """With parts the keys are computed in a new order each step: the rows are their images' own, the statistics not."""
    network = moco(batch_norm_splits=2).eval()  # without batch statistics the order cannot matter
    batch = views(12)
    torch.testing.assert_close(network._embed_keys(batch[:, 1]), moco().eval()._key_encoder(batch[:, 1]))
    network.train()
    first = network._embed_keys(batch[:, 1])
    network.steps += 1
    assert not torch.allclose(first, network._embed_keys(batch[:, 1]))
    assert any(isinstance(module, SplitBatchNorm2d) for module in network.modules())
