"""The joint promise of audited encoders whose training data overlap."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from mi_core.defenses.composition import HINT, Gaussian, Release, SampledGaussian, composed, release_of
from mi_core.report.model.promises import ComposedEncoder, Composition, ConvertedPromise
from pipelines.config.sections.data import DataConfig
from pipelines.config.sections.encoders import DefendedConfig
from pipelines.data.draw.splits import Splits
from pipelines.encoders.stored import describe
from pipelines.report.parts.finished import FinishedRun
from pipelines.run.folder import SeedFolder

_KINDS = {Gaussian: "gaussian", SampledGaussian: "sampled-gaussian", type(None): "unknown"}


def composition(run: FinishedRun) -> tuple[Composition, ...]:
    """One part of the report for each set of encoders that share images of their training.

    Encoders count that are attacked, and whose defense promises something in every seed. A set that is a part of
    another one has no entry of its own. Seeds are repetitions: the numbers are those of the seed that promises least.
    """
    releases = _releases(run)
    parts = []
    for names in _overlapping(run, list(releases)):
        found = [composed(of_seed) for of_seed in zip(*(releases[name] for name in names), strict=True)]
        least = max(range(len(found)), key=lambda row: found[row].epsilon)
        alone = [releases[name][least] for name in names]
        seed = run.config.seeds[least]
        shared = [
            count for cell, count in _cells(run.config.data, run.folder.seed(seed)) if _trained(run, cell) >= set(names)
        ]
        whole = found[least]
        finite = math.isfinite(whole.epsilon)
        parts.append(
            Composition(
                seeds=tuple(run.config.seeds),
                seed=seed,
                images=sum(shared),
                apart=bool(whole.gamma) and _apart(run, names),
                encoders=tuple(_encoder(*of_one) for of_one in zip(names, alone, whole.parts, strict=True)),
                epsilon=whole.epsilon if finite else None,
                basic=whole.basic if finite else None,
                delta=whole.delta,
                adjacency=whole.adjacency,
                method=whole.method,
                gamma=whole.gamma or None,
                hint=HINT if whole.missing else None,
            )
        )
    return tuple(parts)


def _encoder(name: str, alone: Release, part: Release) -> ComposedEncoder:
    return ComposedEncoder(
        encoder=name,
        epsilon=alone.epsilon,
        delta=alone.delta,
        adjacencies=tuple(alone.adjacencies),
        mechanism=_KINDS[type(alone.mechanism)],
        gamma=alone.gamma or None,
        converted=ConvertedPromise(epsilon=part.epsilon, delta=part.delta) if part != alone else None,
    )


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
    cells = _cells(run.config.data, run.first)
    together = {frozenset(_trained(run, cell) & set(names)) for cell, count in cells if count}
    largest = [one for one in together if len(one) > 1 and not any(one < other for other in together)]
    return sorted(
        ([name for name in names if name in one] for one in largest), key=lambda one: list(map(names.index, one))
    )


def _trained(run: FinishedRun, cell: set[str]) -> set[str]:
    """Encoders whose last training, the one that a defense speaks of, has seen the images of a cell."""
    return {name for name, encoder in run.config.encoders.items() if cell & set(encoder.train_on)}


def _apart(run: FinishedRun, names: Sequence[str]) -> bool:
    """Tell whether encoders share only a part of their images, so that their gammas are about different pairs."""
    return len({frozenset(run.config.encoders[name].train_on) for name in names}) > 1


def _cells(data: DataConfig, folder: SeedFolder) -> Iterator[tuple[set[str], int]]:
    """Images that have the same roles and parts: their names, and how many there are."""
    roles, splits = data.roles, Splits.load(folder.path)
    for name, role in roles.items():
        if role.source_name in roles:
            yield {name, role.source_name}, splits.count([name])
        else:
            parts = [part for part, one in roles.items() if one.source_name == name]
            yield {name}, splits.count([name], without=parts)
