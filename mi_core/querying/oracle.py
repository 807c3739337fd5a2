"""An encoder as measures ask it: `mi_core.features.measure.Oracle` for a network at hand or behind an API."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from mi_core.checks import ConfigError
from mi_core.encoders.checkpoint import Encoder
from mi_core.features.measure import Batch, Views
from mi_core.querying.forward import BankAnswers
from mi_core.querying.plan import QueryPlan


@dataclass(frozen=True)
class EncoderOracle:
    """One encoder and a batch of N images."""

    name: str  # name, encoder: that is asked
    encoder: Encoder
    batch: Batch  # the images
    plan: QueryPlan  # of the encoder
    views: Views  # how views are drawn
    beside: Encoder | None  # the classifier that adversarial images are crafted on; None: there is none
    banked: BankAnswers  # what encoders answer for the bank, and how they are asked

    @property
    def outputs(self) -> tuple[str, ...]:
        """Outputs that are read."""
        return self.plan.outputs

    @property
    def at_once(self) -> int:
        """Queries that go to the encoder in one call, at most."""
        return self.plan.batch_views

    @cached_property
    def texts(self) -> torch.Tensor | None:
        """Embeddings (N, D) of the captions; None: no measure takes them. Raises as `Forward.texts`."""
        if not self.plan.captioned:
            return None
        return self.banked.forward.texts(self.name, self.encoder, self.batch.ids, self.batch.captions)

    def embed(
        self, images: torch.Tensor, outputs: tuple[str, ...] | None = None, ids: list[str] | None = None
    ) -> dict[str, torch.Tensor]:
        """Embeddings of images by output. Raises as `Forward.embed`."""
        of_images = self.batch.ids if ids is None else ids
        return self.banked.forward.embed(self.name, self.encoder, images, of_images, outputs or self.outputs)

    def bank(self, count: int) -> Mapping[str, torch.Tensor]:
        """Embeddings (A, D) by output of the first images of the bank. Raises as `BankAnswers.images`."""
        return self.banked.images(self.name, self.encoder, self.outputs, count)

    def crafter(self) -> Callable[[torch.Tensor], torch.Tensor]:
        """Images to the logits of the classifier that adversarial images are crafted on.

        Raises ConfigError: there is none.
        """
        beside = self.beside
        if beside is None or "logits" not in beside.heads:
            raise ConfigError("adversarial images are crafted on a classifier; give a shadow with the output logits")
        return lambda images: beside(images)["logits"]

    def bounds(self) -> tuple[Sequence[float], Sequence[float]]:
        """Between which statistics an image is asked for another view, after 2, 3, ..., V - 1 of them.

        Raises ConfigError: there is no such rule, or several outputs are read.
        """
        rule, views = self.plan.rule, self.views.number
        if rule is None or rule.views != views or len(self.outputs) != 1:
            raise ConfigError(
                f"sequential queries take one output and a rule of as many views, not {len(self.outputs)} and "
                f"{'no rule' if rule is None else rule.views} for {views} views"
            )
        return rule.low, rule.high

    def check(self, what: str, rows: torch.Tensor) -> None:
        """Raise NumericError, now or when the batch is fetched, for rows (N, ...) that are not finite."""
        self.banked.forward.check(f"encoder {self.name}, {what}", rows, self.batch.ids)
