"""The benchmark measures what it says: every way trains, the ratios are those of the medians."""

from __future__ import annotations

import multiprocessing

import pytest
import torch

from mi_core.checks import ConfigError
from tests.studies.bench import training as benchmark
from tests.studies.bench.training import TRAINING_CASES, TrainingCase, training_benchmark


def images(count: int) -> torch.Tensor:
    return torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def test_ratios_are_those_of_the_medians(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TRAINING_CASES, "tiny", TrainingCase("conv4", 8, 2, 3))
    found = training_benchmark("tiny", images(32), threads=1)
    rates = {way: found["images_per_second"][way]["median"] for way in found["images_per_second"]}
    assert set(rates) >= {"ours", "model step", "PIL DataLoader"}
    for key, way in (("pil_dataloader", "PIL DataLoader"), ("lightly", "lightly"), ("model_step", "model step")):
        if way in rates:
            assert found[f"ours_over_{key}"] == pytest.approx(rates["ours"] / rates[way], rel=0.01)
    assert found["rounds"] == 3
    for way, spread in found["images_per_second"].items():
        assert spread["least"] <= spread["median"] <= spread["most"], way


def test_every_way_moves_all_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """A way that skips the backward pass or the step would look fast."""
    case = TrainingCase("conv4", 8, 1, 1)
    trainer = benchmark._trainer(case, images(32), "float32", "cpu")
    ways = [benchmark._ours(trainer, 1), benchmark._model_step(trainer, 1)]
    ways += benchmark._dataloader_layouts(trainer, case, images(32), benchmark._TwoViews(32), "PIL DataLoader", 1)[:1]
    lightly = benchmark._lightly_views()
    if lightly is not None:
        ways += benchmark._dataloader_layouts(trainer, case, images(32), lightly, "lightly", 1)[:1]
    for way in ways:
        stepped: list[int] = []
        with monkeypatch.context() as patch:
            patch.setattr(torch.optim.AdamW, "step", lambda self, stepped=stepped: stepped.append(learning(self)))
            turn = way.begin()
            next(turn)
            turn.close()
        assert stepped == [len(list(trainer.module.parameters()))], way.name


def learning(optimizer: torch.optim.Optimizer) -> int:
    """How many weights have a gradient that is not zero everywhere."""
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    return sum(weight.grad is not None and bool(weight.grad.any()) for weight in weights)


def test_a_turn_leaves_no_loader_behind() -> None:
    """A loader that goes on filling its queue would slow the next way down and be fast itself."""
    before = {process.pid for process in multiprocessing.active_children()}
    case = TrainingCase("conv4", 8, 1, 1)
    trainer = benchmark._trainer(case, images(64), "float32", "cpu")
    ways = benchmark._dataloader_layouts(trainer, case, images(64), benchmark._TwoViews(32), "PIL DataLoader", 1)
    (way,) = [way for way in ways if way.workers]
    benchmark._time(way, 2, trainer)
    assert {process.pid for process in multiprocessing.active_children()} == before


def test_views_of_all_ways_look_alike() -> None:
    """Same size, same normalisation: the published ways are not given less to do."""
    trainer = benchmark._trainer(TrainingCase("conv4", 64, 1, 1), images(64), "float32", "cpu")
    ours = trainer.views(next(trainer.data.epoch(0)), 0)
    transforms = [benchmark._TwoViews(32)]
    lightly = benchmark._lightly_views()
    if lightly is not None:
        transforms.append(lightly)
    for transform in transforms:
        data = benchmark._ImageList(images(64), transform)
        theirs = torch.stack([torch.stack(data[row]) for row in range(64)])
        assert theirs.shape == ours.shape
        assert abs(float(theirs.mean() - ours.mean())) < 0.1
        assert abs(float(theirs.std() / ours.std()) - 1) < 0.1


def test_bad_input() -> None:
    with pytest.raises(ConfigError, match="case = 'large', allowed: resnet18, small"):
        training_benchmark("large", images(2))
    with pytest.raises(ConfigError, match="40 images, the case small needs 250"):
        training_benchmark("small", images(40))
