"""The training loop: resuming equals not stopping, the loss falls, the learning rate follows its schedule."""

from __future__ import annotations

import math

import pytest
import torch

from mi_core.augmentations.simclr import SimCLRAugmentation
from mi_core.checks import ConfigError, NumericError
from mi_core.encoders.checkpoint import fingerprint, load_weights, weights_bytes
from mi_core.objectives.simclr import SimCLRParameters
from mi_core.pretraining import OptimizerParameters, Pretrainer, PretrainingParameters, audited_encoder


def trainer(**changes: object) -> Pretrainer:
    settings = {
        "backbone": "conv4",
        "objective_parameters": SimCLRParameters(0.2, 32, 16),
        "optimizer": OptimizerParameters(learning_rate=5e-3),
        "epochs": 6,
        "batch_size": 16,
    } | changes
    images = torch.randint(0, 256, (40, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    names = [("pool" if row % 2 else "other", f"key{row}") for row in range(40)]
    augmentation = SimCLRAugmentation(crop_scale=(0.5, 1.0), hue=0, saturation=0, grayscale=0)
    return Pretrainer(images, names, augmentation, PretrainingParameters(**settings), seed=4)  # type: ignore[arg-type]


def test_resumed_equals_continuous() -> None:
    straight = trainer()
    for _ in range(6):
        straight.train_epoch()
    first = trainer()
    for _ in range(3):
        first.train_epoch()
    second = trainer()
    second.load_state_bytes(first.state_bytes())
    torch.manual_seed(123)  # the global generator must not matter
    while second.epoch < 6:
        second.train_epoch()
    assert second.losses == straight.losses
    assert fingerprint(second.encoder()) == fingerprint(straight.encoder())


def test_loss_falls_and_seeds_differ() -> None:
    run = trainer(epochs=30)
    for _ in range(30):
        run.train_epoch()
    assert sum(run.losses[-5:]) < sum(run.losses[:5]) - 1.0
    assert run.steps_per_epoch == 2  # 40 images, batches of 16: the incomplete third is left out


def test_batches_are_disjoint_and_new_each_epoch() -> None:
    run = trainer()
    first = torch.cat(list(run._batches()))
    run.epoch = 1
    second = torch.cat(list(run._batches()))
    assert len(set(first.tolist())) == 32
    assert first.tolist() != second.tolist()


def test_views_differ_between_epochs_and_are_normalised() -> None:
    run = trainer(mean=(0.5,), std=(0.25,))
    rows = torch.arange(8)
    views = run.views(rows, epoch=0)
    assert views.shape == (8, 2, 1, 8, 8)
    assert not torch.equal(views[:, 0], views[:, 1])
    assert not torch.equal(views, run.views(rows, epoch=1))
    raw = run.augmentation(run.images[rows], run.streams[rows], epoch=0, view=1)
    torch.testing.assert_close(views[:, 1], (raw - 0.5) / 0.25)


def test_audited_encoder_takes_the_trained_weights() -> None:
    run = trainer()
    run.train_epoch()
    again = audited_encoder(run.parameters, channels=1)
    load_weights(again, weights_bytes(run.encoder()))
    assert fingerprint(again) == fingerprint(run.encoder())


@pytest.mark.parametrize(("schedule", "end"), [("constant", 2.0), ("cosine", 0.0)])
def test_learning_rate(schedule: str, end: float) -> None:
    optimizer = OptimizerParameters(learning_rate=2.0, schedule=schedule, warmup=0.1)
    assert [optimizer.rate(step, 100) for step in (0, 4, 9)] == pytest.approx([0.2, 1.0, 2.0])
    middle = 2.0 if schedule == "constant" else 1 + math.cos(math.pi * 45 / 90)
    assert optimizer.rate(55, 100) == pytest.approx(middle)
    assert optimizer.rate(99, 100) == pytest.approx(end, abs=2e-3)


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="batch_size = 64 exceeds the 40 images"):
        trainer(batch_size=64)
    with pytest.raises(ConfigError, match="precision = 'float16', allowed: bfloat16, float32"):
        trainer(precision="float16")
    with pytest.raises(ConfigError, match="1 or 1|3 channels|for 1 channels"):
        trainer(mean=(0.5, 0.5), std=(0.5, 0.5))
    with pytest.raises(ConfigError, match="std above 0"):
        trainer(std=(0.0,))
    with pytest.raises(ConfigError, match="learning_rate"):
        OptimizerParameters(learning_rate=0)
    with pytest.raises(ConfigError, match=r"optimizer\.name"):
        OptimizerParameters(name="lars")


def test_a_diverging_run_stops() -> None:
    run = trainer(optimizer=OptimizerParameters(name="sgd", learning_rate=1e30, warmup=0))
    with pytest.raises(NumericError, match="lower optimizer.learning_rate"):
        for _ in range(6):
            run.train_epoch()
