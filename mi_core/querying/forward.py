"""Forward passes of encoders in one precision, and the checks of what comes out of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from mi_core.augmentations.views import clean
from mi_core.checks import AnswerError, ConfigError, NumericError, ShapeError
from mi_core.encoders.checkpoint import Encoder
from mi_core.features.measure import Batch
from mi_core.querying.plan import QueryPlan
from mi_core.runtime import tf32


@dataclass
class Forward:
    """Asks encoders on one device."""

    device: torch.device  # where the encoders are
    precision: str  # one of `mi_core.querying.precision.PRECISIONS`
    # that wait for the features of the batch at work, on CUDA
    checks: list[tuple[str, torch.Tensor, list[str]]] = field(default_factory=list)
    _widths: dict[tuple[str, str], int] = field(default_factory=dict)

    def check(self, name: str, embeddings: torch.Tensor, ids: list[str]) -> None:
        """Check that embeddings (B, ...) are finite: now, or on CUDA when the features of the batch are fetched."""
        check = name, torch.isfinite(embeddings).flatten(1).all(dim=1), ids
        if self.device.type == "cuda":
            self.checks.append(check)
        else:
            check_finite(*check)

    def texts(
        self, name: str, encoder: Encoder, ids: Sequence[str], captions: Sequence[str | Sequence[str]] | None
    ) -> torch.Tensor:
        """Embeddings (B, D) of the captions of images with ids, or (B, K, D) where each has K.

        Raises ConfigError: the encoder has no text tower, or an image has no caption.
        """
        if encoder.text is None:
            raise ConfigError(f"the encoder {name} has no text tower, which an attack on captions needs")
        several = [(own,) if isinstance(own, str) else own for own in captions or [""] * len(ids)]
        if missing := [sample for sample, own in zip(ids, several, strict=True) if not all(own)]:
            raise ConfigError(f"{missing[0]} has no caption; give data.captions, or shards with .txt")
        texts = encoder.text([text for own in several for text in own]).float().unflatten(0, (len(several), -1))
        self.check(f"encoder {name}, captions", texts, list(ids))
        return texts if captions and not isinstance(captions[0], str) else texts[:, 0]

    def embed(
        self, name: str, encoder: Encoder, images: torch.Tensor, ids: list[str], outputs: tuple[str, ...]
    ) -> dict[str, torch.Tensor]:
        """Embeddings (B, D), or (B, V, D) of several images each, by output.

        Raises ShapeError: the encoder lacks an output, or returns other than (B, D), or another D than before;
        NumericError: an embedding is not finite, see `check`; AnswerError: an API answered something else than
        embeddings.
        """
        several = images.shape[1] if images.dim() == 5 else None
        inputs = (images if several is None else images.flatten(0, 1)).contiguous(memory_format=torch.channels_last)
        half = self.precision == "bfloat16"
        try:
            with tf32(self.precision == "tf32"), torch.autocast(self.device.type, torch.bfloat16, enabled=half):
                embeddings = encoder(inputs)
        except AnswerError as error:
            sample = ids[error.row * len(ids) // len(inputs)]  # as many inputs for each
            raise AnswerError(f"encoder {name}: {error.message} for {sample}", error.row) from error
        by_output = {}
        for output in outputs:
            if output not in embeddings:
                raise ShapeError(f"encoder {name} has no output {output!r}; it has {', '.join(embeddings)}")
            shape = tuple(embeddings[output].shape)
            width = self._widths.setdefault((name, output), shape[-1])
            if shape != (len(inputs), width):
                raise ShapeError(
                    f"encoder {name}, {output}: embeddings of shape {shape} instead of ({len(inputs)}, {width}) "
                    f"for the samples from {ids[0]} on"
                )
            rows = embeddings[output].float()
            by_output[output] = rows if several is None else rows.unflatten(0, (-1, several))
            self.check(f"encoder {name}, {output}", by_output[output], ids)
        return by_output


@dataclass
class BankAnswers:
    """The answers of encoders for a bank, further images that every image is compared with; each is asked once."""

    bank: torch.Tensor | None  # (A, C, S, S) uint8; None: there is none
    forward: Forward  # asks an encoder
    at_once: int  # images that go to an encoder in one call, at most
    _known: dict[tuple[str, tuple[str, ...]], dict[str, torch.Tensor]] = field(default_factory=dict)

    def images(self, name: str, encoder: Encoder, outputs: tuple[str, ...], count: int) -> Mapping[str, torch.Tensor]:
        """Embeddings (A, D) by output of the first ``count`` images as they are.

        Raises ConfigError: the bank is too small.
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


