"""Gather what a run found into report.json, report.html and figures; show it in the terminal."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any, TypeVar

from rich.console import RenderableType

from mi_core.metrics.pooled import pool
from mi_core.provenance import now, versions
from mi_core.querying.precision import WORDS
from mi_core.records import Estimate
from mi_core.registration import registration_as_json
from mi_core.report.build import attack_result, queries_part
from mi_core.report.contents import to_json
from mi_core.report.defenses import compare_defenses
from mi_core.report.figures.figures import draw_figures
from mi_core.report.model.as_json import given_values, part_from_json
from mi_core.report.model.attacks import AttackResult, MethodPart, NotApplicable
from mi_core.report.model.defenses import Tuning
from mi_core.report.model.encoders import Classifier, CurvePoint, EncoderPart, SeedEncoder, Spend, Utility
from mi_core.report.model.report import (
    SCHEMA_VERSION,
    DataPart,
    QueriesPart,
    QueryEntry,
    Registration,
    RejectedSample,
    RejectedTotal,
    Report,
    Role,
    SeedData,
    ShardsRead,
    Throughput,
    report_from_json,
)
from mi_core.report.page.html import render_html
from mi_core.report.pooling import InferenceResult, pool_inferences, pool_seeds
from mi_core.report.terminal import terminal_table, tuning_table
from pipelines.attack.inference import inferred
from pipelines.attack.results import result_of, settings_of
from pipelines.attack.utility import utility_path
from pipelines.config.run_config import RunConfig
from pipelines.config.sections.attacks import SHADOW, SHADOWS
from pipelines.config.sections.encoders import EndpointConfig, LoadedConfig
from pipelines.console import count_of, say
from pipelines.data.draw.splits import Splits
from pipelines.data.scan.losses import Rejection
from pipelines.encoders import adopt
from pipelines.encoders.access import spent
from pipelines.encoders.stored import describe
from pipelines.extract.actor.worker import STEPS
from pipelines.extract.features import rejected_samples
from pipelines.extract.ledger import count_queries
from pipelines.files import storage
from pipelines.files.digest import digest
from pipelines.plan.rules import attacked_epochs, classifier_roles, is_membership_unknown, shadows_of, utility_roles
from pipelines.report.parts.bounds import bounds
from pipelines.report.parts.caveats import caveats, not_applying, not_tested, remarks
from pipelines.report.parts.defended import defended
from pipelines.report.parts.dp_audit import dp_audit
from pipelines.report.parts.figures import figure_data
from pipelines.report.parts.finished import FinishedRun
from pipelines.report.parts.knowledge import knowledge
from pipelines.report.parts.memorised import memorised
from pipelines.report.parts.rows import results_table, summary, sweeps
from pipelines.report.parts.verdict import classes, evidence, flagged, shard_effect, thumbnails, verdict
from pipelines.run.folder import RunFolder, SeedFolder
from pipelines.run.points import Point
from pipelines.run.registration import lines_of
from pipelines.tune.run import outcome

MOST_REJECTED = 1000  # rejected samples listed in the report; all are counted
_Part = TypeVar("_Part")


def run(config: RunConfig, folder: RunFolder, swept: Sequence[Point] = ()) -> None:
    """Write report.json, report.html, results.parquet and figures/ from what the stages before have left.

    Args:
        swept: points of the run's sweeps, reported before.

    Raises:
        UserError: a stage before has not finished.
    """
    started = time.perf_counter()
    finished = FinishedRun.at(config, folder)
    report = gather(finished)
    report = replace(report, sweeps=sweeps(swept, folder, report))
    storage.write_table(f"{folder.path}/results.parquet", results_table(report))
    storage.write_json(f"{folder.path}/results.json", summary(report))
    figures = draw_figures(report, figure_data(finished))
    for name, drawing in figures.items():
        storage.write_atomic(f"{folder.path}/figures/{name}{drawing.suffix}", drawing.image)
    report = replace(report, timings={**report.timings, "report": round(time.perf_counter() - started, 3)})
    answers = () if report.evidence is None else report.evidence.samples
    page = render_html(report, figures, thumbnails(finished, answers), flagged(finished, answers))
    storage.write_atomic(f"{folder.path}/report.html", page.encode())
    storage.write_atomic(f"{folder.path}/report.json", to_json(report).encode())
    results = count_of(len(report.attacks), "result", "results")
    say("report", f"{results}, {count_of(len(figures), 'figure', 'figures')}")


def terminal(folder: RunFolder, *, whole: bool) -> RenderableType:
    """The tables of a finished run for a rich console; see `terminal_table`."""
    report = report_from_json(json.loads(storage.read_bytes(f"{folder.path}/report.json")))
    return terminal_table(report, whole=whole)


def tuned(folder: RunFolder) -> RenderableType:
    """The result of a search, for a rich console."""
    return tuning_table(part_from_json(Tuning, outcome(folder)))


def gather(run: FinishedRun) -> Report:
    """The content of report.json. Parts that were not measured are absent."""
    manifest = run.folder.manifest
    attacks = list(_attacks(run))
    rejected, judged = _rejected(run), verdict(run)
    inferences = [
        entry
        for planned in run.planned
        for entry in inferred(planned, run.config.attribute_inference, run.config.seeds)
    ]
    searched = outcome(run.folder)
    report = Report(
        schema_version=SCHEMA_VERSION,
        name=run.config.name,
        created=now(),
        config_sha256=digest(run.config.model_dump(mode="json", by_alias=True)),
        config=given_values(run.config.model_dump(mode="json", by_alias=True, exclude={"sweep"})),
        membership="asked" if is_membership_unknown(run.config) else "known",
        versions=versions(),
        command=manifest["runs"][-1]["command"] or None,
        data=_data(run),
        encoders={name: _encoder(run, name) for name in run.config.encoders},
        attacks=tuple(attacks),
        not_applicable=tuple(_not_applicable(run)),
        pooled=pool_seeds(attacks, overlap=run.overlap),
        attribute_inference=pool_inferences(part_from_json(tuple[InferenceResult, ...], inferences)),
        methods={name: _method(run, name) for name in dict.fromkeys(result.attack for result in attacks)},
        registration=_part_or_none(Registration, registration_as_json(lines_of(run.folder))),
        validity=judged,
        bounds=bounds(run, attacks),
        evidence=None if judged is None else evidence(run, judged),
        classes=classes(run),
        memorisation=memorised(run),
        dp_audit=dp_audit(run),
        throughput=_throughput(manifest.get("extraction", [])),
        timings={stage: spent for stage, spent in manifest.get("seconds", {}).items() if stage != "report"},
        queries=_queries(run),
        rejected=tuple(rejected[:MOST_REJECTED]),
        rejected_count=len(rejected),
        rejected_total=_rejected_total(run, len(rejected)),
        caveats=tuple(caveats(run)),
        not_tested=tuple(not_tested(run)),
        not_applying=tuple(not_applying(run)),
        tuning=_part_or_none(Tuning, searched),
    )
    return replace(report, defenses=compare_defenses(report, tuple(defended(run))))


def _part_or_none(kind: type[_Part], entry: dict[str, Any]) -> _Part | None:
    """A part of the report from its plain values; None: there are none."""
    return part_from_json(kind, entry) if entry else None


def _attacks(run: FinishedRun) -> Iterator[AttackResult]:
    for task in run.tasks():
        result = result_of(task)
        if "not_applicable" in result:
            continue
        attack = task.judge.attack
        shadows, known = shadows_of(run.config, attack), knowledge(run.config, attack)
        settings = settings_of(attack, run.config.attacks)
        kind = SHADOW if attack.reference in run.config.encoders else SHADOWS
        entry = {
            **{name: result[name] for name in ("attack", "target", "output", "seed", "epoch", "queries", "seconds")},
            "reference": kind if shadows else attack.reference,
            **result["metrics"],
            **({"shadow": result["reference"]} if shadows else {}),
            **({"knowledge": known} if known else {}),
            **({"settings": settings} if settings else {}),
            "primary": task.judge.primary,
        }
        yield attack_result(entry, asked=is_membership_unknown(run.config))


def _not_applicable(run: FinishedRun) -> Iterator[NotApplicable]:
    """Attacks that found nothing to read."""
    for task in run.tasks():
        result = result_of(task)
        if "not_applicable" in result:
            yield NotApplicable(
                **{name: result[name] for name in ("attack", "target", "output", "epoch", "seed")},
                settings=settings_of(task.judge.attack, run.config.attacks) or None,
                reason=result["not_applicable"],
            )


def _data(run: FinishedRun) -> DataPart:
    seeds = [_seed_data(seed, Splits.load(run.folder.seed(seed).path)) for seed in run.config.seeds]
    rules = Splits.load(run.first.path).rules
    shards = {} if rules is None else {name: ShardsRead(read=few, of=of) for name, (few, of) in rules.shards.items()}
    effect = shard_effect(run) if shards else None
    return DataPart(
        source="; ".join(source.describe() for source in run.config.data.sources.values()),
        roles=seeds[0].roles,
        duplicates_removed=seeds[0].duplicates_removed or 0,
        near_duplicates_removed=seeds[0].near_duplicates_removed,
        remarks=remarks(run),
        per_seed=tuple(seeds) if len(seeds) > 1 else (),
        shards=shards,
        design_effect=None if effect is None else round(effect, 3),
    )


def _seed_data(seed: int, splits: Splits) -> SeedData:
    return SeedData(
        seed=seed,
        roles={role: Role(n=n, sha256=splits.role_digest(role)) for role, n in splits.counts().items()},
        duplicates_removed=splits.duplicates_removed,
        near_duplicates_removed=splits.near_removed,
    )


def _encoder(run: FinishedRun, name: str) -> EncoderPart:
    encoder = run.config.encoders[name]
    epochs = attacked_epochs(run.config, name)
    places = [place for _, place in run.planned]
    per_seed = []
    for place in places:
        fingerprint = describe(place, name).record.fingerprints[str(epochs[-1])]
        own = utility_curve([place], name, epochs, 0.0)
        per_seed.append(SeedEncoder(seed=place.seed, fingerprint=fingerprint, **_utility(own)))
    if isinstance(encoder, LoadedConfig | EndpointConfig):
        origin: dict[str, Any] = adopt.origin(encoder, describe(places[0], name).record)
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
        per_seed=tuple(per_seed) if len(per_seed) > 1 else (),
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
            curve.append(
                CurvePoint(
                    epoch=epoch,
                    utility=Utility({probe: replace(estimate, n=n) for probe, estimate in probes.items()}, n),
                )
            )
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


def _method(run: FinishedRun, name: str) -> MethodPart:
    attacks, queries = [attack for attack in run.config.attacks if attack.attack == name], run.config.queries
    method = attacks[0].method()
    spent = {
        method(attack.parameters()).queries_per_sample(attack.views or queries.views) * queries.repeats
        for attack in attacks
    }
    return MethodPart(
        threat_model=method.threat_model,
        source=method.source,
        queries_per_sample=spent.pop() if len(spent) == 1 else None,
    )


def _throughput(extractions: Sequence[dict[str, Any]]) -> Throughput | None:
    wall = sum(entry["wall"] for entry in extractions)
    if not wall:
        return None
    busy = sum(entry[step] for entry in extractions for step in STEPS)
    precisions = sorted({precision for entry in extractions for precision in entry["precision"]})
    return Throughput(
        images_per_second=round(sum(entry["images"] for entry in extractions) / wall, 1),
        views_per_second=round(sum(entry["views"] for entry in extractions) / wall, 1),
        encoder_fraction=round(sum(entry["forward"] for entry in extractions) / busy, 4) if busy else 0.0,
        precision=", ".join(WORDS[precision] for precision in precisions) or None,
    )


def _queries(run: FinishedRun) -> QueriesPart:
    entries = []
    for planned in run.planned:
        asked: dict[tuple[str, str], list[int]] = {}
        for encoder, role, images, queries in count_queries(planned):
            asked.setdefault((encoder, role), [images, 0])[1] += queries
        entries += [
            QueryEntry(encoder=encoder, role=role, seed=planned.plan.seed, images=images, queries=queries)
            for (encoder, role), (images, queries) in sorted(asked.items())
        ]
    return queries_part(entries, run.config.budget.queries)


def _rejected(run: FinishedRun) -> list[RejectedSample]:
    """The samples that were left out: once while reading, and per seed while querying."""
    read = [
        RejectedSample(source=bad.source, shard=bad.shard, key=bad.key, reason=bad.reason)
        for bad in unread_samples(run)
    ]
    return read + [RejectedSample(**bad) for planned in run.planned for bad in rejected_samples(*planned)]


def unread_samples(run: FinishedRun) -> list[Rejection]:
    """The samples that could not be read."""
    return [bad for bad in Splits.load(run.first.path).rejected if not bad.noted]


def _rejected_total(run: FinishedRun, listed: int) -> RejectedTotal | None:
    """Samples that were left out, those in damaged shards included; None where nothing was."""
    if not listed:
        return None
    first = unread_samples(run)
    samples = listed + sum(bad.lost - 1 for bad in first)
    shards = sum(not bad.key for bad in first)
    return RejectedTotal(samples=samples, shards=shards, estimated=any(bad.estimated for bad in first))
