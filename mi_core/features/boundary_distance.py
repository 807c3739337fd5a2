"""How far an image is from what a classifier takes for another class, by predictions alone: HopSkipJump (Chen, Jordan,
Wainwright, S&P 2020).

From an image of another class the search walks along the decision boundary towards the given image: it bisects the line
between both down to the boundary, estimates the boundary's normal there from the predictions of points around it
(equation 16, with the mean subtracted), and steps along it as far as the class stays another (algorithm 2). The
2-norm is minimised. Constants are those of the Adversarial Robustness Toolbox, which attacks take for granted: 100
evaluations in the first iteration, 100 sqrt(t) in the t-th, bisection to 0.01 / sqrt(d) of the line.

All images advance together: every phase asks the classifier for all of them in batches, so that a device is filled
however few queries an image needs in that phase. What is random is a function of the image's stream alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from mi_core.augmentations.views import clean
from mi_core.checks import check_range, check_shape
from mi_core.features.measure import Measure, Oracle


@dataclass(frozen=True)
class BoundaryDistance(Measure):
    """The 2-norm of the smallest change, of pixels in [0, 1], that alters the prediction; 0 where that is wrong.

    Args:
        iterations: of HopSkipJump.
        queries: the most that it may spend on an image.
    """

    iterations: int = 7
    queries: int = 2000

    kind = "boundary"
    consumes = "search"
    output = "logits"
    labels = True
    searches = True

    def __post_init__(self) -> None:
        check_range("iterations", self.iterations, 1)
        check_range("queries", self.queries, LEAST_QUERIES)

    def query_count(self, views: int) -> int:
        """The most that it may spend."""
        return self.queries

    def queries_at_once(self, views: int) -> int:
        """None: the search takes care of its own batches."""
        return 0

    def answers(self, oracle: Oracle, sent: torch.Tensor | None) -> dict[str, torch.Tensor]:
        """Distances."""
        batch = oracle.batch
        assert batch.labels is not None

        def predict(images: torch.Tensor) -> torch.Tensor:
            return oracle.embed(images, ("logits",))["logits"].argmax(dim=1)

        how = {"iterations": self.iterations, "queries": self.queries, "batch": oracle.at_once}
        return {"logits": hop_skip_jump(predict, clean(batch.images), batch.labels, batch.streams, **how).distance}


Predict = Callable[[torch.Tensor], torch.Tensor]
FIRST_EVALUATIONS, MOST_EVALUATIONS = 100, 10_000
LEAST_QUERIES = 150  # for the search of a first image of another class, and one look at the boundary
STARTS = 100  # random images tried, at most, to find one of another class
_HALVINGS = 30  # of a step: below 1e-9 of it nothing is gained


@dataclass(frozen=True)
class Boundary:
    """The result of the search for N images."""

    # (N, C, H, W) the nearest image of another class; the given one where it is misclassified already, or where none
    # was found
    images: torch.Tensor
    # (N,) float32 2-norm of the change, pixels in [0, 1]: 0 where the image is misclassified, the diagonal sqrt(C H W)
    # of all images where nothing of another class was found
    distance: torch.Tensor
    queries: torch.Tensor  # (N,) int64 predictions asked for


class _Search:
    """The state of the search for N images; rows of the arrays are images."""

    def __init__(
        self, predict: Predict, images: torch.Tensor, labels: torch.Tensor, streams: torch.Tensor, most: int, batch: int
    ) -> None:
        self.predict, self.given, self.labels, self.most, self.batch = predict, images, labels, most, batch
        self.nearest = images.clone()
        self.spent = torch.zeros(len(images), dtype=torch.int64, device=images.device)
        self.generators = [torch.Generator(images.device).manual_seed(int(stream)) for stream in streams.tolist()]

    def other(self, rows: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
        """True if points (R, E, C, H, W) of R images are of another class: (R, E) bool."""
        each = points.shape[1]
        whole = points.flatten(0, 1)
        even = math.ceil(len(whole) / math.ceil(len(whole) / self.batch))  # a small rest would cost as much as a batch
        called = torch.cat([self.predict(block) for block in whole.split(even)])
        self.spent[rows] += each
        return called.unflatten(0, (-1, each)) != self.labels[rows, None]

    def within_budget(self, rows: torch.Tensor, needed: int) -> torch.Tensor:
        """The rows that may still spend so many queries."""
        return rows[self.spent[rows] + needed <= self.most]

    def random(self, rows: torch.Tensor, kind: Callable[..., torch.Tensor], *shape: int) -> torch.Tensor:
        """Random numbers (R, ...) of R images, from each one's own generator."""
        numbers = torch.empty(len(rows), *shape, device=rows.device)
        for row, place in zip(rows.tolist(), numbers, strict=True):
            kind(*shape, generator=self.generators[row], out=place)
        return numbers

    def right(self) -> torch.Tensor:
        """The rows that are classified correctly."""
        rows = torch.arange(len(self.given), device=self.given.device)
        return rows[~self.other(rows, self.given[:, None])[:, 0]]

    def start(self, rows: torch.Tensor) -> torch.Tensor:
        """Find an image of another class for some rows; returns those that have one.

        Every other try is of few large patches: some classifiers take any fine noise for the same class.
        """
        waiting, started = rows, []
        channels, height, width = self.given.shape[1:]
        for number in range(STARTS):
            waiting = self.within_budget(waiting, 1)
            if not len(waiting):
                break
            side = 2 ** (1 + number // 2 % 3) if number % 2 else 0
            points = self.random(waiting, torch.rand, channels, *([side, side] if side else [height, width]))
            if side:
                points = torch.nn.functional.interpolate(points, (height, width))
            hit = self.other(waiting, points[:, None])[:, 0]
            self.nearest[waiting[hit]] = points[hit]
            started.append(waiting[hit])
            waiting = waiting[~hit]
        return torch.cat([*started, rows[:0]]).sort().values

    def bisect(self, rows: torch.Tensor, tolerance: float) -> torch.Tensor:
        """Move what was found towards the given image, to the boundary; returns the rows that were moved."""
        steps = math.ceil(math.log2(1 / tolerance))
        rows = self.within_budget(rows, steps)
        given, nearest = self.given[rows], self.nearest[rows]
        low, high = torch.zeros(len(rows), device=rows.device), torch.ones(len(rows), device=rows.device)
        for _ in range(steps if len(rows) else 0):
            middle = (low + high) / 2
            other = self.other(rows, torch.lerp(given, nearest, _wide(middle))[:, None])[:, 0]
            high, low = torch.where(other, middle, high), torch.where(other, low, middle)
        self.nearest[rows] = torch.lerp(given, nearest, _wide(high))
        return rows

    def normal(self, rows: torch.Tensor, evaluations: int, radius: torch.Tensor) -> torch.Tensor:
        """Unit vectors (R, C, H, W) towards the other class at the boundary, estimated from points around."""
        channels, height, width = self.given.shape[1:]
        groups = []
        each = max(1, self.batch // evaluations)  # images whose points are in memory at once
        for some, reach in zip(rows.split(each), radius.split(each), strict=True):
            centre = self.nearest[some].permute(0, 2, 3, 1).flatten(1)[:, None]  # pixel by pixel, as encoders read them
            directions = self.random(some, torch.randn, evaluations, centre.shape[2])
            lengths = torch.linalg.vector_norm(directions, dim=2, keepdim=True)
            points = torch.addcmul(centre, reach[:, None, None] / lengths, directions).clamp_(0, 1)
            images = points.view(-1, evaluations, height, width, channels).permute(0, 1, 4, 2, 3)
            signs = self.other(some, images).float() * 2 - 1
            mean = signs.mean(dim=1, keepdim=True)
            weights = torch.where(mean.abs() == 1, signs, signs - mean)[:, None]
            # the weighted sum of what clamping left of the directions, up to a factor
            groups.append((weights @ points - weights.sum(dim=2, keepdim=True) * centre)[:, 0])
        summed = torch.cat(groups)
        lengths = torch.linalg.vector_norm(summed, dim=1, keepdim=True)
        unit: torch.Tensor = summed / lengths.clamp_min(1e-30)
        return unit.view(-1, height, width, channels).permute(0, 3, 1, 2)

    def step(self, rows: torch.Tensor, towards: torch.Tensor, length: torch.Tensor) -> None:
        """Step from the boundary along a direction, halving the step until the class is another."""
        origin, waiting = self.nearest[rows], torch.arange(len(rows), device=rows.device)
        for _ in range(_HALVINGS):
            waiting = waiting[self.spent[rows[waiting]] < self.most]
            if not len(waiting):
                return
            points = torch.addcmul(origin[waiting], _wide(length[waiting]), towards[waiting]).clamp_(0, 1)
            hit = self.other(rows[waiting], points[:, None])[:, 0]
            self.nearest[rows[waiting[hit]]] = points[hit]
            waiting = waiting[~hit]
            length = length / 2

    def distance(self, rows: torch.Tensor) -> torch.Tensor:
        """2-norm (R,) of the change that the search has arrived at."""
        return (self.nearest[rows] - self.given[rows]).flatten(1).norm(dim=1)


@torch.no_grad()
def hop_skip_jump(
    predict: Predict,
    images: torch.Tensor,
    labels: torch.Tensor,
    streams: torch.Tensor,
    *,
    iterations: int = 7,
    queries: int = 2000,
    batch: int = 640,
) -> Boundary:
    """The nearest images of another class that HopSkipJump finds.

    Args:
        predict: images (B, C, H, W) float32 in [0, 1] to classes (B,) int64.
        images: (N, C, H, W) float32 in [0, 1].
        labels: (N,) int64 true classes.
        streams: (N,) int64, from `streams.stream_keys`: all randomness.
        iterations: steps along the boundary, at least 1.
        queries: the most predictions per image, at least 150.
        batch: images per call of ``predict``, at most.

    Raises ConfigError: a number is out of range; ShapeError: the shapes do not fit.
    """
    check_range("iterations", iterations, 1)
    check_range("queries", queries, LEAST_QUERIES)
    check_range("batch", batch, 1)
    (count, *_) = check_shape("images", images, "N C H W")
    check_shape("labels", labels, "N", N=count)
    check_shape("streams", streams, "N", N=count)
    search = _Search(predict, images, labels, streams, queries, batch)
    if not count:
        return Boundary(search.nearest, torch.zeros(0, device=images.device), search.spent)
    right = search.right()
    started = search.start(right)
    tolerance = 0.01 / math.sqrt(images[0].numel())
    rows = search.bisect(started, 1e-3)
    for number in range(1, iterations + 1):
        evaluations = min(int(FIRST_EVALUATIONS * math.sqrt(number)), MOST_EVALUATIONS)
        reach = torch.full((count,), 0.1, device=images.device)
        if number > 1:
            reach[rows] = 0.01 * search.distance(rows)
        rows = search.within_budget(search.bisect(rows, tolerance), evaluations + 1)
        if not len(rows):
            break
        towards = search.normal(rows, evaluations, reach[rows].clamp_min(1e-12))
        search.step(rows, towards, search.distance(rows) / math.sqrt(number))
    search.bisect(started, tolerance)
    distance = torch.zeros(count, device=images.device)
    distance[right] = math.sqrt(images[0].numel())
    distance[started] = search.distance(started)
    return Boundary(search.nearest, distance, search.spent)


def _wide(values: torch.Tensor) -> torch.Tensor:
    return values[:, None, None, None]
