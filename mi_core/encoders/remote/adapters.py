"""Shapes of requests and answers of encoders behind HTTP; `ADAPTERS` is their table.

An adapter turns PNG files into the parts of a request, and the JSON of an answer into rows of numbers by output. It
checks the outer shape of an answer; `answers` checks the numbers.
"""

from __future__ import annotations

import base64
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from mi_core.checks import AnswerError, ShapeError

Rows = Mapping[str, Sequence[Any]]
"""One row of numbers per image, by output; the output ``""`` is one that the answer does not name."""


class Adapter(ABC):
    """One shape of requests and answers; at most ``most`` images go into a request, None: any number."""

    most: ClassVar[int | None] = None

    @abstractmethod
    def request(self, images: Sequence[bytes], named: Mapping[str, str]) -> dict[str, Any]:
        """The content of a request: PNG files, and the ``model`` where one is named."""

    @abstractmethod
    def rows(self, answer: Any) -> Rows:
        """Rows by output. Raises ShapeError: the answer is of another shape."""


class JSONAdapter(Adapter):
    """POST {"images": [base64 PNG, ...]} for {"embeddings": {output: [[...], ...]}} or {"embeddings": [[...], ...]}."""

    def request(self, images: Sequence[bytes], named: Mapping[str, str]) -> dict[str, Any]:
        """The content of a request: PNG files, and the ``model`` where one is named."""
        return {"json": {**named, "images": [base64.b64encode(image).decode() for image in images]}}

    def rows(self, answer: Any) -> Rows:
        """Rows by output. Raises ShapeError: the answer is of another shape."""
        embeddings = answer.get("embeddings") if isinstance(answer, dict) else None
        if isinstance(embeddings, list):
            return {"": embeddings}
        if not isinstance(embeddings, dict) or not all(isinstance(rows, list) for rows in embeddings.values()):
            raise ShapeError('the answer has no {"embeddings": ...} with one list per image')
        return embeddings


class MultipartAdapter(JSONAdapter):
    """POST a form with one file ``images`` per image; answers as those of ``json``."""

    def request(self, images: Sequence[bytes], named: Mapping[str, str]) -> dict[str, Any]:
        """The content of a request, as a form."""
        files = [("images", (f"{number}.png", image, "image/png")) for number, image in enumerate(images)]
        return {"files": files, "data": dict(named)}


class OpenAIAdapter(Adapter):
    """POST {"model", "input": [data URL, ...]} for {"data": [{"index", "embedding": [...]}, ...]}, in any order."""

    def request(self, images: Sequence[bytes], named: Mapping[str, str]) -> dict[str, Any]:
        """The content of a request."""
        urls = [data_url(image) for image in images]
        return {"json": {**named, "input": urls, "encoding_format": "float"}}

    def rows(self, answer: Any) -> Rows:
        """Rows by output. Raises ShapeError: the answer is of another shape, or an index is missing or twice there."""
        entries = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(entries, list) or not all(
            isinstance(entry, dict) and type(entry.get("index")) is int and "embedding" in entry for entry in entries
        ):
            raise ShapeError('the answer has no {"data": [{"index": ..., "embedding": [...]}, ...]}')
        by_index = {entry["index"]: entry["embedding"] for entry in entries}
        if set(by_index) != set(range(len(entries))):
            raise ShapeError(f"the {len(entries)} entries of the answer do not have each index from 0 on once")
        return {"": [by_index[index] for index in range(len(entries))]}


class VoyageAdapter(OpenAIAdapter):
    """POST {"model", "inputs": [{"content": [data URL]}, ...]}, as Voyage AI takes it; answers as of ``openai``."""

    def request(self, images: Sequence[bytes], named: Mapping[str, str]) -> dict[str, Any]:
        """The content of a request."""
        contents = [{"content": [{"type": "image_base64", "image_base64": data_url(image)}]} for image in images]
        return {"json": {**named, "inputs": contents}}


class CohereAdapter(Adapter):
    """POST {"model", "input_type": "image", "images": [data URL, ...]} for {"embeddings": {"float": [[...], ...]}}."""

    def request(self, images: Sequence[bytes], named: Mapping[str, str]) -> dict[str, Any]:
        """The content of a request."""
        urls = [data_url(image) for image in images]
        return {"json": {**named, "input_type": "image", "embedding_types": ["float"], "images": urls}}

    def rows(self, answer: Any) -> Rows:
        """Rows by output. Raises ShapeError: the answer is of another shape."""
        embeddings = answer.get("embeddings") if isinstance(answer, dict) else None
        rows = embeddings.get("float") if isinstance(embeddings, dict) else None
        if not isinstance(rows, list):
            raise ShapeError('the answer has no {"embeddings": {"float": [[...], ...]}}')
        return {"": rows}


class TitanAdapter(Adapter):
    """POST {"inputImage": base64 PNG} for {"embedding": [...]}, Amazon Titan on Bedrock; one image per request."""

    most = 1

    def request(self, images: Sequence[bytes], named: Mapping[str, str]) -> dict[str, Any]:
        """The content of a request; the address names the model."""
        (image,) = images
        return {"json": {"inputImage": base64.b64encode(image).decode()}}

    def rows(self, answer: Any) -> Rows:
        """Rows by output. Raises ShapeError: the answer is of another shape."""
        embedding = answer.get("embedding") if isinstance(answer, dict) else None
        if not isinstance(embedding, list):
            raise ShapeError('the answer has no {"embedding": [...]}')
        return {"": [embedding]}


def data_url(image: bytes) -> str:
    """A PNG file as a data URL."""
    return f"data:image/png;base64,{base64.b64encode(image).decode()}"


ADAPTERS: dict[str, Adapter] = {
    "json": JSONAdapter(),
    "multipart": MultipartAdapter(),
    "openai": OpenAIAdapter(),
    "voyage": VoyageAdapter(),
    "cohere": CohereAdapter(),
    "titan": TitanAdapter(),
}


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

    Raises ShapeError: it is no JSON, not of the adapter's shape, or lacks images or an output; AnswerError: a row is
    not numeric, not finite or of another width; it has the row's number.
    """
    if body.count(b"[") + body.count(b"{") > _BRACKETS * (images + 10):
        raise ShapeError("the answer has far more brackets than a list of embeddings")
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        raise ShapeError("the answer is no JSON") from None
    answered = adapter.rows(answer)
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
