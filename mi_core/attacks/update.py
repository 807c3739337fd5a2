"""The change at an update: the similarity of an image's views beside that by an earlier version of the encoder.

Some images have similar views under any encoder. An earlier version, or the public base of a fine-tuned encoder, shows
how similar they were before the update. Known non-members tell how the one follows from the other, by a line of least
squares. The score is how far an image lies above that line: it is large if the update drew its views together by more
than it did those of images like it. The threshold is the conformal one of `mean-cosine`.

Jagielski et al. ("How to combine membership-inference attacks on multiple updated models", PoPETs 2023) and Michel,
Basu and Kaufmann (SeMI, "Sequential membership inference attacks", arXiv 2602.16596) report, of other models, that a
second version tells more than the last alone. Neither method is repeated here. Watson et al. ("On the importance of
difficulty calibration in membership inference attacks", ICLR 2022) take a difference of scores. A line takes its
place, since an encoder that is far from the next tells little of it, and a difference would only add its noise. The
earlier encoder must not have seen the images. It need not be one that the target started from: one that saw other
images serves as well (`configs/results/README.md`).
"""

from __future__ import annotations

from typing import cast

import numpy as np
import numpy.typing as npt

from mi_core.attacks.base import Attack, Scores, State, fisher_z
from mi_core.attacks.threshold import ConformalParameters, conformal_threshold, least_nonmembers
from mi_core.checks import NumericError
from mi_core.features.pairwise_similarity import PairwiseSimilarity
from mi_core.records import Features

_LEAST = 3  # known non-members: a line goes through any two
_ROUNDING = 1e-10  # squares below this are rounding


class Update(Attack):
    """How much more alike an image's views are after an update than an earlier version of the encoder lets expect.

    For the next version of an API, and for fine-tunes of a public base: name the earlier encoder as ``before``. Both
    are asked for the same views. Neither has to be trained, and no member has to be known. It tells images of the
    update from images that neither saw. An image that the earlier version saw already scores low.
    """

    name = "update"
    threat_model = "embeddings of augmented views by two versions of an encoder; some known non-members"
    queries = "10 at 10 views"
    source = "ours, after difficulty calibration (ICLR 2022)"
    reference = frozenset({"nonmembers"})
    updated = True
    Parameters = ConformalParameters
    needs = (PairwiseSimilarity(),)

    @property
    def needed_nonmembers(self) -> int:
        """Enough for the false-positive rate ``fpr``, and for a line."""
        return max(_LEAST, least_nonmembers(self.parameters.fpr))

    def _fit(self, features: Features, member: npt.NDArray[np.bool_]) -> State:
        known = features.take(~member)
        if len(known) < _LEAST:
            raise NumericError(f"{self.name} needs {_LEAST} known non-members for a line, got {len(known)}")
        after, before = _versions(known)
        centre = before.mean()
        square = ((before - centre) ** 2).sum()
        slope = ((before - centre) * after).sum() / square if square > _ROUNDING else 0.0
        line = np.array([slope, after.mean() - slope * centre])
        residuals = _distance_above(after, before, line)
        return {"line": line, "threshold": np.array(conformal_threshold(residuals, self.parameters.fpr, self.name))}

    def _score(self, features: Features, state: State) -> Scores:
        return _distance_above(*_versions(features), state["line"])


def _versions(features: Features) -> tuple[Scores, Scores]:
    """(N,) and (N,) Fisher's z of the mean similarity of views, by the encoder and by the earlier version."""
    both = features, cast(Features, features.before)
    after, before = (fisher_z(one[PairwiseSimilarity()].mean(axis=1, dtype=np.float64)) for one in both)
    return after, before


def _distance_above(after: Scores, before: Scores, line: Scores) -> Scores:
    """(N,) how far they lie above a line, given by its slope and its height at 0."""
    return np.asarray(after - line[0] * before - line[1])
