"""The base of defenses: fitted once by the provider of a trained encoder, then a part of the encoder that he serves.

A defense sees the encoder, what it was trained on and further images of the provider, and leaves a state: plain arrays,
from which `Defense.defended` makes the encoder that others query. Defenses that change the training itself are
objectives (`mi_core.objectives`) instead.

The encoder behind a defense that changes its answers, and what such defenses share.

A defense that draws something for an answer must draw the same for the same query. Whoever asks k times would
otherwise average the noise away (its variance falls as 1 / k), or see both sides of a coin. So what is random is a
pure function of the seed and of the query, and the query is the image, as the 8-bit pixels that a file would hold. The
embedding would not do: its last bits depend on the batch in which it was computed. A pixel changed by one step makes
another query; an attacker who asks for near copies averages over these, and no such defense hinders her. The seed is
the provider's secret: whoever knows it computes what was drawn.

B images, D width of an output.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from mi_core.checks import ConfigError, ShapeError
from mi_core.encoders.checkpoint import Encoder, surroundings
from mi_core.streams import stream_keys

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

    Raises ConfigError: parameters of another defense.
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

        Raises ConfigError: something is missing that the defense `needs`; NumericError: the fit diverged.
        """

    @abstractmethod
    def defended(self, encoder: Encoder, state: State) -> Encoder:
        """The encoder that is served: another module, in evaluation mode, with the outputs of the first.

        Args:
            encoder: the one that the state was fitted on; its modules may become parts of the result.
            state: from `fit`.
        """

    def _check_needs(self, encoder: Encoder, members: ProviderData, outside: ProviderData | None) -> None:
        known = {  # in the order of their names
            "attributes": (members.attributes is not None, "an attribute of the training images to hide"),
            "labels": (members.labels is not None, "classes of the training images"),
            "logits": ("logits" in encoder.heads, "a classifier: an encoder with the output logits"),
            "outside": (outside and len(outside.images), "images that the encoder was not trained on"),
        }
        missing = [remedy for need, (there, remedy) in known.items() if need in self.needs and not there]
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

        ``spread`` is for work in many independent pieces; the others are as for `fit`.

        Raises ConfigError, NumericError: as `fit`.
        """

    @abstractmethod
    def release(self, encoder: Encoder, prepared: State) -> State:
        """The state, from what `prepare` returned for the same encoder.

        Raises ConfigError, NumericError: as `fit`.
        """

    def fit(self, encoder: Encoder, members: ProviderData, outside: ProviderData | None = None) -> State:
        """Both steps."""
        return self.release(encoder, self.prepare(encoder, members, outside))


def numbers(state: State) -> dict[str, float]:
    """The numbers of a fitted defense for a report: the entries ``report.*`` of its state, without the prefix."""
    return {key.removeprefix("report."): float(np.asarray(state[key])) for key in state if key.startswith("report.")}


_BATCH = 256  # images that a provider asks at once


class Defended(Encoder):
    """An encoder of which one output is changed before anyone sees it, the heads on top of it included.

    Args:
        encoder: its modules become parts of this one.
        output: the output that is changed.
        change: answers (B, D) and images (B, C, H, W) in [0, 1] to answers (B, D).

    Raises ConfigError: what the encoder answers is changed already.
    """

    def __init__(self, encoder: Encoder, output: str, change: nn.Module) -> None:
        check_plain(encoder)
        super().__init__(encoder.backbone, encoder.heads, **surroundings(encoder))
        self.output = output
        self.change = change
        self.to(encoder.mean.device).eval()

    def forward(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
        """Embeddings by output name."""
        answers: dict[str, torch.Tensor] = {}
        last = self._normalised(images)
        for name, part in {"backbone": self.backbone, **self.heads}.items():
            last = part(last)
            if name == self.output:
                last = self.change(last, images)
            answers[name] = last
        return answers


def check_plain(encoder: Encoder) -> None:
    """Raise ConfigError for an encoder that does more than to apply its parts, which a defense made of these drops."""
    if type(encoder).forward is not Encoder.forward:
        raise ConfigError(
            f"what this encoder answers is changed already ({type(encoder).__name__}); defend it as it was trained"
        )


def query_streams(seed: int, purpose: str, images: torch.Tensor) -> torch.Tensor:
    """Streams of random numbers (B,) int64, a pure function of seed, purpose and image; see `mi_core.streams`.

    The purpose is the name of the defense; of images (B, C, H, W) in [0, 1] the nearest 8-bit values count.
    """
    pixels = (images.detach().float() * 255).round().clamp(0, 255).to(torch.uint8).cpu().numpy()
    shape = "x".join(str(side) for side in pixels.shape[1:])
    prints = [hashlib.blake2b(image.tobytes(), digest_size=16).hexdigest() for image in pixels]
    return stream_keys(seed, "defense", f"{purpose}/{shape}", prints).to(images.device)


@contextmanager
def searching(device: torch.device) -> Iterator[None]:
    """Gradients in full precision, wherever an encoder is being asked; inputs are to be cloned inside."""
    with torch.inference_mode(False), torch.enable_grad(), torch.autocast(device.type, enabled=False):
        yield


@torch.no_grad()
def answers(encoder: Encoder, images: torch.Tensor, output: str) -> torch.Tensor:
    """The answers of an encoder to a provider's own images.

    Args:
        images: (N, C, H, W) uint8, on any device.
        output: which of its outputs.

    Returns (N, D) float32, on the CPU.
    Raises ShapeError: there are no images.
    """
    if not len(images):
        raise ShapeError("the provider gives no images to ask the encoder for")
    blocks = (block.to(encoder.mean.device).float() / 255 for block in images.split(_BATCH))
    return torch.cat([encoder(block)[output].float().cpu() for block in blocks])
