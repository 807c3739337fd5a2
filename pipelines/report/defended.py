"""The defended encoders of a run, with what their defenses tell of themselves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from pipelines.config.run_config import RunConfig
from pipelines.config.sections.encoders import DefendedConfig
from pipelines.encoders.stored import describe
from pipelines.run.folder import RunFolder

PROMISED = frozenset({"epsilon", "epsilon_rdp", "delta", "gamma"})


def defended(config: RunConfig, folder: RunFolder) -> Iterator[dict[str, Any]]:
    """The defended encoders, with what their defenses tell of themselves, over all seeds."""
    entries = {entry.on(name): entry for entry in config.defenses for name in config.encoders}
    attacked = {attack.target for attack in config.attacks}
    for name, encoder in config.encoders.items():
        if isinstance(encoder, DefendedConfig) and name in attacked:
            told = [describe(folder.seed(seed), name).record.defense for seed in config.seeds]
            entry = entries.get(name)
            beside = f"{encoder.defends}+{entry.beside}" if entry and entry.beside else encoder.defends
            yield {
                "defense": encoder.defense,
                "label": entry.name if entry else name,
                "target": beside,
                "served": name,
                "parameters": {**encoder.settings, **({"epoch": encoder.epoch} if encoder.epoch else {})},
                **({} if entry is None or entry.adaptive else {"adaptive": False}),
                "numbers": {key: _over_seeds(key, [of_seed[key] for of_seed in told]) for key in told[0]},
            }


def _over_seeds(name: str, values: Sequence[float]) -> float:
    """The mean over seeds; of what is promised the worst, for no release has the mean of several."""
    return float(max(values) if name in PROMISED else np.mean(values))
