"""Gather what a run found into report.json, report.html and figures; show it in the terminal."""

from __future__ import annotations

import json
import shlex
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
from rich.console import RenderableType

from mi_core.adoption.code import imported
from mi_core.checks import ConfigError
from mi_core.provenance import now, versions
from mi_core.querying.precision import WORDS
from mi_core.registration import registration_as_json
from mi_core.report.build import queries_part
from mi_core.report.contents import to_json
from mi_core.report.defenses import compare_defenses
from mi_core.report.figures.drawing import AttackScores, EmbeddingMap, FigureData, LossCurve, ViewGrid
from mi_core.report.figures.figures import draw_figures
from mi_core.report.model import report as model
from mi_core.report.model.as_json import given_values, part_from_json
from mi_core.report.model.attacks import InferenceResult
from mi_core.report.model.defenses import Tuning
from mi_core.report.model.report import Report
from mi_core.report.page.html import render_html
from mi_core.report.pooling import pool_inferences, pool_seeds
from mi_core.report.terminal import terminal_table, tuning_table
from mi_core.streams import pixel_streams
from pipelines.attack.candidates import flagged_ids
from pipelines.attack.inference import inferred, map_path, planes
from pipelines.attack.scores import judged as judged_scores
from pipelines.config.sections.attacks import PYTHON
from pipelines.config.sections.limits import ReportConfig
from pipelines.console import count_of, say
from pipelines.data.draw.images import load_images
from pipelines.data.draw.splits import Splits
from pipelines.data.scan.losses import Rejection
from pipelines.encoders.stored import describe
from pipelines.errors import UserError
from pipelines.extract.actor.worker import STEPS
from pipelines.extract.features import rejected_samples
from pipelines.extract.ledger import count_queries
from pipelines.files import storage
from pipelines.files.digest import digest
from pipelines.report import attacks
from pipelines.report.caveats import caveats, left_untested, remarks
from pipelines.report.finished import FinishedRun
from pipelines.report.rows import results_table, summary, sweeps
from pipelines.report.verdict import bounds, classes, evidence, thumbnails, verdict
from pipelines.run.folder import RunFolder
from pipelines.run.points import Point
from pipelines.run.registration import lines_of
from pipelines.tune.run import outcome

MOST_REJECTED = 1000  # rejected samples listed in the report; all are counted
VIEWED = 4  # images shown with their views
DRAWN = 1_000_000  # scores that a figure is drawn from, at most


def run(finished: FinishedRun, swept: Sequence[Point] = ()) -> None:
    """Write report.json, report.html, results.parquet and figures/ from what the stages before have left.

    Args:
        finished: the run.
        swept: points of its sweeps, reported before.

    Raises:
        UserError: a stage before has not finished.
    """
    started, folder = time.perf_counter(), finished.folder
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
    report = model.report_from_json(json.loads(storage.read_bytes(f"{folder.path}/report.json")))
    return terminal_table(report, whole=whole)


def tuned(folder: RunFolder) -> RenderableType:
    """The result of a search, for a rich console."""
    return tuning_table(part_from_json(Tuning, outcome(folder)))


def gather(run: FinishedRun) -> Report:
    """The content of report.json. Parts that were not measured are absent."""
    manifest = run.folder.manifest
    registered, searched = registration_as_json(lines_of(run.folder)), outcome(run.folder)
    results = list(attacks.attack_results(run))
    judged, unread = verdict(run), unread_samples(run)
    not_tested, not_applying = left_untested(run)
    rejected = [
        *(model.RejectedSample(source=bad.source, shard=bad.shard, key=bad.key, reason=bad.reason) for bad in unread),
        *(model.RejectedSample(**bad) for planned in run.planned for bad in rejected_samples(*planned)),
    ]
    inferences = [
        entry
        for planned in run.planned
        for entry in inferred(planned, run.config.attribute_inference, run.config.seeds)
    ]
    report = Report(
        schema_version=model.SCHEMA_VERSION,
        name=run.config.name,
        created=now(),
        config_sha256=digest(run.config.model_dump(mode="json", by_alias=True)),
        config=given_values(run.config.model_dump(mode="json", by_alias=True, exclude={"sweep"})),
        membership="asked" if run.threat.is_membership_unknown else "known",
        versions=versions(),
        command=manifest["runs"][-1]["command"] or None,
        data=_data(run),
        encoders={name: attacks.encoder_part(run, name) for name in run.config.encoders},
        attacks=tuple(results),
        not_applicable=tuple(attacks.not_applicable(run)),
        pooled=pool_seeds(results, overlap=run.overlap),
        attribute_inference=pool_inferences(part_from_json(tuple[InferenceResult, ...], inferences)),
        methods={name: attacks.method_part(run, name) for name in dict.fromkeys(result.attack for result in results)},
        registration=part_from_json(model.Registration, registered) if registered else None,
        validity=judged,
        bounds=bounds(run, results),
        evidence=None if judged is None else evidence(run, judged),
        classes=classes(run),
        memorisation=attacks.memorised(run),
        dp_audit=attacks.dp_audit(run),
        throughput=_throughput(manifest.get("extraction", [])),
        timings={stage: spent for stage, spent in manifest.get("seconds", {}).items() if stage != "report"},
        queries=_queries(run),
        rejected=tuple(rejected[:MOST_REJECTED]),
        rejected_count=len(rejected),
        rejected_total=_rejected_total(unread, len(rejected)),
        caveats=tuple(caveats(run)),
        not_tested=not_tested,
        not_applying=not_applying,
        tuning=part_from_json(Tuning, searched) if searched else None,
    )
    return replace(report, defenses=compare_defenses(report, tuple(attacks.defended(run))))


