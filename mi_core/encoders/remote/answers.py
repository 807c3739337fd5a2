"""Checks answers of an encoder behind HTTP: from the bytes of an answer to embeddings."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mi_core.checks import AnswerError, ShapeError
from mi_core.encoders.remote.adapters import Adapter

Embeddings = dict[str, npt.NDArray[np.float32]]
"""(N, D) by output."""
MOST_NUMBERS = 2**15  # of all embeddings of an image
_NUMBER_BYTES = 32  # of a number as JSON has it, at most
_SPARE_BYTES = 2**20
_BRACKETS = 1000  # of the lists and objects around the numbers of an image, at most


def most_bytes(images: int) -> int:
    """The largest length of an answer about some images: `MOST_NUMBERS` for each, and a mebibyte."""
    return images * MOST_NUMBERS * _NUMBER_BYTES + _SPARE_BYTES


def embeddings(
    body: bytes, adapter: Adapter, outputs: Sequence[str], images: int, widths: Mapping[str, int]
) -> Embeddings:
    """Embeddings (N, D) float32 by output, from the bytes of an answer about N images.

    Args:
        body: of the answer.
        adapter: knows its shape.
        outputs: that it should hold; the first is what an answer holds that names none.
        images: N.
        widths: D by output, where it is known; otherwise the first row has it.

    Raises:
        ShapeError: it is no JSON, not of the adapter's shape, or lacks images or an output.
        AnswerError: a row is not numeric, not finite or of another width; it has the row's number.
    """
    answered = adapter.rows(_json(body, images))
    if "" in answered:
        answered = {outputs[0]: answered[""]}
    matrices = {}
    for output in outputs:
        if output not in answered:
            raise ShapeError(f"the answer has no output {output!r}, it has {', '.join(answered) or 'none'}")
        if len(answered[output]) != images:
            raise ShapeError(f"the answer has {len(answered[output])} embeddings for {images} images ({output})")
        matrices[output] = _matrix(output, answered[output], widths.get(output))
    return matrices


def _json(body: bytes, images: int) -> Any:
    if body.count(b"[") + body.count(b"{") > _BRACKETS * (images + 10):
        raise ShapeError("the answer has far more brackets than a list of embeddings")
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise ShapeError("the answer is no JSON") from None


def _matrix(output: str, lists: Sequence[Any], width: int | None) -> npt.NDArray[np.float32]:
    """(N, D) of the rows of an answer; raises AnswerError for the first that is wrong."""
    rows = []
    for place, values in enumerate(lists):
        row, fault = _row(values, width)
        if row is None:
            raise AnswerError(f"{output} {fault}", place)
        width = len(row)
        rows.append(row)
    return np.stack(rows)


def _row(values: Any, width: int | None) -> tuple[npt.NDArray[np.float32] | None, str]:
    """One row (D,) of an answer, or what is wrong with it."""
    if not isinstance(values, list) or not values:
        return None, "is no list of numbers"
    if not set(map(type, values)) <= {int, float}:
        return None, "holds something else than numbers"
    if width not in (None, len(values)):
        return None, f"has {len(values)} numbers instead of {width}"
    try:
        with np.errstate(over="ignore"):
            row = np.array(values, dtype=np.float64).astype(np.float32)
    except OverflowError:
        return None, "holds an integer that no float holds"
    return (row, "") if np.isfinite(row).all() else (None, "is NaN or infinite")
