"""The base of membership features: a frozen dataclass that says what it asks an encoder for and how it is computed.

N images, V augmented views, D width of an embedding, A images of a bank.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
import torch

from mi_core.augmentations.views import Augmentation, clean, make_views

Consumes = Literal["image", "views", "crops", "adversarial", "search"]
"""What is made of an image before an encoder sees it: nothing (``image``), ``views`` by a recipe of augmentations,
``crops`` of it, ``adversarial`` images that are crafted on another encoder, or the images of a ``search`` that goes by
the encoder's answers."""


class Oracle(Protocol):
    """One encoder and a batch of N images, as a measure may ask about them; `mi_core.querying` answers."""

    @property
    def name(self) -> str:
        """The encoder, for errors."""

    @property
    def batch(self) -> Batch:
        """The images."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """Outputs that are read."""

    @property
    def at_once(self) -> int:
        """Queries that go to the encoder in one call, at most."""

    def embed(self, images: torch.Tensor, outputs: tuple[str, ...] | None = None) -> dict[str, torch.Tensor]:
        """Embeddings by output, (M, D) of images (M, C, S, S), or (M, V, D) of several each (M, V, C, S, S).

        Args:
            images: float32 in [0, 1].
            outputs: default: those that are read.
        """

    def bank(self, count: int) -> Mapping[str, torch.Tensor]:
        """Embeddings (A, D) by output of the first A = ``count`` images of the bank; asked once for all batches."""

    def crafter(self) -> Callable[[torch.Tensor], torch.Tensor]:
        """Images to the logits of the classifier that adversarial images are crafted on. Raises ConfigError: none."""

    def check(self, what: str, rows: torch.Tensor) -> None:
        """Raise NumericError, now or when the batch is fetched, for rows (N, ...) that are not finite."""


@dataclass(frozen=True)
class Measure:
    """One membership feature: N images and an encoder to one row per image.

    A subclass is a frozen dataclass. Its fields are the parameters of the feature: numbers, words and flags, each with
    a default. Measures are equal where kind and parameters are.

    An extraction takes three steps. `sent` makes the images that all encoders are sent alike. `answers` asks one
    encoder; measures of one `query` share what it answers. `values` makes rows of that.
    """

    kind: ClassVar[str]
    """Its word in `mi_core.features.MEASURES`."""
    consumes: ClassVar[Consumes]
    """What it sends in place of an image."""
    shares_views: ClassVar[bool] = False
    """Whether it reads the V views that are drawn once for all such measures; others draw as many as they say."""
    output: ClassVar[str | None] = None
    """The one output of an encoder that it can be read off; None: any."""
    captions: ClassVar[bool] = False
    """Whether it takes the captions of the images, and an encoder with a text tower."""
    labels: ClassVar[bool] = False
    """Whether it takes the true classes of the images."""
    searches: ClassVar[bool] = False
    """Whether an image's queries depend on answers, so that nobody knows them before."""

    @property
    def bank(self) -> int:
        """A, the images of a bank that it compares each image with; 0 for none."""
        return 0

    @property
    def name(self) -> str:
        """Its column in a feature file, after the output: the kind, and all parameters."""
        given = [(field.name, getattr(self, field.name)) for field in fields(self)]
        words = [_word(name, value) for name, value in given if value is not False]
        return f"{self.kind}:{'/'.join(words)}" if words else self.kind

    @property
    def query(self) -> str:
        """The set of queries that it is computed from; measures of equal sets share the answers."""
        if self.shares_views:
            return "views"
        return "image" if self.consumes == "image" else self.name

    def query_count(self, views: int) -> int:
        """Queries per image where V = ``views`` are drawn; of a search the most that it may spend."""
        return views if self.shares_views else 1

    def queries_at_once(self, views: int) -> int:
        """Queries of one image that are in memory together."""
        return self.query_count(views)

    def shape(self, views: int, width: int) -> tuple[int, ...]:
        """The shape of one image's row for V = ``views`` and D = ``width``, at most; () for a number."""
        return ()

    def first_views(self, values: np.ndarray, drawn: int, used: int) -> np.ndarray:
        """Its rows as if only the first ``used`` of ``drawn`` views had been queried.

        Args:
            values: (N, F), as a feature file holds them.
            drawn, used: numbers of views.

        Raises ConfigError: fewer views were drawn than are used.
        """
        return values

    def sent(self, batch: Batch, views: ViewMaker) -> torch.Tensor | None:
        """Images (N, C, S, S) in [0, 1], or several for each (N, V, C, S, S); None: they depend on the encoder."""
        if self.shares_views:
            return views.draw(batch.images, batch.streams)
        return clean(batch.images) if self.consumes == "image" else None

    def answers(self, oracle: Oracle, sent: torch.Tensor | None) -> Mapping[str, torch.Tensor]:
        """The answers of an encoder, by output: the embeddings of what is sent, or rows."""
        assert sent is not None
        return oracle.embed(sent)

    def values(self, answer: torch.Tensor, texts: torch.Tensor | None = None) -> torch.Tensor:
        """Rows (N, ...) of what the encoder answered.

        Args:
            answer: (N, ...) of one output, see `answers`.
            texts: (N, D) or (N, K, D) embeddings of the captions, for a measure that takes them.
        """
        return answer

    def __str__(self) -> str:
        return self.name


def queries_per_image(measures: Iterable[Measure], views: int) -> int:
    """Queries per image for some measures where V = ``views`` are drawn: each set of queries is asked once."""
    return sum(measure.query_count(views) for measure in by_query(measures).values())


def by_query(measures: Iterable[Measure]) -> dict[str, Measure]:
    """Sets of queries, and of each the first measure that asks it."""
    first: dict[str, Measure] = {}
    for measure in measures:
        first.setdefault(measure.query, measure)
    return first


def as_json(measure: Measure) -> dict[str, Any]:
    """A measure as plain JSON: its kind, and the parameters that differ from their defaults."""
    given = {field.name: (getattr(measure, field.name), field.default) for field in fields(measure)}
    return {"kind": measure.kind} | {name: _plain(*pair) for name, pair in given.items() if pair[0] != pair[1]}


def _plain(value: Any, default: Any) -> Any:
    """A value as JSON holds it, the same for equal values; JSON knows no infinity, so that becomes a word."""
    number = float(value) if isinstance(default, float) else value
    return str(number) if isinstance(number, float) and math.isinf(number) else number


def _word(name: str, value: Any) -> str:
    """A parameter in a column's name: a flag by its own name, a number in the fewest digits that tell it."""
    return name if value is True else repr(value).removesuffix(".0") if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class Batch:
    """Images that encoders are asked about together."""

    images: torch.Tensor  # (N, C, S, S) uint8
    streams: torch.Tensor  # (N,) int64, of their views
    ids: list[str]  # N names, for errors
    captions: Sequence[str | Sequence[str]] | None  # N texts, or N times K; None: there are none
    labels: torch.Tensor | None  # (N,) int64 classes; None: there are none


@dataclass(frozen=True)
class ViewMaker:
    """How views are drawn."""

    recipe: Augmentation  # of one view
    number: int  # V, those of a measure that shares them
    size: int | None  # side of the views; None: that of the images

    def draw(self, images: torch.Tensor, streams: torch.Tensor) -> torch.Tensor:
        """V views (N, V, C, S, S) of images from their streams (N,)."""
        return make_views(images, streams, self.recipe, views=self.number, size=self.size)
