"""A blind classifier: tells members from non-members by their files and pixels, without querying any encoder.

If it succeeds, the two groups differ by themselves and an attack's success proves nothing (Das, Zhang, Tramer, "Blind
baselines beat membership inference attacks for foundation models", 2024). What it sees: how the file was made, the
traces of that in the pixels (`mi_core.validity.file_features`), and the pixels themselves, shrunk; logistic regression
on standardised features, scored out of fold. The few numbers of the first two kinds weigh as much in its penalty as
the thousands of pixels: without that a file size that tells everything would drown in them.

Every fold is scored by a model that was fitted on 2 of the 4 other folds, arranged in a circle so that no two
folds ever train on each other. In ordinary cross-validation they do, which ties the scores of all folds together: on
random splits of the digits (440 + 440) the AUC then varied with a standard deviation of .030 instead of
DeLong's .020 and its interval missed 0.5 in 21 of 100 splits; with the circle .021 and 6 of 100.

N samples, F summary features, P pixels of the shrunken image.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt

from mi_core.checks import check_finite, check_shape
from mi_core.folds import FOLDS, stratified_folds
from mi_core.metrics.delong import auc
from mi_core.records import BoolArray

_PENALTY = 0.01  # inverse strength: a few hundred images have more pixels than a weaker penalty could bear
_COLUMNS = 96  # that are standardised together
_Float64 = npt.NDArray[np.float64]
_Float32 = npt.NDArray[np.float32]


def blind_scores(
    summaries: _Float64, pixels: _Float32, member: BoolArray, *, seed: int, groups: npt.NDArray[np.int64] | None = None
) -> _Float64:
    """Out-of-fold scores of a classifier that sees files and pixels.

    Args:
        summaries: (N, F) numbers of each file and image.
        pixels: (N, P) of each image, `mi_core.validity.file_features.shrunken`.
        member: (N,) bool, at least 5 of each class.
        seed: of the folds.
        groups: (N,) numbers of persons, albums, bursts: samples of one group stay in one fold.

    Returns (N,) in (0, 1): ranks within the fold, higher = more likely a member.
    Raises ShapeError: the shapes do not fit, or a class has fewer than 5 samples (groups); NumericError: a feature is
    not finite.
    """
    count, width = check_shape("summaries", summaries, "N F")
    check_shape("pixels", pixels, "N P", N=count)
    check_shape("member", member, "N", N=count)
    check_finite("summary of an image", summaries)
    hashes = [blake2b(one.tobytes() + two.tobytes()).digest() for one, two in zip(summaries, pixels, strict=True)]
    order = np.array(sorted(range(count), key=hashes.__getitem__), dtype=np.intp)  # no name or order has an effect
    features = np.empty((count, width + pixels.shape[1]), dtype=np.float32)
    features[:, :width] = _standardised(summaries[order]) * np.sqrt(pixels.shape[1] / max(1, width))
    for start in range(0, pixels.shape[1], _COLUMNS):  # all at once take six times their memory
        columns = slice(start, start + _COLUMNS)
        features[:, width:][:, columns] = _standardised(pixels[order, columns])
    return _out_of_fold(features, member, order, seed, groups)


def semantic_scores(
    embeddings: _Float32,
    member: BoolArray,
    hashes: Sequence[str] | None = None,
    *,
    seed: int,
    groups: npt.NDArray[np.int64] | None = None,
) -> _Float64:
    """Out-of-fold scores of the same classifier on what trained encoders see in the images.

    Args:
        embeddings: (N, D) of reference encoders that saw neither group, or half of both by lot.
        hashes: of the N images' pixels, whose order folds follow, so that they depend on no name; None: the rows stand
            in that order.
        member, seed, groups: as `blind_scores`.

    Returns and raises as `blind_scores`.
    """
    count, _ = check_shape("embeddings", embeddings, "N D")
    check_shape("member", member, "N", N=count)
    check_finite("embedding of an image", embeddings)
    order = np.arange(count) if hashes is None else np.argsort(np.array(hashes))
    return _out_of_fold(_standardised(embeddings[order]), member, order, seed, groups)


def _standardised(columns: npt.NDArray[Any]) -> Any:
    from sklearn.preprocessing import StandardScaler  # slow to load, and most processes do without

    return StandardScaler().fit_transform(columns)


def _out_of_fold(
    features: npt.NDArray[Any],
    member: BoolArray,
    order: npt.NDArray[np.intp],
    seed: int,
    groups: npt.NDArray[np.int64] | None,
) -> _Float64:
    """Scores (N,) of logistic regressions, each on other folds than it scores; features (N, F) come in an order."""
    # slow to load, and most processes do without
    from scipy.stats import rankdata
    from sklearn.linear_model import LogisticRegression

    scores = np.zeros(len(features))
    inside = member[order]
    folds = stratified_folds(inside, None if groups is None else groups[order], seed, "a blind classifier")
    for index, rows in enumerate(folds):
        training = np.concatenate([folds[(index + step) % FOLDS] for step in range(1, (FOLDS - 1) // 2 + 1)])
        model = LogisticRegression(C=_PENALTY, max_iter=1000).fit(features[training], inside[training])
        # ranks: the models of different folds need not share a scale
        scores[order[rows]] = rankdata(model.decision_function(features[rows])) / (len(rows) + 1)
    return scores


def telling(summaries: _Float64, names: Sequence[str], member: BoolArray) -> dict[str, float]:
    """The three features that by themselves tell members from non-members best, with the AUC of each, at least .5.

    It describes and proves nothing: the best of many is above .5 where there is no difference at all.
    Raises as `mi_core.metrics.delong.auc`.
    """
    aucs = [auc(column, member).value for column in summaries.T]
    ranked = sorted(((max(value, 1 - value), name) for value, name in zip(aucs, names, strict=True)), reverse=True)
    return {name: value for value, name in ranked[:3]}
