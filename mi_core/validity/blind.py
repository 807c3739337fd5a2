"""A blind classifier: tells members from non-members by their pixels, without querying any encoder.

If it succeeds, the two groups differ by themselves and an attack's success proves nothing (Das, Zhang, Tramer, "Blind
baselines beat membership inference attacks for foundation models", 2024). What it sees: the pixels and the mean and
spread of each channel; logistic regression on standardised features, scored out of fold.

Every fold is scored by a model that was fitted on 2 of the 4 other folds, arranged in a circle so that no two
folds ever train on each other. In ordinary cross-validation they do, which ties the scores of all folds together: on
random splits of the digits (440 + 440) the AUC then varied with a standard deviation of .030 instead of
DeLong's .020 and its interval missed 0.5 in 21 of 100 splits; with the circle .021 and 6 of 100.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from mi_core.checks import ShapeError, check_shape
from mi_core.records import BoolArray

FOLDS = 5
_PENALTY = 0.01  # inverse strength: a few hundred images have more pixels than a weaker penalty could bear
_LARGEST = 32  # larger images are shrunk to this many pixels a side by taking block means


def blind_scores(images: npt.NDArray[np.uint8], member: BoolArray, *, seed: int) -> npt.NDArray[np.float64]:
    """Out-of-fold scores of a classifier on pixels.

    Args:
        images: (N, C, H, W) uint8.
        member: (N,) bool, at least 5 of each class.
        seed: of the folds.

    Returns:
        (N,) in (0, 1): ranks within the fold, higher = more likely a member.

    Raises:
        ShapeError: the shapes do not fit, or a class has fewer than 5 samples.
    """
    (count, *_) = check_shape("images", images, "N C H W")
    check_shape("member", member, "N", N=count)
    fewest = min(int(member.sum()), int((~member).sum()))
    if fewest < FOLDS:
        raise ShapeError(f"a blind classifier needs {FOLDS} samples of each class, got {fewest} of one")
    features = _features(images)
    folds = [
        rows for _, rows in StratifiedKFold(FOLDS, shuffle=True, random_state=seed % 2**32).split(features, member)
    ]
    scores = np.zeros(count)
    for index, rows in enumerate(folds):
        training = np.concatenate([folds[(index + step) % FOLDS] for step in range(1, (FOLDS - 1) // 2 + 1)])
        model = make_pipeline(StandardScaler(), LogisticRegression(C=_PENALTY, max_iter=1000))
        model.fit(features[training], member[training])
        # ranks: the models of different folds need not share a scale
        scores[rows] = rankdata(model.decision_function(features[rows])) / (len(rows) + 1)
    return scores


def _features(images: npt.NDArray[np.uint8]) -> npt.NDArray[np.float64]:
    """Pixels of at most 32 x 32 block means, then mean and standard deviation of each channel."""
    pixels = images.astype(np.float64) / 255
    step_h, step_w = (-(-size // _LARGEST) for size in images.shape[2:])
    height, width = images.shape[2] // step_h, images.shape[3] // step_w
    cut = pixels[:, :, : height * step_h, : width * step_w]
    small = cut.reshape(*cut.shape[:2], height, step_h, width, step_w).mean(axis=(3, 5))
    level, spread = pixels.mean(axis=(2, 3)), pixels.std(axis=(2, 3))
    return np.concatenate([small.reshape(len(images), -1), level, spread], axis=1)