def _data(run: FinishedRun) -> model.DataPart:
    splits = {seed: Splits.load(run.folder.seed(seed).path) for seed in run.config.seeds}
    seeds = [
        model.SeedData(
            seed=seed,
            roles={role: model.RolePart(n=n, sha256=own.role_digest(role)) for role, n in own.counts().items()},
            duplicates_removed=own.duplicates_removed,
            near_duplicates_removed=own.near_removed,
        )
        for seed, own in splits.items()
    ]
    rules = splits[run.config.seeds[0]].rules
    counts = {} if rules is None else rules.shards
    return model.DataPart(
        source="; ".join(source.describe() for source in run.config.data.sources.values()),
        roles=seeds[0].roles,
        duplicates_removed=seeds[0].duplicates_removed or 0,
        near_duplicates_removed=seeds[0].near_duplicates_removed,
        remarks=remarks(run),
        per_seed=tuple(seeds) if len(seeds) > 1 else (),
        shards={name: model.ShardsRead(read=few, of=of) for name, (few, of) in counts.items()},
    )


def _throughput(extractions: Sequence[dict[str, Any]]) -> model.Throughput | None:
    wall = sum(entry["wall"] for entry in extractions)
    if not wall:
        return None
    busy = sum(entry[step] for entry in extractions for step in STEPS)
    precisions = sorted({precision for entry in extractions for precision in entry["precision"]})
    return model.Throughput(
        images_per_second=round(sum(entry["images"] for entry in extractions) / wall, 1),
        views_per_second=round(sum(entry["views"] for entry in extractions) / wall, 1),
        encoder_fraction=round(sum(entry["forward"] for entry in extractions) / busy, 4) if busy else 0.0,
        precision=", ".join(WORDS[precision] for precision in precisions) or None,
    )


def _queries(run: FinishedRun) -> model.QueriesPart:
    entries = []
    for planned in run.planned:
        asked: dict[tuple[str, str], list[int]] = {}
        for encoder, role, images, queries in count_queries(planned):
            asked.setdefault((encoder, role), [images, 0])[1] += queries
        entries += [
            model.QueryEntry(encoder=encoder, role=role, seed=planned.plan.seed, images=images, queries=queries)
            for (encoder, role), (images, queries) in sorted(asked.items())
        ]
    return queries_part(entries, run.config.budget.queries)


def unread_samples(run: FinishedRun) -> list[Rejection]:
    """The samples that could not be read."""
    return [bad for bad in Splits.load(run.first.path).rejected if not bad.noted]


def _rejected_total(unread: Sequence[Rejection], listed: int) -> model.RejectedTotal | None:
    """Samples that were left out, those in damaged shards included; None where nothing was."""
    if not listed:
        return None
    return model.RejectedTotal(
        samples=listed + sum(bad.lost - 1 for bad in unread),
        shards=sum(not bad.key for bad in unread),
        estimated=any(bad.estimated for bad in unread),
    )


def figure_data(run: FinishedRun) -> FigureData:
    """Scores at the last checkpoint, training losses, maps and views."""
    losses = {
        (name, seed): np.array(describe(run.folder.seed(seed), name).record.losses)
        for seed, name in product(run.config.seeds, run.config.encoders)
    }
    curves = tuple(LossCurve(*of, np.arange(1.0, len(loss) + 1), loss) for of, loss in losses.items() if len(loss))
    return FigureData(tuple(_scores(run)), curves, tuple(_maps(run)), _views(run))


def _scores(run: FinishedRun) -> Iterator[AttackScores]:
    """Scores at the last checkpoint; each curve once, as a point of a sweep may make two attacks alike."""
    drawn: set[tuple[Any, ...]] = set()
    for task, result in run.applying():
        attack = task.judge.attack
        known = ", ".join(filter(None, (attack.reference, run.settings(attack))))
        curve = (attack.attack, attack.target, task.judge.output, known, task.folder.seed)
        if not task.judge.last or curve in drawn:
            continue
        drawn.add(curve)
        table = judged_scores(task, ("score", "member", "statistic"), DRAWN)
        statistic = np.asarray(table["statistic"]) if "statistic" in table.column_names else None
        threshold = None if result.metrics is None else result.metrics.threshold
        yield AttackScores(*curve, np.asarray(table["score"]), np.asarray(table["member"]), threshold, statistic)


def _views(run: FinishedRun) -> ViewGrid | None:
    """The first candidates of the first seed as the first attack on views sees them; None: no such attack or images."""
    drawing = [attack for attack in run.config.attacks if attack.draws_views]
    if not drawing:
        return None
    import torch

    from mi_core.augmentations.views import make_views

    place, attack = run.first, drawing[0]
    try:
        shown = load_images(run.config.data, Splits.load(place.path), run.audited[:1], limit=VIEWED)
    except UserError:  # a report is also written when the images are gone, or one of these cannot be decoded
        return None
    images = torch.from_numpy(shown.images)
    drawn = make_views(
        images,
        pixel_streams(run.config.queries.nonce or "", place.seed, "query", images),
        run.threat.recipe_of(attack).build(),
        views=attack.views or run.config.queries.views,
    )
    return ViewGrid(shown.images, (drawn * 255).round().to(torch.uint8).numpy())


def _maps(run: FinishedRun) -> Iterator[EmbeddingMap]:
    """Embeddings of the first seed in the plane."""
    plan, place = run.planned[0]
    for item in planes(plan, place):
        table, chosen = storage.read_table(map_path(item, place)), item.settings
        yield EmbeddingMap(
            chosen.target,
            chosen.output,
            chosen.attribute,
            np.stack([np.asarray(table["x"]), np.asarray(table["y"])], axis=1),
            np.asarray(table["class"]),
            np.asarray(table["value"]),
            run.config.data.attributes[chosen.attribute].names,
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
