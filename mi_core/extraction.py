"""Querying an encoder: images to views, to embeddings, to membership features, in batches on one device.

The only thing that crosses back to the caller is one row of statistics per image; views and embeddings live
for one batch. Random views are a function of (seed, purpose "query", source, key, view) alone, so the result
does not depend on batch, worker or order (float32 outputs agree within 1e-5).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch

from mi_core.augmentations.views import Augmentation, clean, make_views
from mi_core.checks import NumericError, ShapeError, check_range
from mi_core.encoders.checkpoint import Encoder
from mi_core.features import compute, consumes


@dataclass(frozen=True)
class QueryPlan:
    """What is asked of an encoder for every image.

    Args:
        needs: membership features to compute, for example ``("pairwise:cosine", "norm:2")``.
        outputs: which embeddings, of ``backbone`` and ``projection``.
        views: augmented views V per image, spent only when a need consumes views.
        batch_views: queries sent to the encoder in one call, at most (memory).
    """

    needs: tuple[str, ...]
    outputs: tuple[str, ...]
    views: int = 10
    batch_views: int = 640
    precision: str = "float32"

    def __post_init__(self) -> None:
        check_range("views", self.views, 1)
        check_range("batch_views", self.batch_views, 1)

    @property
    def augmented(self) -> bool:
        """Whether any need consumes augmented views."""
        return any(consumes(need) == "views" for need in self.needs)

    @property
    def plain(self) -> bool:
        """Whether any need consumes the embedding of the clean image."""
        return any(consumes(need) == "clean" for need in self.needs)

    @property
    def queries_per_image(self) -> int:
        """Queries spent on one image."""
        return self.views * self.augmented + self.plain


@dataclass
class Seconds:
    """Where the time of an extraction went, in seconds of this process."""

    augment: float = 0.0
    forward: float = 0.0
    features: float = 0.0


@dataclass
class Extractor:
    """Computes membership features for batches of images from one or several encoders.

    Several encoders (the checkpoints of one training run) share the views of an image.

    Args:
        encoders: encoders by name, all on ``device``, in evaluation mode.
        plan: features, outputs and number of views.
        augmentation: the recipe of the query views.
        device: where the encoders are.
    """

    encoders: Mapping[str, Encoder]
    plan: QueryPlan
    augmentation: Augmentation
    device: torch.device
    seconds: Seconds = field(default_factory=Seconds)
    _widths: dict[tuple[str, str], int] = field(default_factory=dict)

    @torch.inference_mode()
    def __call__(self, images: torch.Tensor, streams: torch.Tensor, ids: list[str]) -> dict[str, dict[str, np.ndarray]]:
        """Features of N images.

        Args:
            images: (N, C, H, W) uint8.
            streams: (N,) int64, from `streams.stream_keys` with purpose ``query``.
            ids: N names, used in errors.

        Returns:
            Per encoder name, per column ``"output.need"``: float32 of N rows.

        Raises:
            NumericError: an embedding is not finite; the message names the samples.
            ShapeError: an encoder returns other than (B, D), or another D than before.
        """
        size = max(1, self.plan.batch_views // max(1, self.plan.queries_per_image))
        parts: dict[str, dict[str, list[np.ndarray]]] = {name: {} for name in self.encoders}
        for start in range(0, len(images), size):
            rows = slice(start, start + size)
            batch = self._batch(images[rows].to(self.device), streams[rows].to(self.device), ids[rows])
            for name, columns in batch.items():
                for column, values in columns.items():
                    parts[name].setdefault(column, []).append(values)
        return {
            name: {column: np.concatenate(blocks) for column, blocks in columns.items()}
            for name, columns in parts.items()
        }

    def _batch(self, images: torch.Tensor, streams: torch.Tensor, ids: list[str]) -> dict[str, dict[str, np.ndarray]]:
        plan = self.plan
        started = time.perf_counter()
        views = None
        if plan.augmented:
            views = make_views(images, streams, self.augmentation, views=plan.views, size=self._size())
        plain = clean(images) if plan.plain else None
        self.seconds.augment += time.perf_counter() - started
        result: dict[str, dict[str, np.ndarray]] = {}
        for name, encoder in self.encoders.items():
            started = time.perf_counter()
            of_views = self._embed(name, encoder, views.flatten(0, 1), ids) if views is not None else {}
            of_plain = self._embed(name, encoder, plain, ids) if plain is not None else {}
            self.seconds.forward += time.perf_counter() - started
            started = time.perf_counter()
            columns: dict[str, np.ndarray] = {}
            for output in plan.outputs:
                by_view = of_views[output].unflatten(0, (-1, plan.views)) if of_views else None
                by_image = of_plain[output] if of_plain else None
                for embeddings in (by_view, by_image):
                    if embeddings is not None:
                        _check_embeddings(f"encoder {name}, {output}", embeddings, ids)
                for need in plan.needs:
                    columns[f"{output}.{need}"] = compute(need, views=by_view, clean=by_image).cpu().numpy()
            self.seconds.features += time.perf_counter() - started
            result[name] = columns
        return result

    def _size(self) -> int | None:
        """Side of the views: what the encoders take, where they agree on one; they resize others themselves."""
        sizes = {encoder.size for encoder in self.encoders.values()}
        return sizes.pop() if len(sizes) == 1 else None

    def _embed(self, name: str, encoder: Encoder, images: torch.Tensor, ids: list[str]) -> dict[str, torch.Tensor]:
        half = self.plan.precision == "bfloat16"
        inputs = images.contiguous(memory_format=torch.channels_last)
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=half):
            embeddings = encoder(inputs)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # so that `seconds.forward` holds the forward pass
        for output in self.plan.outputs:
            if output not in embeddings:
                raise ShapeError(f"encoder {name} has no output {output!r}; it has {', '.join(embeddings)}")
            shape = tuple(embeddings[output].shape)
            width = self._widths.setdefault((name, output), shape[-1])
            if shape != (len(images), width):
                raise ShapeError(
                    f"encoder {name}, {output}: embeddings of shape {shape} instead of ({len(images)}, {width}) "
                    f"for the samples from {ids[0]} on"
                )
        return {output: embeddings[output].float() for output in self.plan.outputs}


def _check_embeddings(name: str, embeddings: torch.Tensor, ids: list[str]) -> None:
    finite = torch.isfinite(embeddings).flatten(1).all(dim=1)
    if not bool(finite.all()):
        bad = [ids[row] for row in torch.nonzero(~finite).flatten().tolist()]
        raise NumericError(f"{name}: embedding is NaN or infinite for {len(bad)} samples, first {', '.join(bad[:3])}")
