"""The defended encoders of a run, with what their defenses tell of themselves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from mi_core.report.model.defenses import DefendedEncoder
from pipelines.config.sections.encoders import DefendedConfig
from pipelines.encoders.stored import describe
from pipelines.report.parts.finished import FinishedRun

PROMISED = frozenset({"epsilon", "epsilon_rdp", "delta", "gamma"})


def defended(run: FinishedRun) -> Iterator[DefendedEncoder]:
    """The defended encoders, with what their defenses tell of themselves, over all seeds."""
    entries = {entry.on(name): entry for entry in run.config.defenses for name in run.config.encoders}
    attacked = {attack.target for attack in run.config.attacks}
    for name, encoder in run.config.encoders.items():
        if isinstance(encoder, DefendedConfig) and name in attacked:
            told = [describe(run.folder.seed(seed), name).record.defense for seed in run.config.seeds]
            entry = entries.get(name)
            beside = f"{encoder.defends}+{entry.beside}" if entry and entry.beside else encoder.defends
            yield DefendedEncoder(
                defense=encoder.defense,
                label=entry.name if entry else name,
                target=beside,
                served=name,
                parameters={**encoder.settings, **({"epoch": encoder.epoch} if encoder.epoch else {})},
                adaptive=entry is None or entry.adaptive,
                numbers={key: _over_seeds(key, [of_seed[key] for of_seed in told]) for key in told[0]},
            )


def _over_seeds(name: str, values: Sequence[float]) -> float:
    """The mean over seeds; of what is promised the worst, for no release has the mean of several."""
    return float(max(values) if name in PROMISED else np.mean(values))
