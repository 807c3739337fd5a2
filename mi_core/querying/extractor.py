"""Querying an encoder: images to views, to embeddings, to membership features, in batches on one device.

The only thing that crosses back to the caller is one row of statistics per image; views and embeddings live
for one batch. Random views are a function of (nonce, seed, pixels, view) alone, so the result
does not depend on batch, worker or order (float32 outputs agree within 1e-5).

On CUDA the host runs ahead of the device: it copies the next images and draws their views while the encoder works, and
waits for statistics when it needs them. Views and statistics are computed in float32 proper whatever the precision of
the encoder.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch

from mi_core.augmentations.views import Augmentation
from mi_core.checks import ConfigError
from mi_core.encoders.averaging import ask_anew
from mi_core.encoders.checkpoint import Encoder
from mi_core.features.measure import Batch, ViewMaker, by_query
from mi_core.querying.forward import Answers, BankAnswers, Clock, EncoderOracle, Forward, Seconds, Work
from mi_core.querying.plan import QueryPlan
from mi_core.querying.precision_trial import rounded
from mi_core.runtime import hand_over, tf32, upload

AHEAD = 2  # batches that wait for a GPU, at most: each holds its images in pinned memory
MOST_VIEWS = 16_384  # queries per call that are tried on a GPU, at most


@dataclass
class Extractor:
    """Computes membership features for batches of images from one or several encoders.

    All encoders share the views of an image.

    Args:
        encoders: encoders by name, all on ``device``, in evaluation mode.
        plan: features, outputs and number of views.
        own: plans of encoders, by name, that read other features or outputs off the same sets of queries.
        augmentation: the recipe of the query views.
        device: where the encoders are.
        crafter: classifier that adversarial images are crafted on, on ``device``, for measures that consume such.
        bank: (A, C, S, S) uint8, images that samples are compared with, for measures that do so.
    """

    encoders: Mapping[str, Encoder]
    plan: QueryPlan
    augmentation: Augmentation
    device: torch.device
    crafter: Encoder | None = None
    own: Mapping[str, QueryPlan] = field(default_factory=dict)
    bank: torch.Tensor | None = None
    seconds: Seconds = field(default_factory=Seconds)
    _drawing: torch.cuda.Stream | None = None
    _begun: deque[Work] = field(default_factory=deque)
    _images_at_once: int | None = None
    _forward: Forward = field(init=False)
    _bank: BankAnswers = field(init=False)

    def __post_init__(self) -> None:
        self._forward = Forward(self.device, self.plan.precision)
        if (self.device.type, self.plan.precision) == ("cpu", "bfloat16"):
            self.encoders = {name: rounded(encoder) for name, encoder in self.encoders.items()}
        self._bank = BankAnswers(self.bank, self._forward, self.plan.batch_views)
        if self.device.type == "cuda":
            self._drawing = torch.cuda.Stream(self.device)
        if self.plan.precision == "tf32" and self.device.type != "cuda":
            raise ConfigError(f"precision = 'tf32' on {self.device.type}; it exists on CUDA alone")
        for name, plan in self.own.items():
            if set(plan.sets) != set(self.plan.sets):
                raise ConfigError(f"encoder {name} is to be asked for {plan.sets}, the others for {self.plan.sets}")

    def __call__(
        self,
        images: torch.Tensor,
        streams: torch.Tensor,
        ids: list[str],
        captions: Sequence[str | Sequence[str]] | None = None,
        labels: Sequence[int] | None = None,
    ) -> dict[str, dict[str, np.ndarray]]:
        """Features of N images.

        Args:
            images: (N, C, H, W) uint8.
            streams: (N,) int64, from `streams.pixel_streams` with purpose ``query``.
            ids: N names, used in errors.
            captions: N texts, or K texts for each image, for measures that take them.
            labels: N true classes, for measures that take them.

        Returns:
            Per encoder name, per column ``"output.measure"``: float32 of N rows.

        Raises NumericError: an embedding is not finite; the message names the samples; ShapeError: an encoder returns
        other than (B, D), or another D than before; ConfigError: an encoder lacks the text tower, the feature map or
        the logits that a measure asks for; or it stands behind an API that refused; AnswerError: an API answered
        something else than embeddings; the message names the sample.
        """
        return self.begin(images, streams, ids, captions, labels).fetched()

    @torch.inference_mode()
    def begin(
        self,
        images: torch.Tensor,
        streams: torch.Tensor,
        ids: list[str],
        captions: Sequence[str | Sequence[str]] | None = None,
        labels: Sequence[int] | None = None,
    ) -> Answers:
        """Start on N images as a call does, and return before a GPU is done; `Answers.fetched` waits and checks."""
        size = self._images_at_once or self.plan.images_at_once
        work = []
        ask_anew(*self.encoders.values())
        for start in range(0, len(images), size):
            rows = slice(start, start + size)
            with self._drawing_views():
                batch = Batch(
                    upload(images[rows], self.device),
                    upload(streams[rows], self.device),
                    ids[rows],
                    None if captions is None else captions[rows],
                    None if labels is None else upload(torch.tensor(labels[rows]), self.device),
                )
            while len(self._begun) >= AHEAD:
                self._begun.popleft().arrived.synchronize()
            work.append(self._batch(batch))
            if work[-1].arrived is not None:
                self._begun.append(work[-1])
        return Answers(work, self.seconds)

    def fit_batch(self, shape: tuple[int, int, int], most: int) -> int:
        """Find the number of images for one call on a GPU by trying, once; elsewhere it is the plan's.

        Images of noise are queried, so an encoder that is not plainly a network of this process (behind an API, or
        behind a defense) keeps the plan's, and so do searches that take as many queries as they need.

        Args:
            shape: (C, S, S) of the images.
            most: images that ever come together.
        """
        if self._images_at_once is None:
            self._images_at_once = self.plan.images_at_once
            if self.device.type == "cuda" and self._may_try:
                highest = max(1, min(most, MOST_VIEWS // self.plan.at_once_per_image))
                start = min(self.plan.images_at_once, highest)
                self._images_at_once = best_batch(start, highest, partial(self._seconds_of, shape))
        return self._images_at_once

    @property
    def _may_try(self) -> bool:
        """True if the encoders may be asked for noise, in calls of a number that is known before."""
        return all(type(encoder) is Encoder for encoder in self.encoders.values()) and not self.plan.searches

    def seconds_per_image(self, shape: tuple[int, int, int]) -> float | None:
        """Seconds for all queries of an image (C, S, S) of noise; None where the encoders may not be asked for such."""
        if not self._may_try:
            return None
        return seconds_each(partial(self._seconds_of, shape), self.plan.images_at_once)

    @torch.inference_mode()
    def _seconds_of(self, shape: tuple[int, int, int], images: int) -> float:
        """Seconds of one call on images of noise. Raises torch.OutOfMemoryError."""
        with self._drawing_views():
            noise = torch.randint(256, (images, *shape), dtype=torch.uint8, device=self.device)
            batch = Batch(noise, torch.arange(images, device=self.device), [""] * images, ["a picture"] * images, None)
        return seconds_of(partial(self._batch, batch), self.device)

    def _drawing_views(self) -> AbstractContextManager[object]:
        """What is done inside is done, on CUDA, beside the encoders' work: images are copied and views are drawn."""
        return nullcontext() if self._drawing is None else torch.cuda.stream(self._drawing)

    @tf32(False)
    def _batch(self, batch: Batch) -> Work:
        work = Work(Clock(self.device))
        self._forward.checks = work.checks
        # side of the views: what the encoders take, where they agree on one; they resize others themselves
        sizes = {encoder.size for encoder in self.encoders.values()}
        views = ViewMaker(self.augmentation, self.plan.views, sizes.pop() if len(sizes) == 1 else None)
        queries = by_query(self.plan.needs)
        with self._drawing_views():
            sent = {query: measure.sent(batch, views) for query, measure in queries.items()}
        if self._drawing is not None:
            hand_over((batch.images, batch.streams, batch.labels, *sent.values()), self._drawing)
        work.clock.mark("augment")
        for name, encoder in self.encoders.items():
            plan = self.own.get(name, self.plan)
            oracle = EncoderOracle(name, encoder, batch, plan, self.crafter, self._bank)
            answers = {query: measure.answers(oracle, sent[query]) for query, measure in queries.items()}
            texts = oracle.texts
            work.clock.mark("forward")
            columns = work.columns.setdefault(name, {})
            for output in plan.outputs:
                for measure in plan.needs:
                    if measure.output in (None, output):
                        rows = measure.values(answers[measure.query][output], texts)
                        columns[f"{output}.{measure}"] = rows.to("cpu", non_blocking=True)
            work.clock.mark("features")
        if self.device.type == "cuda":
            work.checks[:] = [(label, good.to("cpu", non_blocking=True), ids) for label, good, ids in work.checks]
            work.arrived = torch.cuda.Event()
            work.arrived.record()
        return work


