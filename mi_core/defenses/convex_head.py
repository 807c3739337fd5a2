"""A head whose sensitivity is proved: softmax regression with an L2 penalty on unit-length embeddings, solved exactly.

The weights W (C, D), without biases, minimise J(W) = mean of the cross-entropies + penalty / 2 |W|^2. The optimum is
unique, whatever the start. J is strongly convex with the constant ``penalty``. Replacing one of n samples changes its
gradient by (g - g') / n, where g = (p - e_y) x^T for a sample x of the class y with the posterior p. So |g| = |p - e_y|
|x| is at most sqrt(2), and the optima of two such data sets are at most

    D2 = 2 sqrt(2) / (penalty n)

apart in the 2-norm. Chaudhuri, Monteleoni and Sarwate (JMLR 2011, corollary 8) prove 2 L / (penalty n) for losses of
one margin whose slope is at most L; here L = sqrt(2), the longest p - e_y of a softmax. The weights that are found
have a gradient of at most `TOLERANCE`, so they are at most `TOLERANCE` / penalty from the optimum: `sensitivity_bound`
adds this for both. In the 1-norm the bound is sqrt(C D) times as large.

The bound also holds between n samples and n - 1 of them: leaving one out changes the gradient by its g minus the mean
of the others, over n, which is no longer than 2 sqrt(2) / n either.

The bound holds for every pair of data sets, while a sampled sensitivity (`mi_core.defenses.sensitivity`) holds for a
random pair with probability 1 - gamma. So noise calibrated by it gives differential privacy proper.

n samples, D width of an embedding, C classes.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from scipy.special import log_softmax, softmax
from torch import nn

from mi_core.checks import ConfigError, NumericError, check_range, check_shape

TOLERANCE = 1e-8  # 2-norm of the gradient of J at the weights that are found
_MOST_STEPS = 20_000
_NEWTON = 5  # steps at most; each about squares the gradient
_Array = npt.NDArray[np.float64]


class UnitLinear(nn.Linear):
    """A linear layer on inputs (N, D) scaled to length 1."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Logits (N, C)."""
        return super().forward(F.normalize(inputs, dim=1))


def sensitivity_bound(penalty: float, count: int, *, weights: int | None = None) -> float:
    """The largest distance between the weights of two data sets that differ in one of their samples.

    Args:
        penalty: above 0.
        count: n, samples of each data set.
        weights: None: the bound in the 2-norm; else the number of weights, for the 1-norm.

    Raises ConfigError: a number is out of range.

    Example:
        >>> round(sensitivity_bound(0.01, 10_000), 5)
        0.02829
    """
    check_range("penalty", penalty, 0, open_low=True)
    check_range("count", count, 1)
    two_norm = (2 * math.sqrt(2) / count + 2 * TOLERANCE) / penalty
    return two_norm if weights is None else math.sqrt(weights) * two_norm


def solve_head(
    embeddings: npt.NDArray[np.floating], labels: npt.NDArray[np.integer], *, classes: int, penalty: float
) -> _Array:
    """The optimum, by L-BFGS, and by Newton's steps where differences of the objective are lost in rounding.

    Args:
        embeddings: (n, D), of any length but 0.
        labels: (n,), 0 to C - 1.
        classes: C, at least 2.
        penalty: of half the squared 2-norm of the weights, above 0.

    Returns (C, D) float64 weights, whose gradient is at most `TOLERANCE` long.
    Raises ShapeError: the shapes do not fit; ConfigError: a label or a setting is out of range; NumericError: an
    embedding has length 0 or is not finite, or the tolerance is not reached.
    """
    count, width = check_shape("embeddings", embeddings, "n D")
    check_shape("labels", labels, "n", n=count)
    check_range("classes", classes, 2)
    check_range("penalty", penalty, 0, open_low=True)
    if len(wrong := labels[(labels < 0) | (labels >= classes)]):
        raise ConfigError(f"label {wrong[0]} is not within 0 to {classes - 1}; set classes")
    lengths = np.linalg.norm(np.asarray(embeddings, dtype=np.float64), axis=1, keepdims=True)
    if len(bad := np.flatnonzero(~(np.isfinite(lengths) & (lengths > 0))[:, 0])):
        raise NumericError(f"embedding {bad[0]} has no direction: its length is {lengths[bad[0], 0]:g}")
    inputs = embeddings / lengths
    rows = np.arange(count)

    def objective(flat: _Array) -> tuple[float, _Array]:
        weights = flat.reshape(classes, width)
        logs = log_softmax(inputs @ weights.T, axis=1)
        errors = np.exp(logs)
        errors[rows, labels] -= 1
        gradient = errors.T @ inputs / count + penalty * weights
        return float(-logs[rows, labels].mean() + penalty / 2 * (flat @ flat)), gradient.ravel()

    from scipy.optimize import minimize  # slow to load, and most processes do without

    options = {"maxiter": _MOST_STEPS, "maxfun": 2 * _MOST_STEPS, "ftol": 0.0, "maxcor": 30}
    options["gtol"] = TOLERANCE / math.sqrt(classes * width)
    found = minimize(objective, np.zeros(classes * width), jac=True, method="L-BFGS-B", options=options).x

    def step(flat: _Array, gradient: _Array) -> _Array:
        """Newton's step; the Hessian is applied, never stored."""
        shares = softmax(inputs @ flat.reshape(classes, width).T, axis=1)

        def applied(direction: _Array) -> _Array:
            turned = direction.reshape(classes, width)
            moved = shares * (inputs @ turned.T)
            moved -= shares * moved.sum(axis=1, keepdims=True)
            return np.asarray(moved.T @ inputs / count + penalty * turned).ravel()

        size = len(flat)
        from scipy.sparse.linalg import LinearOperator, cg  # slow to load, and most processes do without

        solved, _ = cg(LinearOperator((size, size), matvec=applied, dtype=np.float64), gradient, rtol=1e-6)
        return np.asarray(solved)

    left = float(np.linalg.norm(objective(found)[1]))
    for _ in range(_NEWTON):
        if left <= TOLERANCE:
            break
        found = found - step(found, objective(found)[1])
        left = float(np.linalg.norm(objective(found)[1]))
    if not left <= TOLERANCE:
        raise NumericError(
            f"the head is not solved: its gradient is {left:.2g} long, above {TOLERANCE:g}; raise penalty"
        )
    return np.asarray(found.reshape(classes, width))
