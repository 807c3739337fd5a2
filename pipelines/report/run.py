"""Gather what a run found into report.json, report.html and figures; show it in the terminal."""

from __future__ import annotations

import json
import shlex
import subprocess
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

from rich.console import RenderableType

from mi_core.adoption.code import imported
from mi_core.checks import ConfigError
from mi_core.provenance import now, versions
from mi_core.querying.precision import WORDS
from mi_core.registration import registration_as_json
from mi_core.report.build import queries_part
from mi_core.report.contents import to_json
from mi_core.report.defenses import compare_defenses
from mi_core.report.figures.figures import draw_figures
from mi_core.report.model.as_json import given_values, part_from_json
from mi_core.report.model.defenses import Tuning
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
from pipelines.attack.candidates import flagged_ids
from pipelines.attack.inference import inferred
from pipelines.config.run_config import RunConfig
from pipelines.config.sections.attacks import PYTHON
from pipelines.config.sections.limits import ReportConfig
from pipelines.console import count_of, say
from pipelines.data.draw.splits import Splits
from pipelines.data.scan.losses import Rejection
from pipelines.errors import UserError
from pipelines.extract.actor.worker import STEPS
from pipelines.extract.features import rejected_samples
from pipelines.extract.ledger import count_queries
from pipelines.files import storage
from pipelines.files.digest import digest
from pipelines.plan.rules import is_membership_unknown
from pipelines.report.attacks import attack_results, dp_audit, memorised, method_part, not_applicable
from pipelines.report.caveats import caveats, not_applying, not_tested, remarks
from pipelines.report.encoders import defended, encoder_part
from pipelines.report.figures import figure_data
from pipelines.report.finished import FinishedRun
from pipelines.report.rows import results_table, summary, sweeps
from pipelines.report.verdict import bounds, classes, evidence, shard_effect, thumbnails, verdict
from pipelines.run.folder import RunFolder
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
    page = render_html(report, figures, thumbnails(finished, answers), flagged_ids(finished.first) if answers else [])
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
    attacks = list(attack_results(run))
    judged, unread = verdict(run), unread_samples(run)
    rejected = [
        *(RejectedSample(source=bad.source, shard=bad.shard, key=bad.key, reason=bad.reason) for bad in unread),
        *(RejectedSample(**bad) for planned in run.planned for bad in rejected_samples(*planned)),
    ]
    inferences = [
        entry
        for planned in run.planned
        for entry in inferred(planned, run.config.attribute_inference, run.config.seeds)
    ]
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
        encoders={name: encoder_part(run, name) for name in run.config.encoders},
        attacks=tuple(attacks),
        not_applicable=tuple(not_applicable(run)),
        pooled=pool_seeds(attacks, overlap=run.overlap),
        attribute_inference=pool_inferences(part_from_json(tuple[InferenceResult, ...], inferences)),
        methods={name: method_part(run, name) for name in dict.fromkeys(result.attack for result in attacks)},
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
        rejected_total=_rejected_total(unread, len(rejected)),
        caveats=tuple(caveats(run)),
        not_tested=tuple(not_tested(run)),
        not_applying=tuple(not_applying(run)),
        tuning=_part_or_none(Tuning, outcome(run.folder)),
    )
    return replace(report, defenses=compare_defenses(report, tuple(defended(run))))


def _part_or_none(kind: type[_Part], entry: dict[str, Any]) -> _Part | None:
    """A part of the report from its plain values; None: there are none."""
    return part_from_json(kind, entry) if entry else None


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


def unread_samples(run: FinishedRun) -> list[Rejection]:
    """The samples that could not be read."""
    return [bad for bad in Splits.load(run.first.path).rejected if not bad.noted]


def _rejected_total(unread: Sequence[Rejection], listed: int) -> RejectedTotal | None:
    """Samples that were left out, those in damaged shards included; None where nothing was."""
    if not listed:
        return None
    return RejectedTotal(
        samples=listed + sum(bad.lost - 1 for bad in unread),
        shards=sum(not bad.key for bad in unread),
        estimated=any(bad.estimated for bad in unread),
    )


def hand_over(config: ReportConfig, folder: RunFolder) -> None:
    """Call what ``report.after`` names.

    A function gets the content of report.json and the place of the run folder. A command gets the place of report.json
    as its last argument.

    Raises:
        UserError: there is no such function or command, or it fails; the report is written all the same.
    """
    if config.after is None:
        return
    say("report", f"handed over to {config.after}")
    try:
        if config.after.startswith(PYTHON):
            _, function = imported("report.after", config.after.removeprefix(PYTHON))
            function(json.loads(storage.read_bytes(f"{folder.path}/report.json")), folder.path)
        else:
            subprocess.run([*shlex.split(config.after), f"{folder.path}/report.json"], check=True)
    except (ConfigError, OSError, ValueError, subprocess.CalledProcessError) as error:
        fault = str(error)
    except Exception as error:  # noqa: BLE001 - whatever code of others raises
        fault = f"{type(error).__name__}: {error}"
    else:
        return
    raise UserError(
        f"report.after = {config.after!r} failed: {fault}; the report is written: {folder.path}/report.html"
    )