@dataclass(frozen=True)
class EncoderOracle:
    """One encoder and a batch of N images: `mi_core.features.measure.Oracle` for a network at hand or behind an API."""

    name: str  # name, encoder: that is asked
    encoder: Encoder
    batch: Batch  # the images
    plan: QueryPlan  # of the encoder
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
        """Embeddings (N, D) or (N, K, D) of the captions; None: no measure takes them. Raises as `Forward.texts`."""
        if not self.plan.captioned:
            return None
        return self.banked.forward.texts(self.name, self.encoder, self.batch.ids, self.batch.captions)

    def embed(self, images: torch.Tensor, outputs: tuple[str, ...] | None = None) -> dict[str, torch.Tensor]:
        """Embeddings of images by output. Raises as `Forward.embed`."""
        return self.banked.forward.embed(self.name, self.encoder, images, self.batch.ids, outputs or self.outputs)

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

    def check(self, what: str, rows: torch.Tensor) -> None:
        """Raise NumericError, now or when the batch is fetched, for rows (N, ...) that are not finite."""
        self.banked.forward.check(f"encoder {self.name}, {what}", rows, self.batch.ids)


@dataclass
class Seconds:
    """Time of an extraction by its part: seconds of this process, on CUDA of the device.

    Views are drawn beside the encoder's work there; ``augment`` is what the encoder waited for.
    """

    augment: float = 0.0
    forward: float = 0.0
    features: float = 0.0


class Clock:
    """Times the parts of a batch; on CUDA by events, for which nobody waits."""

    def __init__(self, device: torch.device) -> None:
        self.cuda = device.type == "cuda"
        self.marks: list[tuple[str, Any]] = []
        self.mark("start")

    def mark(self, part: str) -> None:
        """End a part of the work, which began at the last mark."""
        if self.cuda:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self.marks.append((part, event))
        else:
            self.marks.append((part, time.perf_counter()))

    def add_to(self, seconds: Seconds) -> None:
        """Add the time of the parts, which the device has done."""
        for (_, before), (part, after) in pairwise(self.marks):
            took = before.elapsed_time(after) / 1000 if self.cuda else after - before
            setattr(seconds, part, getattr(seconds, part) + took)


@dataclass
class Work:
    """The work on one batch: features on their way to the host, and checks of embeddings that wait for it."""

    clock: Clock
    columns: dict[str, dict[str, torch.Tensor]] = field(default_factory=dict)
    checks: list[tuple[str, torch.Tensor, list[str]]] = field(default_factory=list)
    arrived: Any = None  # an event of CUDA; None: nothing to wait for


@dataclass
class Answers:
    """Features of some images, which a GPU may still be computing."""

    work: list[Work]
    seconds: Seconds

    def wait(self) -> None:
        """Wait until they have come; raises NumericError, as `Extractor` does, for the embeddings they were made of."""
        for one in self.work:
            if one.arrived is not None:
                one.arrived.synchronize()
            while one.checks:
                check_finite(*one.checks.pop(0))

    def fetched(self) -> dict[str, dict[str, np.ndarray]]:
        """Features as `Extractor` returns them, once; raises NumericError as it does."""
        self.wait()
        parts: dict[str, dict[str, list[np.ndarray]]] = {}
        for one in self.work:
            one.clock.add_to(self.seconds)
            for name, columns in one.columns.items():
                for column, values in columns.items():
                    parts.setdefault(name, {}).setdefault(column, []).append(values.numpy())
        return {
            name: {column: np.concatenate(blocks) for column, blocks in columns.items()}
            for name, columns in parts.items()
        }


def check_finite(name: str, finite: torch.Tensor, ids: list[str]) -> None:
    """Raise NumericError, with the first ids, unless all of a mask (B,) on the host holds."""
    if not bool(finite.all()):
        bad = [ids[row] for row in torch.nonzero(~finite).flatten().tolist()]
        raise NumericError(f"{name}: embedding is NaN or infinite for {len(bad)} samples, first {', '.join(bad[:3])}")
