"""The training loop: resuming equals not stopping, the loss falls, the learning rate follows its schedule."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mi_core.augmentations.simclr import SimCLRAugmentation
from mi_core.checks import ConfigError, NumericError
from mi_core.encoders.checkpoint import fingerprint, load_weights, weights_bytes
from mi_core.objectives import OBJECTIVES
from mi_core.objectives.simclr import SimCLRParameters
from mi_core.training.data import ResidentImages
from mi_core.training.loop import Pretrainer, PretrainingParameters, audited_encoder
from mi_core.training.optimizers import OptimizerParameters
from tests.raising import refused


def make_trainer(**changes: object) -> Pretrainer:
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
    parameters = PretrainingParameters(**settings)  # type: ignore[arg-type]
    data = ResidentImages(images, names, torch.arange(40) % 3, batch_size=parameters.batch_size, seed=4)
    return Pretrainer(data, augmentation, parameters, seed=4)


HEAD = {"projection_hidden": 32, "projection_width": 16}
SETTINGS: dict[str, dict[str, Any]] = {
    "simclr": {"temperature": 0.2, **HEAD},
    "moco-v1": {"queue": 32, "projection_width": 16, "batch_norm_splits": 4},
    "moco-v2": {"queue": 32, "projection_width": 16, "momentum": 0.9},
    "supervised": {"classes": 3},
    "talos": {"temperature": 0.2, "values": 3, **HEAD},
} | dict.fromkeys(("moco-v3", "vicreg"), HEAD)
PARAMETERS = {name: OBJECTIVES[name].Parameters(**settings) for name, settings in SETTINGS.items()}


@pytest.mark.parametrize("objective", PARAMETERS)
def test_resumed_equals_continuous(objective: str) -> None:
    """Momentum encoders, queues, their pointers and the shuffling of batches continue where they were."""

    def trainer() -> Pretrainer:
        return make_trainer(objective=objective, objective_parameters=PARAMETERS[objective])

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


@pytest.mark.parametrize("objective", ["simclr", "moco-v1", "talos"])
@pytest.mark.parametrize("stops", [(0,), (1, 2, 3), (5,)])
def test_a_run_stopped_within_an_epoch_goes_on_with_the_next_step(objective: str, stops: tuple[int, ...]) -> None:
    def trainer() -> Pretrainer:
        return make_trainer(objective=objective, objective_parameters=PARAMETERS[objective])

    straight = trainer()
    while straight.epoch < 3:
        straight.train_epoch()
    run, done = trainer(), 0

    def after_step(index: int) -> None:
        nonlocal done
        done += 1
        if done - 1 in stops:
            raise InterruptedError

    while run.epoch < 3:
        try:
            run.train_epoch(after_step)
        except InterruptedError:
            state, run = run.state_bytes(), trainer()
            run.load_state_bytes(state)
    assert done == 3 * run.data.steps  # none was done twice
    assert run.losses == straight.losses
    assert fingerprint(run.encoder()) == fingerprint(straight.encoder())


def test_loss_falls_and_seeds_differ() -> None:
    run = make_trainer(epochs=30)
    for _ in range(30):
        run.train_epoch()
    assert sum(run.losses[-5:]) < sum(run.losses[:5]) - 1.0
    assert run.data.steps == 2  # 40 images, batches of 16: the incomplete third is left out


def test_batches_are_disjoint_and_new_each_epoch() -> None:
    data = make_trainer().data
    assert isinstance(data, ResidentImages)
    first, second = data.rows(0).flatten(), data.rows(1).flatten()
    assert len(set(first.tolist())) == 32
    assert first.tolist() != second.tolist()


def test_batches_drawn_together_are_those_drawn_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = list(make_trainer(batch_size=4).view_batches(2))
    monkeypatch.setattr(Pretrainer, "_batches_at_once", 3)
    together = list(make_trainer(batch_size=4).view_batches(2))
    assert len(alone) == len(together) == 8  # of 10
    for (views, _), (others, _) in zip(alone, together, strict=True):
        assert torch.equal(views, others)


def test_views_differ_between_epochs_and_are_normalised() -> None:
    run = make_trainer(mean=(0.5,), std=(0.25,))
    batch = next(run.data.epoch(0))
    views = run.views(batch, epoch=0)
    assert views.shape == (16, 2, 1, 8, 8)
    assert not torch.equal(views[:, 0], views[:, 1])
    assert not torch.equal(views, run.views(batch, epoch=1))
    raw = run.augmentation(batch.images, batch.streams, epoch=0, view=1)
    torch.testing.assert_close(views[:, 1], (raw - 0.5) / 0.25)


def test_audited_encoder_takes_the_trained_weights() -> None:
    run = make_trainer()
    run.train_epoch()
    again = audited_encoder(run.parameters, channels=1, image_size=8)
    load_weights(again, weights_bytes(run.encoder()))
    assert fingerprint(again) == fingerprint(run.encoder())


def test_started_from_another_encoder() -> None:
    """Backbone and fitting heads are taken; the momentum encoder starts as their copy; another backbone is refused."""
    base = make_trainer(objective="moco-v2", objective_parameters=PARAMETERS["moco-v2"])
    base.train_epoch()
    again = make_trainer(objective="moco-v2", objective_parameters=PARAMETERS["moco-v2"], epochs=3)
    again.start_from(base.encoder())
    assert fingerprint(again.encoder()) == fingerprint(base.encoder())
    assert fingerprint(again.module.key_backbone) == fingerprint(again.module.backbone)
    head = make_trainer(
        objective="supervised", objective_parameters=OBJECTIVES["supervised"].Parameters(3, freeze_backbone=True)
    )
    fresh = fingerprint(head.module.logits)
    head.start_from(base.encoder())
    before = fingerprint(head.module.backbone)
    head.train_epoch()
    assert fingerprint(head.module.backbone) == before == fingerprint(base.module.backbone)  # batch statistics too
    assert fingerprint(head.module.logits) != fresh
    with pytest.raises(ConfigError, match="another backbone than vit-tiny/4"):
        make_trainer(backbone="vit-tiny/4").start_from(base.encoder())


def test_bad_settings_are_refused() -> None:
    refused(ConfigError, "batch_size = 64 exceeds the 40 images", make_trainer, batch_size=64)
    refused(ConfigError, "precision = 'float16', allowed: bfloat16, float32", make_trainer, precision="float16")
    refused(ConfigError, "has 2 values for 1 channels; give 1 or 1", make_trainer, mean=(0.5, 0.5), std=(0.5, 0.5))
    refused(ConfigError, "std above 0", make_trainer, std=(0.0,))
    refused(ConfigError, "learning_rate", OptimizerParameters, learning_rate=0)
    refused(ConfigError, r"optimizer\.name", OptimizerParameters, name="lamb")


def test_a_diverging_run_stops() -> None:
    run = make_trainer(optimizer=OptimizerParameters(name="sgd", learning_rate=1e30, warmup=0))
    with pytest.raises(NumericError, match="lower optimizer.learning_rate"):
        for _ in range(6):
            run.train_epoch()
