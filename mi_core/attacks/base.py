"""The base of attacks: fitted on features of known membership, then it scores features and never sees an encoder."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from mi_core.checks import ConfigError, NumericError, ShapeError, check_finite
from mi_core.features import Measure, queries_per_image
from mi_core.features.embedding import Embedding
from mi_core.records import Features, LabelledFeatures

_BELOW_ONE = 1 - 1e-7  # cosines of identical views round to 1, whose atanh is infinite
_IN_NO_SHADOW = "in no shadow's data; shadows must be drawn from the audited samples"

Scores = npt.NDArray[np.float64]
State = dict[str, npt.NDArray[Any]]
"""What a fit learned, as arrays by name."""


class NotApplicable(NumericError):
    """The encoder's answers carry nothing that this attack could read; the message says what to leave out."""


class Attack(ABC):
    """One attack; a subclass states what it sees and defines `_fit` and `_score`.

    Args:
        parameters: an instance of `Parameters`; default: the paper's values.
        seed: of everything random in the fit.

    Raises ConfigError: parameters of another attack.
    """

    name: ClassVar[str]
    """Its key in `ATTACKS`."""
    threat_model: ClassVar[str]
    """What the attacker sees, in words."""
    queries: ClassVar[str] = "1"
    """Queries per image with the default parameters, in words; a number that depends on V is told at 10 views."""
    source: ClassVar[str]
    """Paper, section."""
    reference: ClassVar[frozenset[str]]
    """What it may be fitted on: ``shadow`` (an encoder of the attacker's own), ``shadows`` (several, each trained on a
    half of the audited samples), ``known`` (members and non-members of the target), ``nonmembers`` (some known
    non-members of the target), ``audited`` (the samples that are judged, each by what others taught)."""
    least_shadows: ClassVar[int] = 1
    """How many encoders that were trained on halves of the audited samples it takes, at least."""
    outputs: ClassVar[tuple[str, ...] | None] = None
    """The only outputs of an encoder it reads; None: any."""
    anchored: ClassVar[bool] = False
    """Whether it compares embeddings with those of anchors: further images, `Features.anchors`."""
    populated: ClassVar[bool] = False
    """Whether it compares samples with a population that the target did not see: `Features.population`."""
    labelled: ClassVar[bool] = False
    """Whether it knows the true classes of the samples: `Features.labels`."""
    updated: ClassVar[bool] = False
    """Whether it compares an encoder with an earlier version of it: `Features.before`."""
    Parameters: ClassVar[type[Any]]
    """Frozen dataclass of settings."""

    def __init__(self, parameters: Any = None, *, seed: int = 0) -> None:
        self.parameters = self.Parameters() if parameters is None else parameters
        if not isinstance(self.parameters, self.Parameters):
            raise ConfigError(f"{self.name} takes {self.Parameters.__qualname__}, got {type(parameters).__name__}")
        self.seed = seed
        self._state: State = {}

    @property
    @abstractmethod
    def needs(self) -> tuple[Measure, ...]:
        """Membership features the attack consumes, see `mi_core.features`."""

    @property
    def threshold(self) -> float:
        """The score from which on a sample is called a member; fixed by the fit.

        Raises ConfigError: the attack is not fitted.
        """
        return float(self.state()["threshold"])

    @property
    def bank_size(self) -> int:
        """Images of a bank that it compares samples with; each encoder is asked for them once."""
        return max((measure.bank for measure in self.needs), default=0)

    @property
    def needed_nonmembers(self) -> int:
        """How many known non-members it takes to fit it, at least."""
        return 1

    def queries_per_sample(self, views: int) -> int:
        """Queries spent per sample when V = ``views`` augmented views are drawn."""
        return queries_per_image(self.needs, views)

    def fit(self, reference: LabelledFeatures) -> None:
        """Learn from features of known membership.

        Raises ConfigError: a feature that the attack needs is missing; ShapeError: there are no members, and the attack
        needs some; NotApplicable: the features carry nothing to fit; NumericError: the fit diverged.
        """
        self._check_needs(reference.features)
        if "nonmembers" not in self.reference and not reference.member.any():
            raise ShapeError(f"{self.name} needs members too, the reference has {len(reference.member)} non-members")
        self._state = self._fit(reference.features, reference.member)

    def score(self, features: Features) -> Scores:
        """Scores (N,) float64 of N samples, higher = more likely a member.

        Raises ConfigError: the attack is not fitted, or a feature is missing; NumericError: a score is NaN or infinite;
        the message names the samples.
        """
        self._check_needs(features)
        scores = np.asarray(self._score(features, self.state()), dtype=np.float64)
        check_finite(f"score of {self.name}", scores, features.ids)
        return scores

    def statistic(self, features: Features) -> Scores | None:
        """(N,) the one number per sample that the attack reads, in its own unit; None where it reads several."""
        return None

    def condensed(self, features: Features) -> Features:
        """As much of the features as a fit needs, for attacks that are fitted on those of many encoders at once."""
        return features

    def state(self) -> State:
        """The result of the fit, as arrays by name.

        Raises ConfigError: the attack is not fitted.
        """
        if not self._state:
            raise ConfigError(f"{self.name} is not fitted; call fit first")
        return dict(self._state)

    @abstractmethod
    def _fit(self, features: Features, member: npt.NDArray[np.bool_]) -> State: ...

    @abstractmethod
    def _score(self, features: Features, state: State) -> npt.NDArray[Any]: ...

    def _places(
        self, names: npt.NDArray[np.str_], ids: npt.NDArray[np.str_], fault: str = _IN_NO_SHADOW
    ) -> npt.NDArray[np.intp]:
        """Where samples stand among ascending names. Raises ConfigError: one is not there, which is the fault."""
        place = np.searchsorted(names, ids).clip(max=len(names) - 1)
        unknown = ids[names[place] != ids]
        if len(unknown):
            raise ConfigError(f"{self.name}: {unknown[0]} is {fault}")
        return np.asarray(place)

    def _check_width(self, features: Features, state: State) -> None:
        """Raise NotApplicable if embeddings are wider or narrower than those of the fit, whose mean is in the state."""
        width, fitted = features[Embedding()].shape[1], len(state["mean"])
        if width != fitted:
            raise NotApplicable(f"{self.name} was fitted on embeddings of {fitted} numbers, these have {width}")

    def _check_given(self, features: Features) -> None:
        missing = [measure.name for measure in self.needs if measure not in features]
        if missing:
            raise ConfigError(f"{self.name} needs the feature {missing[0]!r}; given: {', '.join(features.values)}")

    def _check_needs(self, features: Features) -> None:
        self._check_given(features)
        if self.anchored and features.anchors is None:
            raise ConfigError(f"{self.name} needs anchors; give the embeddings of further images")
        if self.populated:
            if features.population is None:
                raise ConfigError(f"{self.name} needs a population; give the features of images that no encoder saw")
            self._check_given(features.population)
        if self.updated:
            if features.before is None:
                raise ConfigError(f"{self.name} needs the features of an earlier version of the encoder")
            self._check_given(features.before)
        if self.labelled and features.labels is None:
            raise ConfigError(f"{self.name} needs the true classes of the samples")


def fisher_z(cosines: npt.NDArray[np.float64]) -> Scores:
    """Fisher's z of cosines, atanh; those that round to 1 or -1 stay finite."""
    return np.asarray(np.arctanh(cosines.clip(-_BELOW_ONE, _BELOW_ONE)))


def directions(embeddings: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """(N, D) embeddings scaled to length 1; one of length 0 stays so."""
    given = np.asarray(embeddings, dtype=np.float32)
    lengths = np.linalg.norm(given, axis=1, keepdims=True)
    return np.asarray(given / np.where(lengths > 0, lengths, 1.0), dtype=np.float32)
