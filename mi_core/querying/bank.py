"""A bank: further images that every image is compared with. An encoder is asked for it once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from mi_core.augmentations.views import Augmentation, clean, make_views
from mi_core.checks import ConfigError
from mi_core.encoders.checkpoint import Encoder
from mi_core.querying.forward import Forward

ByOutput = Mapping[str, torch.Tensor]
"""Tensors by output."""


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
    """The answers of encoders for a bank; each is asked once for all outputs.

    Args:
        bank: None: there is none.
        augmentation: the recipe of the views.
        forward: asks an encoder.
        at_once: images that go to an encoder in one call, at most.
    """

    bank: Bank | None
    augmentation: Augmentation
    forward: Forward
    at_once: int
    _known: dict[tuple[object, ...], dict[str, torch.Tensor]] = field(default_factory=dict)

    def images(self, name: str, encoder: Encoder, outputs: tuple[str, ...], count: int) -> ByOutput:
        """Embeddings (A, D) by output of the first ``count`` images as they are.

        Raises:
            ConfigError: the bank is too small.
        """

        def ask(images: torch.Tensor, _: torch.Tensor, ids: list[str]) -> ByOutput:
            return self.forward.embed(name, encoder, clean(images), ids, outputs)

        return self._known_or_asked(("images", name, outputs), encoder, count, ask)

    def views(self, name: str, encoder: Encoder, outputs: tuple[str, ...], count: int) -> ByOutput:
        """Embeddings (A, D) by output of one view of each of the first ``count`` images. Raises as `images`."""

        def ask(images: torch.Tensor, streams: torch.Tensor, ids: list[str]) -> ByOutput:
            views = make_views(images, streams, self.augmentation, views=1, size=encoder.size)[:, 0]
            return self.forward.embed(name, encoder, views, ids, outputs)

        return self._known_or_asked(("views", name, outputs), encoder, count, ask)

    def texts(self, name: str, encoder: Encoder, count: int) -> torch.Tensor:
        """Embeddings (A, D) of the first ``count`` captions. Raises as `images`."""
        bank, known = self._checked(count), ("texts", name)
        if known not in self._known:
            self._known[known] = {"": self.forward.texts(name, encoder, _named(bank), bank.captions)}
        return self._known[known][""][:count]

    def _known_or_asked(
        self,
        known: tuple[object, ...],
        encoder: Encoder,
        count: int,
        ask: Callable[[torch.Tensor, torch.Tensor, list[str]], ByOutput],
    ) -> dict[str, torch.Tensor]:
        """The first ``count`` answers by output; the whole bank is asked for, once."""
        bank, device = self._checked(count), encoder.mean.device
        if known not in self._known:
            names = _named(bank)
            blocks = [
                ask(bank.images[rows].to(device), bank.streams[rows].to(device), names[rows])
                for rows in (slice(at, at + self.at_once) for at in range(0, len(names), self.at_once))
            ]
            self._known[known] = {output: torch.cat([block[output] for block in blocks]) for output in blocks[0]}
        return {output: rows[:count] for output, rows in self._known[known].items()}

    def _checked(self, count: int) -> Bank:
        if self.bank is None or len(self.bank.images) < count:
            raise ConfigError(f"samples are compared with {count} further images; give a bank of so many")
        return self.bank


def _named(bank: Bank) -> list[str]:
    return [f"image {row} of the bank" for row in range(len(bank.images))]
