"""A bank: further images that every image is compared with. An encoder is asked for it once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from mi_core.augmentations.views import Augmentation, clean, make_views
from mi_core.checks import ConfigError
from mi_core.encoders.checkpoint import Encoder
from mi_core.features.neighbour_density import neighbour_density, parse_neighbours

ByOutput = Mapping[str, torch.Tensor]
"""Tensors by output."""
Answer = TypeVar("Answer")
Embed = Callable[[str, Encoder, torch.Tensor, list[str], tuple[str, ...]], ByOutput]
"""Asks an encoder, of a name, for the embeddings of images with ids, by output."""
Texts = Callable[[str, Encoder, Sequence[str], Sequence[str] | None], torch.Tensor]
"""Asks an encoder, of a name, for the embeddings of the captions of images with ids."""


@dataclass(frozen=True)
class Bank:
    """Images that every image is compared with.

    Args:
        images: (A, C, S, S) uint8.
        streams: (A,) int64, of their views.
        captions: A texts; empty where there are none.
    """

    images: torch.Tensor
    streams: torch.Tensor
    captions: tuple[str, ...] = ()


@dataclass
class BankAnswers:
    """What encoders answer for a bank; each is asked once for all outputs.

    Args:
        bank: None: there is none.
        augmentation: the recipe of the views.
        embed, embed_texts: ask an encoder.
    """

    bank: Bank | None
    augmentation: Augmentation
    embed: Embed
    embed_texts: Texts
    _known: dict[tuple[object, ...], Any] = field(default_factory=dict)

    def images(self, name: str, encoder: Encoder, outputs: tuple[str, ...], count: int) -> ByOutput:
        """Embeddings (A, D) by output of the first ``count`` images as they are.

        Raises:
            ConfigError: the bank is too small.
        """

        def ask(bank: Bank, ids: list[str]) -> ByOutput:
            return self.embed(name, encoder, clean(bank.images[:count].to(encoder.mean.device)), ids, outputs)

        return self._once(("images", name, outputs), count, ask)

    def views(self, name: str, encoder: Encoder, outputs: tuple[str, ...], count: int) -> ByOutput:
        """Embeddings (A, D) by output of one view of each of the first ``count`` images. Raises as `images`."""

        def ask(bank: Bank, ids: list[str]) -> ByOutput:
            device = encoder.mean.device
            images, streams = bank.images[:count].to(device), bank.streams[:count].to(device)
            views = make_views(images, streams, self.augmentation, views=1, size=encoder.size)[:, 0]
            return self.embed(name, encoder, views, ids, outputs)

        return self._once(("views", name, outputs), count, ask)

    def texts(self, name: str, encoder: Encoder, count: int) -> torch.Tensor:
        """Embeddings (A, D) of the first ``count`` captions. Raises as `images`."""

        def ask(bank: Bank, ids: list[str]) -> torch.Tensor:
            return self.embed_texts(name, encoder, ids, bank.captions[:count])

        return self._once(("texts", name), count, ask)

    def densities(self, name: str, encoder: Encoder, need: str, embeddings: ByOutput) -> dict[str, torch.Tensor]:
        """Density of the bank around embeddings (B, D) by output, (B,) each. Raises as `images`.

        Args:
            name, encoder: that gave the embeddings.
            need: the neighbours that count, and the images of the bank.
            embeddings: of the images as they are.
        """
        nearest, count = parse_neighbours(need.partition(":")[2])
        bank = self.images(name, encoder, tuple(embeddings), count)
        return {output: neighbour_density(rows, bank[output], nearest) for output, rows in embeddings.items()}

    def _once(self, what: tuple[object, ...], count: int, ask: Callable[[Bank, list[str]], Answer]) -> Answer:
        if (what, count) not in self._known:
            bank = self.bank
            if bank is None or len(bank.images) < count:
                raise ConfigError(f"samples are compared with {count} further images; give a bank of so many")
            self._known[what, count] = ask(bank, [f"image {row} of the bank" for row in range(count)])
        known: Answer = self._known[what, count]
        return known
