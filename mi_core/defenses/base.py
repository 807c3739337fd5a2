"""The base of defenses: fitted once by the provider of a trained encoder, then a part of the encoder that he serves.

A defense sees the encoder, what it was trained on and further images of the provider, and leaves a state: plain arrays,
from which `Defense.defended` makes the encoder that others query. Defenses that change the training itself are
objectives (`mi_core.objectives`) instead.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch

from mi_core.checks import ConfigError
from mi_core.encoders.checkpoint import Encoder

State = Mapping[str, npt.NDArray[Any]]
"""What a fitted defense is, as named arrays; ``report.*`` are numbers that a report shows."""
Spread = Callable[[Callable[[Any], Any], Sequence[Any]], Iterable[Any]]
"""How one function is called with many arguments, like ``map``; others may do so on many machines."""


@dataclass(frozen=True)
class ProviderData:
    """Images of one kind that a provider has.

    Args:
        images: (N, C, H, W) uint8.
        labels: (N,) int64 classes of the encoder's task, where it has one.
        attributes: (N,) int64 values of the attribute to hide, where there is one.
    """

    images: torch.Tensor
    labels: torch.Tensor | None = None
    attributes: torch.Tensor | None = None


class Defense(ABC):
    """One defense; a subclass states what it needs and defines `fit` and `defended`.

    Args:
        parameters: an instance of `Parameters`; default: the paper's values.
        seed: of everything random in the fit, and in the answers.

    Raises:
        ConfigError: parameters of another defense.
    """

    name: ClassVar[str]
    """Its key in `DEFENSES`."""
    hides: ClassVar[str]
    """What it is meant to hide: ``membership``, ``attributes`` or both, in words."""
    source: ClassVar[str]
    """Paper, section."""
    needs: ClassVar[frozenset[str]] = frozenset()
    """What it cannot do without: ``logits`` (the encoder is a classifier), ``labels``, ``attributes``, ``outside``
    (images that the encoder was not trained on), ``epoch`` (a checkpoint is chosen)."""
    of_answers: ClassVar[bool] = False
    """Whether it changes what the encoder answers and not its weights: whoever holds these is past it."""
    mechanism: ClassVar[str] = ""
    """The noise that its promise of differential privacy rests on; empty: it promises nothing, or is not told."""
    Parameters: ClassVar[type[Any]]
    """Frozen dataclass of settings."""

    def __init__(self, parameters: Any = None, *, seed: int = 0) -> None:
        self.parameters = self.Parameters() if parameters is None else parameters
        if not isinstance(self.parameters, self.Parameters):
            raise ConfigError(f"{self.name} takes {self.Parameters.__qualname__}, got {type(parameters).__name__}")
        self.seed = seed

    @property
    def adjacencies(self) -> tuple[str, ...]:
        """The pairs of data sets that its promise is about, of `sensitivity.ADJACENCIES`; empty: it has none."""
        return ()

    @abstractmethod
    def fit(self, encoder: Encoder, members: ProviderData, outside: ProviderData | None = None) -> State:
        """Learn, or draw, what the defense is.

        Args:
            encoder: trained, in evaluation mode, left as it is; on any device.
            members: what it was trained on.
            outside: what it was not trained on.

        Raises:
            ConfigError: something is missing that the defense `needs`.
            NumericError: the fit diverged.
        """

    @abstractmethod
    def defended(self, encoder: Encoder, state: State) -> Encoder:
        """The encoder that is served: another module, in evaluation mode, with the outputs of the first.

        Args:
            encoder: the one that the state was fitted on; its modules may become parts of the result.
            state: from `fit`.
        """

    def _check_needs(self, encoder: Encoder, members: ProviderData, outside: ProviderData | None) -> None:
        there = {
            "logits": "logits" in encoder.heads,
            "labels": members.labels is not None,
            "attributes": members.attributes is not None,
            "outside": outside is not None and len(outside.images) > 0,
        }
        remedies = {
            "logits": "a classifier: an encoder with the output logits",
            "labels": "classes of the training images",
            "attributes": "an attribute of the training images to hide",
            "outside": "images that the encoder was not trained on",
        }
        missing = [remedies[need] for need in sorted(self.needs & there.keys()) if not there[need]]
        if missing:
            raise ConfigError(f"the defense {self.name} needs {', and '.join(missing)}")


class PreparedDefense(Defense):
    """A defense in two steps: one that reads images and has nothing of the choice, and one that reads none.

    So whoever tries many settings in `late` prepares once.
    """

    late: ClassVar[frozenset[str]]
    """Settings, besides the seed, that what `prepare` returns does not depend on."""

    @abstractmethod
    def prepare(
        self, encoder: Encoder, members: ProviderData, outside: ProviderData | None = None, *, spread: Spread = map
    ) -> State:
        """The part of the fit that is the same whatever the settings in `late` and the seed are.

        Args:
            encoder, members, outside: as for `fit`.
            spread: for work in many independent pieces.

        Raises:
            ConfigError, NumericError: as `fit`.
        """

    @abstractmethod
    def release(self, encoder: Encoder, prepared: State) -> State:
        """The state, from what `prepare` returned for the same encoder.

        Raises:
            ConfigError, NumericError: as `fit`.
        """

    def fit(self, encoder: Encoder, members: ProviderData, outside: ProviderData | None = None) -> State:
        """Both steps."""
        return self.release(encoder, self.prepare(encoder, members, outside))


def numbers(state: State) -> dict[str, float]:
    """The numbers of a fitted defense for a report: the entries ``report.*`` of its state, without the prefix."""
    return {key.removeprefix("report."): float(np.asarray(state[key])) for key in state if key.startswith("report.")}
