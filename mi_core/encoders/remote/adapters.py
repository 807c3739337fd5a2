"""Shapes of requests and answers of encoders behind HTTP; `ADAPTERS` is their table.

An adapter turns PNG files into the parts of a request, and the JSON of an answer into rows of numbers by output. It
checks the outer shape of an answer; `answers` checks the numbers.
"""

from __future__ import annotations

import base64
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from mi_core.checks import ShapeError

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
