"""Load what an attack is fitted on: features of samples whose membership is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import numpy as np

from mi_core.attacks.shadows import shadow_row
from mi_core.features.sequential import StoppingRule
from mi_core.records import Features, LabelledFeatures, among
from pipelines.config.sections.encoders import TrainedConfig
from pipelines.data.draw.halves import members_of
from pipelines.data.draw.splits import Splits
from pipelines.extract.features import read
from pipelines.plan.items import Fit, Reading
from pipelines.run.folder import SeedFolder


def reference_of(fit: Fit, folder: SeedFolder, splits: Splits) -> LabelledFeatures:
    """Load the reference of an attack; ``splits`` are whole, or of some shards alone.

    Raises:
        UserError: features are missing.
    """
    if fit.by_halves:
        return _halves(fit, folder, splits)
    (reading,) = fit.readings
    roles, members = names_of(reading), [role.name for role in fit.known_members]
    features = read(folder, reading, splits)
    member = splits.among(features.ids, members)
    if fit.audited:
        return LabelledFeatures(features, member, audited=True, groups=splits.groups(features.ids.tolist()))
    if fit.attack.reference_count is not None:
        rows = among(features.ids, set(splits.first(roles, fit.attack.reference_count, fit.seed)))
        features, member = features.take(rows), member[rows]
    return LabelledFeatures(features, member)


def names_of(reading: Reading) -> list[str]:
    """The names of the roles of a reading."""
    return [role.name for role in reading.samples.roles]


def _halves(fit: Fit, folder: SeedFolder, splits: Splits) -> LabelledFeatures:
    """Features of the audited samples from several shadow encoders; members are the training samples of each."""
    method = fit.attack.method()(fit.attack.parameters())
    seen, members, beside = [], [], []
    for reading in fit.readings:
        shadow = reading.encoder
        settings = cast(TrainedConfig, shadow.settings)
        features = method.condensed(read(folder, reading, splits))
        trained = members_of(splits, settings, fit.seed, shadow.nonce)
        seen.append(_by(shadow.name, features))
        members.append(trained.among(features.ids, settings.train_on))
        if features.population is not None:
            beside.append(_by(shadow.name, features.population))
    population = _joined(beside) if beside else None
    return LabelledFeatures(replace(_joined(seen), population=population), np.concatenate(members))


def _by(shadow: str, features: Features) -> Features:
    """Features under the ids of a shadow's rows."""
    return Features(np.array([shadow_row(name, shadow) for name in features.ids]), features.values)


def _joined(parts: Sequence[Features]) -> Features:
    """The rows of several features."""
    values = {need: np.concatenate([part.values[need] for part in parts]) for need in parts[0].values}
    return Features(np.concatenate([part.ids for part in parts]), values)


def stopping_rule(fit: Fit, folder: SeedFolder) -> StoppingRule:
    """Fit a sequential attack on its reference and return its stopping rule.

    Raises:
        UserError: the features of the reference are missing.
        NumericError: the attack cannot be fitted; NotApplicable: the features carry no information.
    """
    method = fit.attack.method()(fit.attack.parameters(), seed=fit.seed)
    method.fit(reference_of(fit, folder, Splits.load(folder.path)))
    return method.stopping_rule()
