"""The utility of an encoder: labels of unseen images, read from the embeddings of labelled ones.

Both probes train on a bank of M labelled embeddings and are judged on N others; D width. Accuracies carry
Clopper-Pearson intervals over the N test images.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from mi_core.checks import ShapeError, check_finite, check_range, check_shape
from mi_core.metrics.intervals import rate
from mi_core.records import Estimate, FloatArray

TEMPERATURE = 0.1  # of the votes (Wu et al., 2018, section 3.4: 0.07; the SimCLR and MoCo demos on CIFAR: 0.1)
_BATCH = 4096
_Labels = npt.NDArray[np.integer]


def knn_accuracy(
    bank: FloatArray,
    bank_labels: _Labels,
    test: FloatArray,
    test_labels: _Labels,
    *,
    k: int,
    device: torch.device | str = "cpu",
) -> Estimate:
    """Accuracy of the k nearest neighbours by cosine, votes weighted by exp(cosine / 0.1) (Wu et al., CVPR 2018).

    Args:
        bank: (M, D) embeddings; bank_labels: (M,) integers.
        test: (N, D); test_labels: (N,).
        k: 1 to M.
        device: where similarities are computed, in batches.

    Raises ShapeError: the shapes do not fit, or there is nothing to test; ConfigError: k is not within [1, M];
    NumericError: an embedding is not finite.

    Example:
        >>> corners = np.array([[1.0, 0.0], [0.0, 1.0]])
        >>> knn_accuracy(corners, np.array([0, 1]), np.array([[2.0, 0.1]]), np.array([0]), k=1).value
        1.0
    """
    _check(bank, bank_labels, test, test_labels)
    check_range("k", k, 1, len(bank))
    classes, votes_for = np.unique(bank_labels, return_inverse=True)
    columns = torch.from_numpy(votes_for).to(device)
    known = F.normalize(torch.from_numpy(np.asarray(bank, dtype=np.float32)).to(device), dim=1)
    called = []
    for block in torch.from_numpy(np.asarray(test, dtype=np.float32)).split(_BATCH):
        similarity, neighbours = (F.normalize(block.to(device), dim=1) @ known.T).topk(k, dim=1)
        votes = torch.zeros(len(block), len(classes), device=device)
        votes.scatter_add_(1, columns[neighbours], (similarity / TEMPERATURE).exp())
        called.append(votes.argmax(dim=1).cpu().numpy())
    return _right(classes[np.concatenate(called)], test_labels)


def linear_probe(
    bank: FloatArray,
    bank_labels: _Labels,
    test: FloatArray,
    test_labels: _Labels,
    *,
    device: torch.device | str = "cpu",
) -> Estimate:
    """Accuracy of multinomial logistic regression (L2, C = 1) on standardised embeddings, by L-BFGS on the device.

    Args:
        bank, bank_labels, test, test_labels: as `knn_accuracy`, of at least two classes.
        device: where it is fitted.

    Raises ShapeError: the shapes do not fit, there is nothing to test, or the bank has one class; NumericError: an
    embedding is not finite.
    """
    _check(bank, bank_labels, test, test_labels)
    classes, targets = np.unique(bank_labels, return_inverse=True)
    if len(classes) < 2:
        raise ShapeError(f"a linear probe needs 2 classes, the {len(bank)} labelled embeddings have one")
    inputs = torch.from_numpy(np.asarray(bank, dtype=np.float64)).to(device)
    mean, deviation = inputs.mean(dim=0), inputs.std(dim=0, correction=0)
    deviation[deviation == 0] = 1.0
    inputs = (inputs - mean) / deviation
    layer = torch.zeros(len(classes), inputs.shape[1] + 1, dtype=torch.float64, device=device, requires_grad=True)
    wanted = torch.from_numpy(targets).to(device)
    optimizer = torch.optim.LBFGS([layer], max_iter=500, tolerance_grad=1e-7, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        errors = F.cross_entropy(F.linear(inputs, layer[:, :-1], layer[:, -1]), wanted, reduction="sum")
        whole: torch.Tensor = (errors + layer[:, :-1].square().sum() / 2) / len(wanted)
        whole.backward()
        return whole

    optimizer.step(loss)
    called = []
    with torch.no_grad():
        for block in torch.from_numpy(np.asarray(test, dtype=np.float64)).split(_BATCH):
            scores = F.linear((block.to(device) - mean) / deviation, layer[:, :-1], layer[:, -1])
            called.append(scores.argmax(dim=1).cpu().numpy())
    return _right(classes[np.concatenate(called)], test_labels)


def classifier_accuracy(logits: FloatArray, labels: _Labels) -> Estimate:
    """Share of N images whose largest logit (N, L) is that of their label (N,).

    Raises ShapeError: the shapes do not fit, or there is no image; NumericError: a logit is not finite.
    """
    count, _ = check_shape("logits", logits, "N L")
    check_shape("labels", labels, "N", N=count)
    if not count:
        raise ShapeError("no image to judge a classifier on")
    check_finite("logit", logits)
    return _right(np.asarray(logits).argmax(axis=1), labels)


def _right(called: _Labels, labels: _Labels) -> Estimate:
    return rate(int((called == labels).sum()), len(labels))


def _check(bank: FloatArray, bank_labels: _Labels, test: FloatArray, test_labels: _Labels) -> None:
    samples, width = check_shape("bank", bank, "M D")
    check_shape("labels of the bank", bank_labels, "M", M=samples)
    tested, _ = check_shape("test embeddings", test, "N D", D=width)
    check_shape("labels of the test", test_labels, "N", N=tested)
    if not tested or not samples:
        raise ShapeError(f"{samples} labelled and {tested} test embeddings, expected at least 1 of each")
    check_finite("embedding of the bank", bank)
    check_finite("test embedding", test)