GAIN = 0.05  # share of the time of a query that twice as many must save, to be worth their memory
TRIES = 3
ENOUGH = 0.2  # seconds of a call that are told from noise of the clock


def best_batch(start: int, most: int, trial: Callable[[int], float]) -> int:
    """The number of queries for one call: doubled from ``start`` on, as long as each query gets cheaper.

    Args:
        start: queries to begin with, at least 1; halved while they exceed the memory.
        most: nothing above is tried.
        trial: seconds that a call with so many queries takes. Raises `torch.OutOfMemoryError` where they do not fit.

    Returns the largest number that paid. Where memory ended the search it is half of what fitted, since encoders that
    are loaded later need room too, but not below a ``start`` that fitted.
    Raises torch.OutOfMemoryError: not even one query fits.

    Example:
        >>> best_batch(64, 1024, lambda size: 1 + size / 1000)
        1024
        >>> best_batch(64, 1024, lambda size: size / 1000)
        64
    """
    size = start
    while True:
        try:
            seconds = trial(size)
            break
        except torch.OutOfMemoryError:
            if size == 1:
                raise
            size = max(1, size // 2)
    if size < start:
        return max(1, size // 2)
    while 2 * size <= most:
        try:
            doubled = trial(2 * size)
        except torch.OutOfMemoryError:
            return max(start, size // 2)
        if doubled > 2 * seconds * (1 - GAIN):
            return size
        size, seconds = 2 * size, doubled
    return size


def seconds_of(call: Callable[[], object], device: torch.device) -> float:
    """Seconds of a call that works on a device, after one that warms up.

    Raises torch.OutOfMemoryError: it does not fit.
    """
    began = 0.0
    try:
        for _ in range(2):
            _wait(device)
            began = time.perf_counter()
            call()
        _wait(device)
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        raise
    return time.perf_counter() - began


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_each(trial: Callable[[int], float], most: int) -> float:
    """Seconds of a query, from calls that grow until one takes long enough.

    ``trial`` tells the seconds of a call with so many queries, of ``most`` at most.

    Example:
        >>> round(seconds_each(lambda size: 0.1 + size / 1000, 640), 6)
        0.001391
    """
    size = 1
    while True:
        seconds = min(trial(size) for _ in range(TRIES))  # a busy machine only ever adds time
        if seconds >= ENOUGH or size >= most:
            return seconds / size
        size = min(4 * size, most)
