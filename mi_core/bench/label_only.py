"""How fast the label-only attack finds distances: our batched HopSkipJump beside the Adversarial Robustness Toolbox's.

Both search from the same images on the same classifier, in the same process on the same cores, with seven iterations
and constants alike. They take turns: every round gives each way the same few images once. The toolbox ends a little
beyond the boundary, so images are taken back to it by bisection, outside of the time, before distances are compared.

The classifier learns, for a moment, which colour is the strongest in smooth random images, so that its boundary is one.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from mi_core.checks import ConfigError, check_choice
from mi_core.encoders import build_backbone
from mi_core.encoders.checkpoint import Encoder, channelwise, seeded
from mi_core.encoders.folding import for_queries
from mi_core.features.hop_skip_jump import hop_skip_jump
from mi_core.runtime import keep_freed_memory

ITERATIONS, QUERIES = 7, 5000
CLASSES, SIDE = 3, 32
_BISECTIONS = 16


@dataclass(frozen=True)
class LabelOnlyCase:
    """A case of searches: backbone, images per turn, rounds, images per call of the classifier in our way."""

    backbone: str
    images: int
    rounds: int
    batch: int


LABEL_ONLY_CASES = {
    "small": LabelOnlyCase("resnet8", 64, 3, 128),
    "resnet18": LabelOnlyCase("resnet18", 8, 2, 64),
}


def label_only_benchmark(
    case: str, *, threads: int = 1, device: torch.device | str = "cpu", reach: bool = True
) -> dict[str, Any]:
    """Compare the two searches.

    Args:
        case: key of `LABEL_ONLY_CASES`.
        threads: cores to use.
        device: where the classifier is.
        reach: also measure with how many queries ours reaches the toolbox's median distance.

    Returns:
        Per way ``seconds_per_image``, ``queries_per_image``, ``microseconds_per_query`` (median of the rounds, least
        and most), ``median_distance``; ``toolbox_over_ours`` of the time per query; ``distance_ratio``, ours to the
        toolbox's, median over images; ``queries_to_equal_distance``.

    Raises:
        ConfigError: no such case, or the toolbox is not installed.
    """
    chosen = LABEL_ONLY_CASES[check_choice("case", case, LABEL_ONLY_CASES)]
    torch.set_num_threads(threads)
    place = torch.device(device)
    keep_freed_memory()  # as encoder actors do; it serves both
    model = _classifier(chosen.backbone).to(place).to(memory_format=torch.channels_last)
    ready = for_queries(copy.deepcopy(model), place)
    images = _smooth(chosen.images * (chosen.rounds + 1), 1)[0].to(place)
    labels = _predict(model, images)
    toolbox = _toolbox(model, place)
    turns: dict[str, list[tuple[float, float, torch.Tensor]]] = {"ours": [], "toolbox": []}
    for number, rows in enumerate(torch.arange(len(images)).split(chosen.images)):
        given = images[rows], labels[rows]
        for name, way in (("ours", _ours(ready, chosen, rows)), ("toolbox", toolbox)):
            seconds, queries, changed = _timed(way, *given, place)
            if number:  # the first turn of each warms up
                nearest = _bisected(model, *given, changed)
                turns[name].append((seconds, queries, (nearest - given[0]).flatten(1).norm(dim=1)))
    found: dict[str, Any] = {name: _summary(of_way) for name, of_way in turns.items()}
    ours, theirs = (torch.cat([turn[2] for turn in turns[name]]) for name in ("ours", "toolbox"))
    found["distance_ratio"] = _rounded(float((ours / theirs).median()))
    rates = [found[name]["microseconds_per_query"]["median"] for name in ("toolbox", "ours")]
    found["toolbox_over_ours"] = _rounded(rates[0] / rates[1])
    if reach:
        later = slice(chosen.images, None)
        streams = torch.arange(len(images))[later]
        found["queries_to_equal_distance"] = _queries_to(float(theirs.median()), ready, images[later], streams, chosen)
    return found | {"backbone": chosen.backbone, "images": len(ours), "threads": threads, "device": str(place)}


def _queries_to(
    distance: float, model: Encoder, images: torch.Tensor, streams: torch.Tensor, case: LabelOnlyCase
) -> dict[str, Any]:
    """The fewest iterations of ours whose median distance is at most that, and the queries they take."""
    labels = _predict(model, images)
    for iterations in range(1, 2 * ITERATIONS):
        found = _search(model, images, labels, streams, case, iterations)
        if float(found.distance.median()) <= distance:
            return {"iterations": iterations, "queries": _rounded(float(found.queries.float().mean()))}
    return {"iterations": 2 * ITERATIONS, "queries": "not reached"}


Way = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, float]]
"""Images and labels to the changed images and the queries per image."""


def _timed(
    way: Way, images: torch.Tensor, labels: torch.Tensor, place: torch.device
) -> tuple[float, float, torch.Tensor]:
    started = time.perf_counter()
    changed, queries = way(images, labels)
    if place.type == "cuda":
        torch.cuda.synchronize(place)
    seconds = (time.perf_counter() - started) / len(images)
    return seconds, queries, changed


def _summary(turns: list[tuple[float, float, torch.Tensor]]) -> dict[str, Any]:
    each = [1e6 * seconds / queries for seconds, queries, _ in turns]
    return {
        "seconds_per_image": _rounded(statistics.median(seconds for seconds, _, _ in turns)),
        "queries_per_image": _rounded(statistics.mean(queries for _, queries, _ in turns)),
        "microseconds_per_query": {
            "median": _rounded(statistics.median(each)),
            "least": _rounded(min(each)),
            "most": _rounded(max(each)),
        },
        "median_distance": _rounded(float(torch.cat([distance for _, _, distance in turns]).median())),
    }


def _search(
    model: Encoder, images: torch.Tensor, labels: torch.Tensor, streams: torch.Tensor, case: LabelOnlyCase, steps: int
) -> Any:
    return hop_skip_jump(
        lambda points: _predict(model, points),
        images,
        labels,
        streams,
        iterations=steps,
        queries=QUERIES,
        batch=case.batch,
    )


def _ours(model: Encoder, case: LabelOnlyCase, rows: torch.Tensor) -> Way:
    def way(images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, float]:
        found = _search(model, images, labels, rows, case, ITERATIONS)
        return found.images, float(found.queries.float().mean())

    return way


def _toolbox(model: Encoder, place: torch.device) -> Way:
    try:
        from art.attacks.evasion import HopSkipJump
        from art.estimators.classification import PyTorchClassifier
    except ImportError as error:
        raise ConfigError(
            "the Adversarial Robustness Toolbox is missing; pip install 'encoder-audit[bench]'"
        ) from error
    asked = 0

    class Logits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            nonlocal asked
            asked += len(images)
            logits: torch.Tensor = self.model(images.float())["logits"]
            return logits

    device = "gpu" if place.type == "cuda" else "cpu"
    classifier = PyTorchClassifier(
        Logits(), nn.CrossEntropyLoss(), (3, SIDE, SIDE), CLASSES, clip_values=(0.0, 1.0), device_type=device
    )
    attack = HopSkipJump(classifier, norm=2, max_iter=ITERATIONS, verbose=False)

    def way(images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, float]:
        nonlocal asked
        asked = 0
        changed = torch.from_numpy(attack.generate(images.cpu().numpy())).to(images)
        return changed, asked / len(images)

    return way


def _bisected(model: Encoder, images: torch.Tensor, labels: torch.Tensor, changed: torch.Tensor) -> torch.Tensor:
    low, high = torch.zeros(len(images), device=images.device), torch.ones(len(images), device=images.device)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        other = _predict(model, torch.lerp(images, changed, middle[:, None, None, None])) != labels
        high, low = torch.where(other, middle, high), torch.where(other, low, middle)
    return torch.lerp(images, changed, high[:, None, None, None])


@torch.inference_mode()
def _predict(model: Encoder, images: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = model(images.contiguous(memory_format=torch.channels_last))["logits"].argmax(dim=1)
    return found


def _smooth(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Smooth random images (N, 3, 32, 32) in [0, 1] and which of their colours is the strongest (N,)."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(count, 3, 4, 4, generator=generator)
    images = F.interpolate(coarse, (SIDE, SIDE), mode="bilinear", align_corners=False)
    return images, images.mean(dim=(2, 3)).argmax(dim=1)


def _classifier(backbone: str) -> Encoder:
    """A classifier of the strongest colour, trained for a moment."""

    def build() -> Encoder:
        body = build_backbone(backbone, 3, SIDE)
        width = body(torch.zeros(2, 3, SIDE, SIDE)).shape[1]
        return Encoder(body, {"logits": nn.Linear(width, CLASSES)}, channelwise((0.5,), 3), channelwise((0.5,), 3))

    model: Encoder = seeded(0, build)
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    images, labels = _smooth(768, 0)
    for _ in range(3):
        for rows in torch.arange(len(images)).split(64):
            loss = F.cross_entropy(model(images[rows])["logits"], labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    model.eval().requires_grad_(False)
    return model


def _rounded(value: float) -> float:
    return float(np.format_float_positional(value, precision=4, fractional=False, trim="k"))
