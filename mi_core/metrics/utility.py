"""What an encoder is good for: labels of unseen images, read from the embeddings of labelled ones.

Both probes train on a bank of M labelled embeddings and are judged on N others; D width. Accuracies carry
Clopper-Pearson intervals over the N test images.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from mi_core.checks import ShapeError, check_finite, check_range, check_shape
from mi_core.metrics.intervals import rate
from mi_core.records import Estimate, FloatArray

TEMPERATURE = 0.1  # of the votes (Wu et al., 2018, section 3.4: 0.07; the SimCLR and MoCo demos on CIFAR: 0.1)
_BATCH = 4096

_Labels = npt.NDArray[np.integer]


def knn_accuracy(bank: FloatArray, bank_labels: _Labels, test: FloatArray, test_labels: _Labels, *, k: int) -> Estimate:
    """Accuracy of the k nearest neighbours by cosine, votes weighted by exp(cosine / 0.1) (Wu et al., CVPR 2018).

    Args:
        bank: (M, D) embeddings; bank_labels: (M,) integers.
        test: (N, D); test_labels: (N,).
        k: 1 to M.

    Raises:
        ShapeError: the shapes do not fit, or there is nothing to test.
        ConfigError: k is not within [1, M].
        NumericError: an embedding is not finite.

    Example:
        >>> corners = np.array([[1.0, 0.0], [0.0, 1.0]])
        >>> knn_accuracy(corners, np.array([0, 1]), np.array([[2.0, 0.1]]), np.array([0]), k=1).value
        1.0
    """
    _check(bank, bank_labels, test, test_labels)
    check_range("k", k, 1, len(bank))
    classes, votes_for = np.unique(bank_labels, return_inverse=True)
    columns = torch.from_numpy(votes_for)
    known = F.normalize(torch.from_numpy(np.asarray(bank, dtype=np.float32)), dim=1)
    called = []
    for block in torch.from_numpy(np.asarray(test, dtype=np.float32)).split(_BATCH):
        similarity, neighbours = (F.normalize(block, dim=1) @ known.T).topk(k, dim=1)
        votes = torch.zeros(len(block), len(classes))
        votes.scatter_add_(1, columns[neighbours], (similarity / TEMPERATURE).exp())
        called.append(votes.argmax(dim=1).numpy())
    right = classes[np.concatenate(called)] == test_labels
    return rate(int(right.sum()), len(right))


def linear_probe(bank: FloatArray, bank_labels: _Labels, test: FloatArray, test_labels: _Labels) -> Estimate:
    """Accuracy of multinomial logistic regression (L2, C = 1) on standardised embeddings.

    Args:
        bank: (M, D) embeddings; bank_labels: (M,) integers, at least two classes.
        test: (N, D); test_labels: (N,).

    Raises:
        ShapeError: the shapes do not fit, there is nothing to test, or the bank has one class.
        NumericError: an embedding is not finite.
    """
    _check(bank, bank_labels, test, test_labels)
    if len(np.unique(bank_labels)) < 2:
        raise ShapeError(f"a linear probe needs 2 classes, the {len(bank)} labelled embeddings have one")
    probe = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000))
    probe.fit(np.asarray(bank, dtype=np.float64), bank_labels)
    right = probe.predict(np.asarray(test, dtype=np.float64)) == test_labels
    return rate(int(right.sum()), len(right))


def _check(bank: FloatArray, bank_labels: _Labels, test: FloatArray, test_labels: _Labels) -> None:
    samples, width = check_shape("bank", bank, "M D")
    check_shape("labels of the bank", bank_labels, "M", M=samples)
    tested, _ = check_shape("test embeddings", test, "N D", D=width)
    check_shape("labels of the test", test_labels, "N", N=tested)
    if not tested or not samples:
        raise ShapeError(f"{samples} labelled and {tested} test embeddings, expected at least 1 of each")
    check_finite("embedding of the bank", bank)
    check_finite("test embedding", test)
