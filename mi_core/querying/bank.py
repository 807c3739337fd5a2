"""A bank: further images that every image is compared with. An encoder is asked for it once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from mi_core.augmentations.views import clean
from mi_core.checks import ConfigError
from mi_core.encoders.checkpoint import Encoder
from mi_core.querying.forward import Forward


@dataclass
class BankAnswers:
    """The answers of encoders for a bank; each is asked once for all outputs.

    Args:
        bank: (A, C, S, S) uint8; None: there is none.
        forward: asks an encoder.
        at_once: images that go to an encoder in one call, at most.
    """

    bank: torch.Tensor | None
    forward: Forward
    at_once: int
    _known: dict[tuple[str, tuple[str, ...]], dict[str, torch.Tensor]] = field(default_factory=dict)

    def images(self, name: str, encoder: Encoder, outputs: tuple[str, ...], count: int) -> Mapping[str, torch.Tensor]:
        """Embeddings (A, D) by output of the first ``count`` images as they are.

        Raises:
            ConfigError: the bank is too small.
        """
        if self.bank is None or len(self.bank) < count:
            raise ConfigError(f"samples are compared with {count} further images; give a bank of so many")
        if (name, outputs) not in self._known:
            names = [f"image {row} of the bank" for row in range(len(self.bank))]
            blocks = [
                self.forward.embed(name, encoder, clean(self.bank[rows].to(encoder.mean.device)), names[rows], outputs)
                for rows in (slice(at, at + self.at_once) for at in range(0, len(names), self.at_once))
            ]
            self._known[name, outputs] = {output: torch.cat([block[output] for block in blocks]) for output in outputs}
        return {output: rows[:count] for output, rows in self._known[name, outputs].items()}
