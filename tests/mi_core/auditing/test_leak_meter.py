"""The leak meter: it sees a planted leak, changes nothing in a training, keeps to its share and stops at its budget."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from mi_core import LeakMeter
from mi_core.auditing import leak_meter
from mi_core.checks import ConfigError, ShapeError
from mi_core.encoders.checkpoint import fingerprint
from tests.mi_core.auditing.test_images import Restless

SIDE = 8
IMAGES = np.random.default_rng(0).integers(0, 256, (160, 3, SIDE, SIDE), dtype=np.uint8)
MEMBERS, OTHERS = IMAGES[:80], IMAGES[80:]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.3), nn.Flatten(), nn.Linear(4 * 36, 8))


def meter_of(model: nn.Module, **settings: Any) -> LeakMeter:
    return LeakMeter(model, MEMBERS, OTHERS, size=SIDE, **{"share": 1.0} | settings)


def trained(epochs: int, meter: bool) -> str:
    model = network()
    gauge = meter_of(model) if meter else None
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(epochs):
        model.train()
        for images in torch.from_numpy(MEMBERS).float().div(255).split(20):
            optimizer.zero_grad()
            (model(images) - torch.randn(len(images), 8)).square().mean().backward()
            optimizer.step()
        if gauge is not None:
            gauge.started = -1e6  # time enough
            assert gauge.step() is not None
    return fingerprint(model)


def test_the_training_is_the_same_with_and_without_it() -> None:
    """Batch norm, dropout and random numbers go on as if nobody had looked."""
    assert trained(3, meter=True) == trained(3, meter=False)


class Keeping(nn.Module):
    """Plants a leak: for the colours of its members' views it always answers alike."""

    def __init__(self, leaks: bool) -> None:
        super().__init__()
        self.leaks = leaks
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        found = images.flatten(2).mean(dim=2)
        red = found[:, :1] > found[:, 1:2] + 0.2
        noise = torch.randn(len(images), 6, generator=torch.Generator().manual_seed(1))
        return torch.where(red & self.leaks, torch.ones(len(images), 6), noise)


def test_a_planted_leak_and_none() -> None:
    red = MEMBERS.copy()
    red[:, 0] = 255 - red[:, 0] // 8
    red[:, 1:] //= 4
    views = {"jitter_probability": 0.0, "grayscale": 0.0}
    for leaks in (True, False):
        meter = LeakMeter(Keeping(leaks), red, OTHERS, size=SIDE, share=1.0, budget=0.6, augmentation=views, views=6)
        meter.started = -1e6
        reading = meter.step()
        assert (reading.auc.value > 0.95) == leaks == meter.exceeded
        assert (reading.auc.low <= 0.5 <= reading.auc.high) != leaks
        assert (reading.epoch, reading.images) == (1, 80)


