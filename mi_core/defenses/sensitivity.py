"""How far one sample moves the weights of a head: sampled over pairs of adjacent data sets.

Sensitivity is the largest distance between the weights that two data sets lead to which differ in one entry. The
sampler takes the largest over m random pairs (Yang, Gohari, Topcu, "Additive logistic mechanism for privacy-preserving
self-supervised learning", 2022, algorithm 2, after Rubinstein and Alda, ICML 2017, algorithm 1), which bounds it for a
further such pair with probability 1 - gamma, see `privacy.random_dp_gamma`, and never for the worst case.

Both trainings of a pair have one seed and one order of samples, in which the entry that differs has its place; else the
distance would be that of two seeds. It is the sensitivity of *that* training: a head that was trained otherwise has
another one. All is in float64, so that small distances are none of rounding.

N samples, n entries of a data set, D width of an embedding, C classes, M pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from mi_core.checks import ConfigError, NumericError, ShapeError, check_choice, check_range, check_shape
from mi_core.encoders.checkpoint import seeded
from mi_core.hashing import digest64
from mi_core.training.optimizers import OptimizerParameters

ADJACENCIES = _, LEAVE = ("replace-one", "leave-one-out")
Array = npt.NDArray[Any]
Train = Callable[[Array, Array, npt.NDArray[np.bool_]], npt.NDArray[np.float64]]
"""Inputs (n, ...), targets (n,) and which of the n entries are there, to weights of any shape; deterministic."""


@dataclass(frozen=True)
class HeadTraining:
    """How a linear softmax head learns: cross-entropy, the mean over the samples of a batch.

    ``classes`` C: labels are 0 to C - 1. ``batch_size`` 0: all samples at once; else every epoch visits them in a new
    order. ``epochs`` and ``optimizer`` mean the same as for encoders.
    """

    classes: int = 10
    epochs: int = 20
    batch_size: int = 256
    optimizer: OptimizerParameters = field(default_factory=OptimizerParameters)

    def __post_init__(self) -> None:
        check_range("classes", self.classes, 2)
        check_range("epochs", self.epochs, 1)
        check_range("batch_size", self.batch_size, 0)


@dataclass(frozen=True)
class Pair:
    """Two adjacent data sets drawn from N samples."""

    left_out: int  # the sample that the first one lacks
    other: int | None  # the sample that the second one lacks; None: it has all

    def rows(self, count: int) -> npt.NDArray[np.int64]:
        """The samples of both data sets (2, n), entry by entry, which differ in one entry; -1: nobody is there."""
        second = np.arange(count)
        if self.other is None:
            first = second.copy()
            first[self.left_out] = -1
        else:
            first = np.delete(second, self.left_out)
            second = np.where(first == self.other, self.left_out, first)
        return np.stack([first, second])


def draw_pairs(count: int, pairs: int, *, adjacency: str = "replace-one", seed: int) -> tuple[Pair, ...]:
    """Random pairs of adjacent data sets; each is a function of the seed and its index alone.

    Args:
        count: N, at least 2, and 3 to replace one.
        pairs: M, at least 1.
        adjacency: ``replace-one``: N - 1 entries each, of which one is another sample (algorithm 2 of the paper: two
            samples are left out in turn). ``leave-one-out``: all N samples, and all but one, as DP-SGD counts.
        seed: of the draw.

    Raises ConfigError: a number is too small, or no such adjacency.
    """
    replace = check_choice("adjacency", adjacency, ADJACENCIES) == "replace-one"
    check_range("count", count, 3 if replace else 2)
    check_range("pairs", pairs, 1)

    def drawn(index: int, what: str, below: int) -> int:
        return digest64(seed, "pair", adjacency, index, what) % below

    left = [drawn(index, "left out", count) for index in range(pairs)]
    if not replace:
        return tuple(Pair(sample, None) for sample in left)
    steps = [1 + drawn(index, "other", count - 1) for index in range(pairs)]
    return tuple(Pair(sample, (sample + step) % count) for sample, step in zip(left, steps, strict=True))


def pair_distance(pair: Pair, inputs: Array, targets: Array, train: Train) -> tuple[float, float]:
    """How far apart the weights of a pair end up: in the 1-norm and in the 2-norm of the flattened difference.

    Args:
        pair: of `draw_pairs`.
        inputs: (N, ...), what is learned from; embeddings, for a head.
        targets: (N,).
        train: the training with all of its settings and one seed; ``functools.partial(train_head, ...)`` for a head.

    Raises ShapeError: there are not as many targets as inputs; NumericError: the weights are not finite.
    """
    check_shape("targets", targets, "N", N=len(inputs))
    first, second = (train(inputs[rows], targets[rows], rows >= 0) for rows in pair.rows(len(inputs)))
    difference = np.ravel(first - second)
    if not np.isfinite(difference).all():
        raise NumericError(f"the weights without sample {pair.left_out} are not finite; lower the learning rate")
    return float(np.abs(difference).sum()), float(np.linalg.norm(difference))


def train_head(
    embeddings: Array, labels: Array, present: npt.NDArray[np.bool_], *, training: HeadTraining, seed: int
) -> npt.NDArray[np.float64]:
    """A linear softmax head on frozen embeddings.

    Args:
        embeddings: (n, D).
        labels: (n,) integers.
        present: (n,) which entries there are; the others keep their place in the order and teach nothing.
        training: its settings.
        seed: of the first weights (those of ``torch.nn.Linear``) and of the order.

    Returns (C D + C,) float64: the weights, class after class, then the biases.
    Raises ShapeError: the shapes do not fit, or there is no sample; ConfigError: a label is not within 0 to C - 1.
    """
    count, width = check_shape("embeddings", embeddings, "n D")
    check_shape("labels", labels, "n", n=count)
    check_shape("present", present, "n", n=count)
    if not present.any():
        raise ShapeError("no sample to train a head on")
    wrong = labels[present & ((labels < 0) | (labels >= training.classes))]
    if len(wrong):
        raise ConfigError(f"label {wrong[0]} is not within 0 to {training.classes - 1}; set classes")
    inputs = torch.from_numpy(np.asarray(embeddings, dtype=np.float64))
    targets = torch.from_numpy(np.asarray(labels, dtype=np.int64))
    head = seeded(digest64(seed, "weights"), lambda: nn.Linear(width, training.classes)).double()
    optimizer = training.optimizer.build(head)
    batches = list(_batches(torch.from_numpy(present), training, seed))
    if not training.batch_size:  # one batch again and again: gathered once
        inputs, targets = inputs[batches[0]], targets[batches[0]]
    for step, rows in enumerate(batches):
        if not len(rows):
            continue
        for group in optimizer.param_groups:
            group["lr"] = training.optimizer.rate(step, len(batches))
        batch, wanted = (inputs[rows], targets[rows]) if training.batch_size else (inputs, targets)
        with torch.no_grad():  # the gradient of the mean cross-entropy by hand, classes first: faster than autograd
            errors = (head.weight @ batch.T + head.bias[:, None]).softmax(dim=0)
            errors[wanted, torch.arange(len(batch))] -= 1
            errors /= len(batch)
        head.weight.grad, head.bias.grad = errors @ batch, errors.sum(dim=1)
        optimizer.step()
    return np.asarray(torch.cat([head.weight.ravel(), head.bias]).detach().numpy())


def _batches(present: torch.Tensor, training: HeadTraining, seed: int) -> Iterator[torch.Tensor]:
    """The entries of every step that are there."""
    if not training.batch_size:
        yield from [present.nonzero().ravel()] * training.epochs
        return
    generator = torch.Generator().manual_seed(digest64(seed, "order") % 2**63)
    for _ in range(training.epochs):
        for rows in torch.randperm(len(present), generator=generator).split(training.batch_size):
            yield rows[present[rows]]
