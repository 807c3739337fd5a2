"""Encoders stay loaded between chunks, within a budget of memory; features are stored as it was asked."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn

from mi_core.checks import NumericError
from mi_core.encoders.checkpoint import Encoder
from pipelines.errors import UserError
from pipelines.extract.actor import asking
from pipelines.extract.actor.asking import ON_CPU, Checkpoint, LoadedEncoders, budget_on, device_with, weights_of
from pipelines.run.folder import SeedFolder

pytestmark = pytest.mark.ray

FOLDER = SeedFolder("run", 0)
A, B, C = (Checkpoint(FOLDER, name, 3) for name in "abc")


def load(checkpoint: Checkpoint) -> Encoder:
    encoder = Encoder(nn.Linear(250, 1, bias=False), {}, torch.zeros(1), torch.ones(1))
    encoder.name = checkpoint.encoder  # type: ignore[assignment]
    return encoder


SIZE = weights_of(load(A))


def test_what_is_kept_is_not_loaded_again() -> None:
    encoders = LoadedEncoders(load, 2 * SIZE)
    for wanted in ([A], [B], [A], [B], [A, B]):
        assert [encoder.name for encoder in encoders(wanted)] == [checkpoint.encoder for checkpoint in wanted]
    assert encoders.builds == 2
    assert SIZE >= 250 * 4


def test_the_one_used_longest_ago_leaves() -> None:
    encoders = LoadedEncoders(load, 2 * SIZE)
    for wanted in ([A], [B], [A], [C]):
        encoders(wanted)
    assert list(encoders.kept) == [A, C]
    encoders([B])
    assert (list(encoders.kept), encoders.builds) == ([C, B], 4)


def test_encoders_in_use_stay_beyond_the_budget() -> None:
    encoders = LoadedEncoders(load, 1)
    assert len(encoders([A, B, C])) == 3
    assert list(encoders.kept) == [A, B, C]
    encoders([B])
    assert list(encoders.kept) == [B]
    assert encoders.builds == 3


def test_the_budget_of_a_cpu() -> None:
    assert budget_on(torch.device("cpu"), 0.0) == ON_CPU


def test_an_actor_that_holds_a_gpu_never_works_on_the_cpu_instead() -> None:
    assert device_with(0.0) == torch.device("cpu")
    if not torch.cuda.is_available():
        with pytest.raises(UserError, match=r"gpus_per_actor = 0.5, but PyTorch sees no GPU there"):
            device_with(0.5)


KEYS, STATUS = ["a", "b", "c"], [asking.OK, "no image", asking.OK]
COLUMNS = {"norm": np.array([0.1, 60_000.0], np.float32), "pair": np.array([[1, 2], [3, 4]], np.float32)}


@pytest.mark.parametrize(("precision", "kind"), [("float32", pa.float32()), ("float16", pa.float16())])
def test_numbers_take_the_precision_that_was_asked_for(precision: str, kind: pa.DataType) -> None:
    table = asking.sample_table(KEYS, STATUS, COLUMNS, precision)
    assert (table["norm"].type, table["pair"].type) == (kind, pa.list_(kind, 2))
    assert table["norm"].to_pylist() == [np.array(0.1, precision), None, 60_000.0]
    assert table["pair"].to_pylist() == [[1, 2], None, [3, 4]]


def test_a_number_beyond_float16_is_named_and_never_becomes_infinite() -> None:
    with pytest.raises(NumericError, match=r"norm has a value of 7e\+04, .*feature_precision: float32"):
        asking.sample_table(KEYS, STATUS, {"norm": np.array([1.0, 70_000.0], np.float32)}, "float16")