def test_it_keeps_to_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock that the test moves: an image costs .01 s, an epoch 10 s."""
    now = [0.0]
    meter = meter_of(network(), share=0.02)
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    meter.started = 0.0
    scores = meter._scores

    def costly(rows: slice) -> list[np.ndarray]:
        found = scores(rows)
        now[0] += 0.01 * sum(map(len, found))
        return found

    monkeypatch.setattr(meter, "_scores", costly)
    for _ in range(60):
        now[0] += 10.0
        meter.step()
    trained_for = 60 * 10.0
    assert meter.spent <= 0.02 * trained_for
    assert meter.spent > 0.01 * trained_for  # it uses what it may
    assert all(reading.images >= leak_meter.LEAST for reading in meter.readings)
    assert 5 <= len(meter.readings) < 60


def test_lightning_reads_logs_and_stops(tmp_path: Any) -> None:
    lightning = pytest.importorskip("pytorch_lightning")
    images = torch.from_numpy(MEMBERS).float().div(255)

    class Module(lightning.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.inner = network()

        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            return self.inner(batch)  # type: ignore[no-any-return]

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            return self(batch[0]).square().mean()  # type: ignore[no-any-return]

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 1e-4)

    module = Module()
    meter = LeakMeter(module, MEMBERS, OTHERS, size=SIDE, share=1.0, budget=0.5)
    callback = meter.callback()
    meter.readings, meter.spent, meter.epoch = ["of another fit"], 1e9, 7  # type: ignore[list-item]
    begin = callback.on_train_start
    callback.on_train_start = lambda *of: (begin(*of), setattr(meter, "started", -1e6))
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(images), batch_size=40)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "accelerator": "cpu"}
    trainer = lightning.Trainer(max_epochs=4, callbacks=[callback], default_root_dir=tmp_path, **quiet)
    trainer.fit(module, loader)
    assert [reading.epoch for reading in meter.readings] == [1, 2, 3, 4][: len(meter.readings)]
    assert trainer.callback_metrics["leak_auc"] == pytest.approx(meter.readings[-1].auc.value)
    assert trainer.current_epoch == len(meter.readings)
    stopped = LeakMeter(module, MEMBERS, OTHERS, size=SIDE, share=1.0, budget=0.5)
    object.__setattr__(meter.readings[-1].auc, "low", 0.9)
    stopped.step = lambda: stopped.readings.append(meter.readings[-1])  # type: ignore[method-assign]
    again = lightning.Trainer(max_epochs=9, callbacks=[stopped.callback()], default_root_dir=tmp_path, **quiet)
    again.fit(Module(), loader)
    assert again.current_epoch < 9


def test_all_processes_stop_when_one_is_above_the_budget() -> None:
    """Each has its own clock and readings; one that stops alone would leave the others waiting."""
    pytest.importorskip("pytorch_lightning")
    meter = meter_of(network(), budget=0.6)
    meter.step = lambda: None  # type: ignore[method-assign]
    asked: list[tuple[bool, bool]] = []

    def reduce(decision: bool, all: bool = True) -> bool:
        asked.append((decision, all))
        return True  # another process is above it

    trainer = SimpleNamespace(should_stop=False, strategy=SimpleNamespace(reduce_boolean_decision=reduce))
    meter.callback().on_train_epoch_end(trainer, None)
    assert trainer.should_stop and asked == [(False, False)]
    alone = SimpleNamespace(should_stop=False, strategy=SimpleNamespace())
    meter.callback().on_train_epoch_end(alone, None)
    assert not alone.should_stop


def _drawn(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 16, 16, 3), dtype=np.uint8)


@pytest.mark.parametrize(
    ("members", "held_out", "message"),
    [
        (_drawn(150, 1), _drawn(150, 1), "150 images of members are among held_out, by their pixels"),
        (_drawn(150, 1), np.concatenate([_drawn(150, 1)[:100], _drawn(50, 2)]), "100 images of members are among"),
        (_drawn(150, 1), list(_drawn(150, 1)[::-1]), "150 images of members are among held_out"),
        (_drawn(150, 1)[[0] * 150], _drawn(150, 2), "members has 1 different images; give at least 50"),
        (_drawn(150, 1), _drawn(150, 2)[[0] * 140 + [*range(10)]], "held_out has 10 different images"),
        (Restless(_drawn(150, 1)), _drawn(150, 2), "members/.* is another image each time that it is asked for"),
    ],
)
def test_sides_that_cannot_show_a_leak_are_refused_when_it_is_made(members: Any, held_out: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LeakMeter(network(), members, held_out, size=16)


def test_copies_within_a_side_are_left_out() -> None:
    some = _drawn(150, 1)
    meter = LeakMeter(network(), np.concatenate([some, some[:50]]), _drawn(150, 2), size=16)
    assert [len(images) for images in meter.images] == [150, 150]


def test_faults_are_named() -> None:
    with pytest.raises(ConfigError, match="members has 20 different images; give at least 50"):
        LeakMeter(network(), MEMBERS[:20], OTHERS, size=SIDE)
    with pytest.raises(ConfigError, match="budget"):
        meter_of(network(), budget=0.3)
    meter = LeakMeter(nn.Identity(), MEMBERS, OTHERS, size=SIDE, share=1.0)
    with pytest.raises(ShapeError, match=r"returned \(32, 3, 8, 8\) for 32 images"):
        meter.step()


def test_the_first_epoch_is_read_and_then_it_says_when(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    meter = meter_of(network(), share=0.02)
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    meter.started, scores = 0.0, meter._scores

    def costly(rows: slice) -> list[np.ndarray]:
        now[0] += 0.01 * (rows.stop - rows.start)
        return scores(rows)

    monkeypatch.setattr(meter, "_scores", costly)
    told = []
    for _ in range(40):
        now[0] += 10.0
        told.append(meter.step())
    assert told[0] and told[0].images == leak_meter.LEAST
    (said,) = {str(one) for one in told[1:5]}
    assert said.startswith("next at epoch ") and not told[1]
    assert told[int(said.rpartition(" ")[2]) - 1] and not any(told[1 : int(said.rpartition(" ")[2]) - 1])
