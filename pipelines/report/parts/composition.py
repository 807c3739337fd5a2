"""What audited encoders promise together whose training data overlap."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from mi_core.defenses.composition import HINT, Composed, Gaussian, Release, SampledGaussian, composed, release_of
from pipelines.config.run_config import RunConfig
from pipelines.config.sections.encoders import DefendedConfig
from pipelines.data.draw.splits import Splits
from pipelines.encoders.stored import describe
from pipelines.report.parts.finished import FinishedRun
from pipelines.run.folder import SeedFolder

_KINDS = {Gaussian: "gaussian", SampledGaussian: "sampled-gaussian", type(None): "unknown"}


def composition(run: FinishedRun) -> list[dict[str, Any]]:
    """One entry of report.json for each set of encoders that share images of their training.

    Encoders count that are attacked, and whose defense promises something in every seed. A set that is a part of
    another one has no entry of its own. Seeds are repetitions: the numbers are those of the seed that promises least.
    """
    releases = _releases(run)
    entries = []
    for names in _overlapping(run, list(releases)):
        found = [composed(of_seed) for of_seed in zip(*(releases[name] for name in names), strict=True)]
        least = max(range(len(found)), key=lambda row: found[row].epsilon)
        alone = [releases[name][least] for name in names]
        seed = run.config.seeds[least]
        shared = [
            count
            for cell, count in _cells(run.config, run.folder.seed(seed))
            if _trained(run.config, cell) >= set(names)
        ]
        entries.append(
            {"seeds": list(run.config.seeds), "seed": seed, "images": sum(shared)}
            | ({"apart": True} if found[least].gamma and _apart(run.config, names) else {})
            | _entry(names, alone, found[least])
        )
    return entries


def _entry(names: Sequence[str], alone: Sequence[Release], found: Composed) -> dict[str, Any]:
    told = {"epsilon": found.epsilon, "basic": found.basic} if math.isfinite(found.epsilon) else {}
    return {
        "encoders": [_row(*of_one) for of_one in zip(names, alone, found.parts, strict=True)],
        **told,
        "delta": found.delta,
        "adjacency": found.adjacency,
        "method": found.method,
        **({"gamma": found.gamma} if found.gamma else {}),
        **({"hint": HINT} if found.missing else {}),
    }


def _row(name: str, alone: Release, part: Release) -> dict[str, Any]:
    converted = {"converted": {"epsilon": part.epsilon, "delta": part.delta}} if part != alone else {}
    return {
        "encoder": name,
        "epsilon": alone.epsilon,
        "delta": alone.delta,
        "adjacencies": list(alone.adjacencies),
        "mechanism": _KINDS[type(alone.mechanism)],
        **({"gamma": alone.gamma} if alone.gamma else {}),
        **converted,
    }


def _releases(run: FinishedRun) -> dict[str, list[Release]]:
    """The promises of the audited encoders by seed; without encoders that promise nothing in some seed."""
    attacked = dict.fromkeys(attack.target for attack in run.config.attacks)
    found: dict[str, list[Release]] = {}
    for name in attacked:
        encoder = run.config.encoders[name]
        if isinstance(encoder, DefendedConfig):
            told = [describe(run.folder.seed(seed), name).record.defense for seed in run.config.seeds]
            each = [
                release_of(encoder.method(seed), of_seed) for seed, of_seed in zip(run.config.seeds, told, strict=True)
            ]
            promised = [release for release in each if release is not None]
            if len(promised) == len(each):
                found[name] = promised
    return found


def _overlapping(run: FinishedRun, names: Sequence[str]) -> list[list[str]]:
    """The largest sets of at least two encoders with an image in common."""
    cells = _cells(run.config, run.first)
    together = {frozenset(_trained(run.config, cell) & set(names)) for cell, count in cells if count}
    largest = [one for one in together if len(one) > 1 and not any(one < other for other in together)]
    return sorted(
        ([name for name in names if name in one] for one in largest), key=lambda one: list(map(names.index, one))
    )


def _trained(config: RunConfig, cell: set[str]) -> set[str]:
    """Encoders whose last training, the one that a defense speaks of, has seen the images of a cell."""
    return {name for name, encoder in config.encoders.items() if cell & set(encoder.train_on)}


def _apart(config: RunConfig, names: Sequence[str]) -> bool:
    """Whether encoders share only a part of their images, so that their gammas are about different pairs."""
    return len({frozenset(config.encoders[name].train_on) for name in names}) > 1


def _cells(config: RunConfig, folder: SeedFolder) -> Iterator[tuple[set[str], int]]:
    """Images that have the same roles and parts: their names, and how many there are."""
    roles, splits = config.data.roles, Splits.load(folder.path)
    for name, role in roles.items():
        if role.source_name in roles:
            yield {name, role.source_name}, splits.count([name])
        else:
            parts = [part for part, one in roles.items() if one.source_name == name]
            yield {name}, splits.count([name], without=parts)
