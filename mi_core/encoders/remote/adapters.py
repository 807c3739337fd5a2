"""Shapes of requests and answers of encoders behind HTTP; `ADAPTERS` is their table.

An adapter turns PNG files into the parts of a request, and the JSON of an answer into rows of numbers by output. It
checks the outer shape of an answer; `answers` checks the numbers.
"""

from __future__ import annotations

import base64
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mi_core.checks import AnswerError, ShapeError

Rows = Mapping[str, Sequence[Any]]
"""One row of numbers per image, by output; the output ``""`` is one that the answer does not name."""
Content = Callable[[Sequence[str]], dict[str, Any]]
Found = Callable[[Any], list[Any] | None]


class Adapter(ABC):
    """One shape of requests and answers; at most ``most`` images go into a request, None: any number."""

    most: int | None = None

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


class VendorAdapter(Adapter):
    """The API of a vendor, which answers with one output.

    Args:
        asked, shape: of a request and of its answer, in words.
        content: of a request besides the model, from PNG files in base64.
        found: the rows of an answer; None, LookupError or TypeError: it is of another shape.
        alone: a request holds one image and no model, which its address names; ``found`` gives the one row.
    """

    def __init__(self, asked: str, shape: str, content: Content, found: Found, *, alone: bool = False) -> None:
        self.__doc__ = f"POST {asked} for {shape}{'; one image per request' if alone else ''}."
        self._shape, self._content, self._found = shape, content, found
        self.most = 1 if alone else None

    def request(self, images: Sequence[bytes], named: Mapping[str, str]) -> dict[str, Any]:
        """The content of a request: PNG files, and the ``model`` where one is named."""
        own = self._content([base64.b64encode(image).decode() for image in images])
        return {"json": own if self.most == 1 else {**named, **own}}

    def rows(self, answer: Any) -> Rows:
        """Rows by output. Raises ShapeError: the answer is of another shape, or an index is missing or twice there."""
        try:
            found = self._found(answer)
        except (LookupError, TypeError):
            found = None
        if not isinstance(found, list):
            raise ShapeError(f"the answer has no {self._shape}")
        return {"": [found] if self.most == 1 else found}


def _by_index(answer: Any) -> list[Any] | None:
    """The embeddings of entries that come in any order; None: an index is no whole number."""
    entries = answer["data"]
    by_index = {entry["index"]: entry["embedding"] for entry in entries}
    if not all(type(index) is int for index in by_index):
        return None
    if by_index.keys() != set(range(len(entries))):
        raise ShapeError(f"the {len(entries)} entries of the answer do not have each index from 0 on once")
    return [by_index[index] for index in range(len(entries))]


def _data_url(image: str) -> str:
    return f"data:image/png;base64,{image}"


_INDEXED = '{"data": [{"index": ..., "embedding": [...]}, ...]}'
ADAPTERS: dict[str, Adapter] = {
    "json": JSONAdapter(),
    "multipart": MultipartAdapter(),
    "openai": VendorAdapter(
        '{"model", "input": [data URL, ...]}',
        _INDEXED,
        lambda images: {"input": [_data_url(image) for image in images], "encoding_format": "float"},
        _by_index,
    ),
    "voyage": VendorAdapter(
        '{"model", "inputs": [{"content": [{"type": "image_base64", "image_base64": data URL}]}, ...]} (Voyage AI)',
        _INDEXED,
        lambda images: {
            "inputs": [{"content": [{"type": "image_base64", "image_base64": _data_url(image)}]} for image in images]
        },
        _by_index,
    ),
    "jina": VendorAdapter(
        '{"model", "input": [{"image": base64 PNG}, ...]} (Jina AI)',
        _INDEXED,
        lambda images: {"input": [{"image": image} for image in images], "embedding_type": "float"},
        _by_index,
    ),
    "cohere": VendorAdapter(
        '{"model", "input_type": "image", "images": [data URL, ...]}',
        '{"embeddings": {"float": [[...], ...]}}',
        lambda images: {
            "input_type": "image",
            "embedding_types": ["float"],
            "images": [_data_url(image) for image in images],
        },
        lambda answer: answer["embeddings"]["float"],
    ),
    "titan": VendorAdapter(
        '{"inputImage": base64 PNG} (Amazon Bedrock)',
        '{"embedding": [...]}',
        lambda images: {"inputImage": images[0]},
        lambda answer: answer["embedding"],
        alone=True,
    ),
    "vertex": VendorAdapter(
        '{"instances": [{"image": {"bytesBase64Encoded": base64 PNG}}]} (Vertex AI)',
        '{"predictions": [{"imageEmbedding": [...]}]}',
        lambda images: {"instances": [{"image": {"bytesBase64Encoded": images[0]}}]},
        lambda answer: answer["predictions"][0]["imageEmbedding"],
        alone=True,
    ),
    "gemini": VendorAdapter(
        '{"content": {"parts": [{"inline_data": {"mime_type": "image/png", "data": base64 PNG}}]}}',
        '{"embedding": {"values": [...]}}',
        lambda images: {"content": {"parts": [{"inline_data": {"mime_type": "image/png", "data": images[0]}}]}},
        lambda answer: answer["embedding"]["values"],
        alone=True,
    ),
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
