"""Features as they are stored."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from mi_core.checks import NumericError
from pipelines.extract.actor.asking import OK, sample_table

KEYS, STATUS = ["a", "b", "c"], [OK, "no image", OK]
COLUMNS = {"norm": np.array([0.1, 60_000.0], np.float32), "pair": np.array([[1, 2], [3, 4]], np.float32)}


@pytest.mark.parametrize(("precision", "kind"), [("float32", pa.float32()), ("float16", pa.float16())])
def test_numbers_take_the_precision_that_was_asked_for(precision: str, kind: pa.DataType) -> None:
    table = sample_table(KEYS, STATUS, COLUMNS, precision)
    assert (table["norm"].type, table["pair"].type) == (kind, pa.list_(kind, 2))
    assert table["norm"].to_pylist() == [np.array(0.1, precision), None, 60_000.0]
    assert table["pair"].to_pylist() == [[1, 2], None, [3, 4]]


def test_a_number_beyond_float16_is_named_and_never_becomes_infinite() -> None:
    with pytest.raises(NumericError, match=r"norm has a value of 7e\+04, .*feature_precision: float32"):
        sample_table(KEYS, STATUS, {"norm": np.array([1.0, 70_000.0], np.float32)}, "float16")
