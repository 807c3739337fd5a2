"""Load what an attack is fitted on: features of samples whose membership is known."""

from __future__ import annotations

from typing import cast

import numpy as np

from mi_core.attacks.shadows import join_shadows
from mi_core.features.sequential import StoppingRule
from mi_core.records import LabelledFeatures, among
from pipelines.config.sections.encoders import TrainedConfig
from pipelines.data.draw.overlap import members_of
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
    by_shadow, members = {}, []
    for reading in fit.readings:
        shadow = reading.encoder
        settings = cast(TrainedConfig, shadow.settings)
        features = by_shadow[shadow.name] = method.condensed(read(folder, reading, splits))
        trained = members_of(splits, settings, fit.seed, shadow.nonce)
        members.append(trained.among(features.ids, settings.train_on))
    return LabelledFeatures(join_shadows(by_shadow), np.concatenate(members))


def stopping_rule(fit: Fit, folder: SeedFolder) -> StoppingRule:
    """Fit a sequential attack on its reference and return its stopping rule.

    Raises:
        UserError: the features of the reference are missing.
        NumericError: the attack cannot be fitted; NotApplicable: the features carry no information.
    """
    method = fit.attack.method()(fit.attack.parameters(), seed=fit.seed)
    method.fit(reference_of(fit, folder, Splits.load(folder.path)))
    return method.stopping_rule()
