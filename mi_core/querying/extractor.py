"""Querying an encoder: images to views, to embeddings, to membership features, in batches on one device.

The only thing that crosses back to the caller is one row of statistics per image; views and embeddings live
for one batch. Random views are a function of (seed, purpose "query", source, key, view) alone, so the result
does not depend on batch, worker or order (float32 outputs agree within 1e-5).

On CUDA the host runs ahead of the device: it copies the next images while the encoder works, and waits for statistics
when it needs them. Views and statistics are computed in float32 proper whatever the precision of the encoder.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from mi_core.augmentations.parts import global_and_parts
from mi_core.augmentations.views import Augmentation, clean, make_views
from mi_core.checks import AnswerError, ConfigError, ShapeError
from mi_core.encoders.averaging import ask_anew
from mi_core.encoders.checkpoint import Encoder
from mi_core.encoders.tokens import fixed_side
from mi_core.features import asked, compute, consumes, parse_need
from mi_core.features.adversarial import parse_adversarial
from mi_core.features.boundary_distance import parse_boundary
from mi_core.features.loss_gradient import OF_WEIGHTS
from mi_core.features.part_energy import parse_parts
from mi_core.features.patch_similarity import parse_grid, patches
from mi_core.features.sequential import FIRST, log_similarity
from mi_core.querying.answers import Answers, Batch, Clock, Seconds, Work, check_finite
from mi_core.querying.bank import Bank, BankAnswers
from mi_core.querying.batch_size import best_batch, seconds_each, seconds_of
from mi_core.querying.gradients import Losses
from mi_core.querying.hop_skip_jump import hop_skip_jump
from mi_core.querying.pgd import targeted_pgd
from mi_core.querying.plan import QueryPlan
from mi_core.runtime import tf32

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
        crafter: classifier that adversarial images are crafted on, on ``device``, for needs that consume such.
        bank: images that samples are compared with, for needs that do so.
    """

    encoders: Mapping[str, Encoder]
    plan: QueryPlan
    augmentation: Augmentation
    device: torch.device
    crafter: Encoder | None = None
    own: Mapping[str, QueryPlan] = field(default_factory=dict)
    bank: Bank | None = None
    seconds: Seconds = field(default_factory=Seconds)
    _widths: dict[tuple[str, str], int] = field(default_factory=dict)
    _begun: deque[Work] = field(default_factory=deque)
    _checks: list[tuple[str, torch.Tensor, list[str]]] = field(default_factory=list)  # of the batch at work
    _images_at_once: int | None = None
    _losses: Losses = field(init=False)

    def __post_init__(self) -> None:
        bank = BankAnswers(self.bank, self.augmentation, self._embed, self._texts, self._check, self.plan.batch_views)
        self._losses = Losses(bank, self.augmentation, self._check)
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
        captions: Sequence[str] | None = None,
        labels: Sequence[int] | None = None,
    ) -> dict[str, dict[str, np.ndarray]]:
        """Features of N images.

        Args:
            images: (N, C, H, W) uint8.
            streams: (N,) int64, from `streams.stream_keys` with purpose ``query``.
            ids: N names, used in errors.
            captions: N texts, for needs that consume them.
            labels: N true classes, for needs that consume them.

        Returns:
            Per encoder name, per column ``"output.need"``: float32 of N rows.

        Raises:
            NumericError: an embedding is not finite; the message names the samples.
            ShapeError: an encoder returns other than (B, D), or another D than before.
            ConfigError: an encoder lacks the text tower, the feature map or the logits that a need asks for; or it
                stands behind an API that refused.
            AnswerError: an API answered something else than embeddings; the message names the sample.
        """
        return self.begin(images, streams, ids, captions, labels).fetched()

    @torch.inference_mode()
    def begin(
        self,
        images: torch.Tensor,
        streams: torch.Tensor,
        ids: list[str],
        captions: Sequence[str] | None = None,
        labels: Sequence[int] | None = None,
    ) -> Answers:
        """Start on N images as a call does, and return before a GPU is done; `Answers.fetched` waits and checks."""
        size = self._images_at_once or self.plan.images_at_once
        work = []
        ask_anew(*self.encoders.values())
        for start in range(0, len(images), size):
            rows = slice(start, start + size)
            batch = Batch(
                self._uploaded(images[rows]),
                self._uploaded(streams[rows]),
                ids[rows],
                None if captions is None else captions[rows],
                None if labels is None else self._uploaded(torch.tensor(labels[rows])),
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
        """Whether the encoders may be asked for noise, in calls of a number that is known before."""
        return all(type(encoder) is Encoder for encoder in self.encoders.values()) and not self.plan.searches

    def seconds_per_image(self, shape: tuple[int, int, int]) -> float | None:
        """Seconds for all queries of an image (C, S, S) of noise; None where the encoders may not be asked for such."""
        if not self._may_try:
            return None
        return seconds_each(partial(self._seconds_of, shape), self.plan.images_at_once)

    @torch.inference_mode()
    def _seconds_of(self, shape: tuple[int, int, int], images: int) -> float:
        """Seconds of one call on images of noise. Raises torch.OutOfMemoryError."""
        noise = torch.randint(256, (images, *shape), dtype=torch.uint8, device=self.device)
        batch = Batch(noise, torch.arange(images, device=self.device), [""] * images, ["a picture"] * images, None)
        return seconds_of(partial(self._batch, batch), self.device)

    def _uploaded(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of the host on the device; on CUDA the copy runs while the host goes on."""
        if self.device.type != "cuda":
            return tensor.to(self.device)
        return tensor.pin_memory().to(self.device, non_blocking=True)

    @tf32(False)
    def _batch(self, batch: Batch) -> Work:
        work = Work(Clock(self.device))
        self._checks = work.checks
        searches = {
            "parts": self._parts,
            "boundary": self._boundary,
            "adversarial": self._adversarial,
            "sequential": self._sequential,
            "neighbours": self._neighbours,
        }
        searched = {kind: searches[_word(kind)] for kind in self.plan.sets if _word(kind) in searches}
        weighed = [kind for kind in self.plan.sets if _word(kind) in OF_WEIGHTS]
        plain = [kind for kind in self.plan.sets if kind not in (*searched, *weighed)]
        queried = {kind: self._queried(kind, batch) for kind in plain}
        work.clock.mark("augment")
        for name, encoder in self.encoders.items():
            plan = self.own.get(name, self.plan)
            answers: dict[str, Any] = {
                kind: self._embed(name, encoder, images, batch.ids, plan.outputs) for kind, images in queried.items()
            }
            answers |= {kind: search(name, encoder, kind, batch) for kind, search in searched.items()}
            texts = self._texts(name, encoder, batch.ids, batch.captions) if plan.captioned else None
            with self._precision():
                answers |= {kind: self._losses.of(name, encoder, kind, batch, texts, plan.outputs) for kind in weighed}
            work.clock.mark("forward")
            columns = work.columns.setdefault(name, {})
            for output in plan.outputs:
                for need in plan.needs:
                    if parse_need(need)[0].output not in (None, output):
                        continue
                    kind = asked(need)
                    answer = answers[kind][output] if isinstance(answers[kind], dict) else answers[kind]
                    if consumes(need) == "caption":
                        answer = (answer, texts)
                    columns[f"{output}.{need}"] = compute(need, answer).to("cpu", non_blocking=True)
            work.clock.mark("features")
        if self.device.type == "cuda":
            work.checks[:] = [(label, good.to("cpu", non_blocking=True), ids) for label, good, ids in work.checks]
            work.arrived = torch.cuda.Event()
            work.arrived.record()
        return work

    def _queried(self, kind: str, batch: Batch) -> torch.Tensor:
        """The images of one set of queries: (B, C, S, S), or several per image (B, V, C, S, S)."""
        if kind == "views":
            return make_views(batch.images, batch.streams, self.augmentation, views=self.plan.views, size=self._size())
        if kind == "clean":
            return clean(batch.images)
        return patches(clean(batch.images), parse_grid(kind.partition(":")[2]), size=self._size())

    def _parts(self, name: str, encoder: Encoder, kind: str, batch: Batch) -> tuple[torch.Tensor, ...]:
        """Embeddings of parts (B, P, D), the feature map of the global view (B, L, D), and the streams."""
        side = encoder.size or batch.images.shape[2]
        fixed = fixed_side(encoder.backbone) is not None or encoder.size is not None
        parts, ratio = parse_parts(kind.partition(":")[2])
        part_side = side if fixed else max(1, side // ratio)  # an encoder of one size gets its parts enlarged
        whole, cut = global_and_parts(batch.images, batch.streams, parts, size=side, part_size=part_side)
        with self._precision():
            tokens = encoder.feature_map(whole.contiguous(memory_format=torch.channels_last)).float()
        embeddings = self._embed(name, encoder, cut, batch.ids, ("backbone",))["backbone"]
        self._check(f"encoder {name}, feature map", tokens, batch.ids)
        return embeddings, tokens, batch.streams

    def _boundary(self, name: str, encoder: Encoder, kind: str, batch: Batch) -> torch.Tensor:
        """Distance to the decision boundary of a classifier, (B,)."""
        assert batch.labels is not None
        iterations, queries = parse_boundary(kind.partition(":")[2])

        def predict(images: torch.Tensor) -> torch.Tensor:
            return self._embed(name, encoder, images, batch.ids, ("logits",))["logits"].argmax(dim=1)

        boundary = hop_skip_jump(
            predict,
            clean(batch.images),
            batch.labels,
            batch.streams,
            iterations=iterations,
            queries=queries,
            batch=self.plan.batch_views,
        )
        return boundary.distance

    def _sequential(self, name: str, encoder: Encoder, kind: str, batch: Batch) -> torch.Tensor:
        """Views asked, and the statistic of these, (B, 2) float64; each call holds one view of what is undecided."""
        rule, outputs = self.plan.rule, self.plan.outputs
        if rule is None or rule.views != self.plan.views or len(outputs) != 1:
            raise ConfigError(
                f"sequential queries take one output and a rule of as many views, not {len(outputs)} and "
                f"{'no rule' if rule is None else rule.views} for {self.plan.views} views"
            )
        low, high = (torch.tensor(bounds, dtype=torch.float64, device=self.device) for bounds in (rule.low, rule.high))
        total = torch.zeros(len(batch.images), dtype=torch.float64, device=self.device)
        asked = torch.full_like(total, rule.views)
        rows = torch.arange(len(batch.images), device=self.device)
        seen: torch.Tensor | None = None  # (undecided, views asked, D), of length 1
        for views in range(FIRST, rule.views + 1):
            drawn = make_views(
                batch.images[rows],
                batch.streams[rows],
                self.augmentation,
                views=FIRST if seen is None else 1,
                first=0 if seen is None else views - 1,
                size=self._size(),
            )
            ids = [batch.ids[row] for row in rows.tolist()]
            new = F.normalize(self._embed(name, encoder, drawn, ids, outputs)[outputs[0]], dim=2)
            before, last = (new[:, :-1], new[:, -1:]) if seen is None else (seen, new)
            cosines = (before * last).sum(dim=2).clamp(-1, 1)
            seen = torch.cat([before, last], dim=1)
            total[rows] += log_similarity(cosines).sum(dim=1)
            if views == rule.views:
                break
            statistic = total[rows] / (views * (views - 1) / 2)
            undecided = (statistic > low[views - FIRST]) & (statistic < high[views - FIRST])
            asked[rows[~undecided]] = views
            rows, seen = rows[undecided], seen[undecided]
            if not len(rows):
                break
        return torch.stack([asked, total / (asked * (asked - 1) / 2)], dim=1)

    def _neighbours(self, name: str, encoder: Encoder, kind: str, batch: Batch) -> dict[str, torch.Tensor]:
        """Density of the images of the bank around each image, (B,) by output."""
        outputs = self.own.get(name, self.plan).outputs
        embeddings = self._embed(name, encoder, clean(batch.images), batch.ids, outputs)
        return self._losses.bank.densities(name, encoder, kind, embeddings, batch.ids)

    def _adversarial(self, name: str, encoder: Encoder, kind: str, batch: Batch) -> torch.Tensor:
        """Logits (B, L, L) of images crafted on another classifier, one for each of its L classes."""
        epsilon, steps, classes = parse_adversarial(kind.partition(":")[2])
        crafter = self.crafter
        if crafter is None or "logits" not in crafter.heads:
            raise ConfigError("adversarial images are crafted on a classifier; give a shadow with the output logits")
        images = clean(batch.images).repeat_interleave(classes, dim=0)
        wanted = torch.arange(classes, device=images.device).repeat(len(batch.images))
        with torch.inference_mode(mode=False), tf32(True):  # gradients are needed, of which the sign alone counts
            crafted = targeted_pgd(
                lambda changed: crafter(changed)["logits"], images.clone(), wanted.clone(), epsilon=epsilon, steps=steps
            )
        logits = self._embed(name, encoder, crafted, batch.ids, ("logits",))["logits"]
        if logits.shape[1] != classes:
            raise ConfigError(f"encoder {name} tells {logits.shape[1]} classes; set classes of baseline-c to that")
        by_target: torch.Tensor = logits.unflatten(0, (-1, classes))
        return by_target

    def _texts(self, name: str, encoder: Encoder, ids: Sequence[str], captions: Sequence[str] | None) -> torch.Tensor:
        if encoder.text is None:
            raise ConfigError(f"the encoder {name} has no text tower, which an attack on captions needs")
        given = [""] * len(ids) if captions is None else captions
        if not all(given):
            row = next(row for row, caption in enumerate(given) if not caption)
            raise ConfigError(f"{ids[row]} has no caption; give data.captions, or shards with .txt")
        texts: torch.Tensor = encoder.text(given).float()
        self._check(f"encoder {name}, captions", texts, list(ids))
        return texts

    def _size(self) -> int | None:
        """Side of the views: what the encoders take, where they agree on one; they resize others themselves."""
        sizes = {encoder.size for encoder in self.encoders.values()}
        return sizes.pop() if len(sizes) == 1 else None

    @contextmanager
    def _precision(self) -> Iterator[None]:
        """The precision of the encoder's forward pass."""
        half = self.plan.precision == "bfloat16"
        with tf32(self.plan.precision == "tf32"), torch.autocast(self.device.type, torch.bfloat16, enabled=half):
            yield

    def _check(self, name: str, embeddings: torch.Tensor, ids: list[str]) -> None:
        """Check that embeddings (B, ...) are finite: now, or on CUDA when the features of the batch are fetched."""
        check = name, torch.isfinite(embeddings).flatten(1).all(dim=1), ids
        if self.device.type == "cuda":
            self._checks.append(check)
        else:
            check_finite(*check)

    def _embed(
        self,
        name: str,
        encoder: Encoder,
        images: torch.Tensor,
        ids: list[str],
        outputs: tuple[str, ...],
    ) -> dict[str, torch.Tensor]:
        """Embeddings (B, D), or (B, V, D) of several images each, by output."""
        several = images.shape[1] if images.dim() == 5 else None
        inputs = (images if several is None else images.flatten(0, 1)).contiguous(memory_format=torch.channels_last)
        try:
            with self._precision():
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
            self._check(f"encoder {name}, {output}", by_output[output], ids)
        return by_output


def _word(kind: str) -> str:
    return kind.partition(":")[0]
