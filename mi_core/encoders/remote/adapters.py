"""Shapes of requests and answers of encoders behind HTTP; `ADAPTERS` is their table.

An adapter turns PNG files into the parts of a request, and the JSON of an answer into rows of numbers by output. It
checks the outer shape of an answer; `answers` checks the numbers.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mi_core.checks import AnswerError, ShapeError

Rows = Mapping[str, Sequence[Any]]
"""One row of numbers per image, by output; the output ``""`` is one that the answer does not name."""
Content = Callable[[Sequence[str]], dict[str, Any]]
Found = Callable[[Any], Any]


class Adapter:
    """One shape of requests and answers, in JSON.

    Args:
        content: of a request besides the model, from PNG files in base64.
        found: a row per image, or such rows by output, in an answer; LookupError or TypeError: it is of another shape.
        shape: of an answer, in words.
        alone: a request holds one image and no model, which its address names; ``found`` gives the one row.

    At most ``most`` images go into a request, None: any number.
    """

    def __init__(self, content: Content, found: Found, shape: str, *, alone: bool = False) -> None:
        self._content, self._found, self._shape = content, found, shape
        self.most = 1 if alone else None
        self.__doc__ = f"POST {json.dumps(content(['base64 PNG']))} for {shape}."

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
        if isinstance(found, list):
            return {"": [found] if self.most == 1 else found}
        if not isinstance(found, dict) or not all(isinstance(rows, list) for rows in found.values()):
            raise ShapeError(f"the answer has no {self._shape}")
        return found


class MultipartAdapter(Adapter):
    """POST a form with one file ``images`` per image; answers as those of ``json``."""

    def __init__(self) -> None:
        super().__init__(*_JSON)
        self.__doc__ = type(self).__doc__

    def request(self, images: Sequence[bytes], named: Mapping[str, str]) -> dict[str, Any]:
        """The content of a request, as a form."""
        files = [("images", (f"{number}.png", image, "image/png")) for number, image in enumerate(images)]
        return {"files": files, "data": dict(named)}


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


def _voyage(image: str) -> dict[str, str]:
    return {"type": "image_base64", "image_base64": _data_url(image)}


_JSON: tuple[Content, Found, str] = (
    lambda images: {"images": list(images)},
    lambda answer: answer["embeddings"],
    '{"embeddings": ...} with one list per image, or one by output',
)
_COHERE = {"input_type": "image", "embedding_types": ["float"]}
_INDEXED = '{"data": [{"index": ..., "embedding": [...]}, ...]}'
ADAPTERS: dict[str, Adapter] = {
    "json": Adapter(*_JSON),
    "multipart": MultipartAdapter(),
    "openai": Adapter(
        lambda images: {"input": [_data_url(image) for image in images], "encoding_format": "float"},
        _by_index,
        _INDEXED,
    ),
    "voyage": Adapter(
        lambda images: {"inputs": [{"content": [_voyage(image)]} for image in images]}, _by_index, _INDEXED
    ),
    "jina": Adapter(
        lambda images: {"input": [{"image": image} for image in images], "embedding_type": "float"}, _by_index, _INDEXED
    ),
    "cohere": Adapter(
        lambda images: {"images": [_data_url(image) for image in images], **_COHERE},
        lambda answer: answer["embeddings"]["float"],
        '{"embeddings": {"float": [[...], ...]}}',
    ),
    "titan": Adapter(
        lambda images: {"inputImage": images[0]}, lambda answer: answer["embedding"], '{"embedding": [...]}', alone=True
    ),
    "vertex": Adapter(
        lambda images: {"instances": [{"image": {"bytesBase64Encoded": images[0]}}]},
        lambda answer: answer["predictions"][0]["imageEmbedding"],
        '{"predictions": [{"imageEmbedding": [...]}]}',
        alone=True,
    ),
    "gemini": Adapter(
        lambda images: {"content": {"parts": [{"inline_data": {"mime_type": "image/png", "data": images[0]}}]}},
        lambda answer: answer["embedding"]["values"],
        '{"embedding": {"values": [...]}}',
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
