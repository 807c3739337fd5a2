"""The encoders of a run: where they are from, what they are good for, and what defenses tell of themselves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from mi_core.metrics.pooled import pool
from mi_core.records import Estimate
from mi_core.report.model.attacks import Classifier, CurvePoint, EncoderPart, SeedEncoder, Spend, Utility
from mi_core.report.model.defenses import DefendedEncoder
from pipelines.attack.utility import utility_path
from pipelines.config.sections.encoders import DefendedConfig, EndpointConfig, LoadedConfig
from pipelines.encoders import adopt
from pipelines.encoders.access import spent
from pipelines.encoders.stored import describe
from pipelines.files import storage
from pipelines.plan.rules import attacked_epochs, classifier_roles, utility_roles
from pipelines.report.finished import FinishedRun
from pipelines.run.folder import SeedFolder

PROMISED = frozenset({"epsilon", "epsilon_rdp", "delta", "gamma"})


def encoder_part(run: FinishedRun, name: str) -> EncoderPart:
    """An encoder over seeds; its fingerprint is that of the last epoch that is attacked."""
    encoder, epochs = run.config.encoders[name], attacked_epochs(run.config, name)
    places = [place for _, place in run.planned]
    records = [describe(place, name).record for place in places]
    per_seed = tuple(
        SeedEncoder(
            seed=place.seed,
            fingerprint=record.fingerprints[str(epochs[-1])],
            **_utility(utility_curve([place], name, epochs, 0.0)),
        )
        for place, record in zip(places, records, strict=True)
    )
    if isinstance(encoder, LoadedConfig | EndpointConfig):
        origin: dict[str, Any] = adopt.origin(encoder, records[0])
        if isinstance(encoder, EndpointConfig):
            charged = spent(run.folder.path, encoder.parameters().url)
            origin["spend"] = Spend(**asdict(charged)) if charged.requests else None
    else:
        origin = {
            "objective": encoder.objective,
            "backbone": encoder.backbone,
            "epochs": encoder.epochs,
            "train_on": ", ".join(encoder.train_on) + (f", after {encoder.start}" if encoder.start else ""),
        }
    curve = utility_curve(places, name, epochs, run.overlap_of(utility_roles(run.config, name)[1]))
    return EncoderPart(
        **origin,
        fingerprint=per_seed[0].fingerprint,
        **_utility(curve),
        classifier=classifier_part(run, name, epochs[-1]),
        per_seed=per_seed if len(per_seed) > 1 else (),
    )


def _utility(curve: Sequence[CurvePoint]) -> dict[str, Any]:
    """Utility at the last checkpoint and, from two checkpoints on, the curve."""
    return {"utility": curve[-1].utility, "curve": tuple(curve) if len(curve) > 1 else ()} if curve else {}


def utility_curve(places: Sequence[SeedFolder], name: str, epochs: Sequence[int], overlap: float) -> list[CurvePoint]:
    """Utility by checkpoint, where it is measured; pooled over seeds.

    ``overlap`` is that of the tested samples, as `mi_core.metrics.pooled.pool`.
    """
    curve = []
    for epoch in epochs:
        found = [storage.read_json(utility_path(place, name, epoch))["probes"] for place in places]
        probes = {
            probe: pool([Estimate.from_json(of_seed[probe]) for of_seed in found], overlap=overlap)
            for probe in found[0]
            if all(probe in of_seed for of_seed in found)
        }
        if probes:
            n = min(estimate.n for estimate in probes.values())
            utility = Utility({probe: replace(estimate, n=n) for probe, estimate in probes.items()}, n)
            curve.append(CurvePoint(epoch=epoch, utility=utility))
    return curve


def classifier_part(run: FinishedRun, name: str, epoch: int) -> Classifier | None:
    """Accuracies of a classifier trained here, and how much it overfits; pooled over seeds."""
    found = [storage.read_json(utility_path(place, name, epoch)).get("classifier") for _, place in run.planned]
    if None in found:
        return None
    train, test = map(run.overlap_of, classifier_roles(run.config, name))
    again = {"train_accuracy": train, "test_accuracy": test, "overfitting": max(train, test)}
    return Classifier(
        **{
            part: pool([Estimate.from_json(of_seed[part]) for of_seed in found], overlap=overlap)
            for part, overlap in again.items()
        }
    )


def defended(run: FinishedRun) -> Iterator[DefendedEncoder]:
    """The attacked encoders with a defense, and what that tells of itself: the mean over seeds, of a promise the worst.

    No release has the mean of several promises.
    """
    entries = {entry.on(name): entry for entry in run.config.defenses for name in run.config.encoders}
    attacked = {attack.target for attack in run.config.attacks}
    for name, encoder in run.config.encoders.items():
        if isinstance(encoder, DefendedConfig) and name in attacked:
            told = [describe(run.folder.seed(seed), name).record.defense for seed in run.config.seeds]
            entry = entries.get(name)
            yield DefendedEncoder(
                defense=encoder.defense,
                label=entry.name if entry else name,
                target=f"{encoder.defends}+{entry.beside}" if entry and entry.beside else encoder.defends,
                served=name,
                parameters={**encoder.settings, **({"epoch": encoder.epoch} if encoder.epoch else {})},
                adaptive=entry is None or entry.adaptive,
                numbers={
                    key: float((max if key in PROMISED else np.mean)([of_seed[key] for of_seed in told]))
                    for key in told[0]
                },
            )
