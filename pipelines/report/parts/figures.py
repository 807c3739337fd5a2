"""The arrays behind a report's figures, read from the run folder."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from mi_core.report.contents import AttackScores, EmbeddingMap, FigureData, LossCurve, StatisticCurve
from mi_core.report.figures.images import ViewGrid
from mi_core.streams import pixel_streams
from pipelines.attack.inference import map_path, planes
from pipelines.attack.results import Task, result_of, settings_of, tasks
from pipelines.attack.scores import judged, parts_of
from pipelines.data.draw.images import load_images
from pipelines.data.draw.splits import Splits
from pipelines.encoders.stored import describe
from pipelines.errors import UserError
from pipelines.files import storage
from pipelines.plan.rules import attacked_epochs, recipe_of
from pipelines.report.parts.finished import FinishedRun

VIEWED = 4  # images shown with their views
_DRAWN = 1_000_000  # scores that a figure is drawn from, at most


def figure_data(run: FinishedRun) -> FigureData:
    """Scores at the last checkpoint, means by checkpoint, and training losses."""
    return FigureData(tuple(_scores(run)), tuple(_losses(run)), tuple(_statistics(run)), tuple(_maps(run)), _views(run))


def _scores(run: FinishedRun) -> Iterator[AttackScores]:
    """Scores at the last checkpoint; each curve once, as a point of a sweep may make two attacks alike."""
    drawn: set[tuple[Any, ...]] = set()
    for task in run.tasks():
        known = ", ".join(
            filter(None, (task.judge.attack.reference, settings_of(task.judge.attack, run.config.attacks)))
        )
        curve = (task.judge.attack.attack, task.judge.attack.target, task.judge.output, known, task.folder.seed)
        last = task.judge.last
        if not last or curve in drawn or "not_applicable" in result_of(task):
            continue
        drawn.add(curve)
        table = judged(task, ("score", "member", "statistic"), _DRAWN)
        threshold = result_of(task)["metrics"]["threshold"]
        statistic = np.asarray(table["statistic"]) if "statistic" in table.column_names else None
        yield AttackScores(*curve, np.asarray(table["score"]), np.asarray(table["member"]), threshold, statistic)


def _losses(run: FinishedRun) -> Iterator[LossCurve]:
    for seed, name in product(run.config.seeds, run.config.encoders):
        loss = np.array(describe(run.folder.seed(seed), name).record.losses)
        if len(loss):
            yield LossCurve(name, seed, np.arange(1.0, len(loss) + 1), loss)


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
        recipe_of(run.config, attack).build(),
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


def _statistics(run: FinishedRun) -> Iterator[StatisticCurve]:
    """Means of what attacks read by checkpoint; one curve per statistic, target, output and seed."""
    found: dict[tuple[Any, ...], list[tuple[float, float, float]]] = {}
    for planned in run.planned:
        for task in tasks(planned):
            if len(attacked_epochs(run.config, task.judge.attack.target)) < 2 or (means := means_of(task)) is None:
                continue
            name = f"{task.judge.attack.attack} {settings_of(task.judge.attack, run.config.attacks)}".strip()
            points = found.setdefault((name, task.judge.attack.target, task.judge.output, task.judge.seed), [])
            if task.judge.epoch not in [epoch for epoch, _, _ in points]:
                points.append((task.judge.epoch, *means))
    for (name, target, output, seed), points in found.items():
        epoch, inside, outside = (np.array(column) for column in zip(*sorted(points), strict=True))
        yield StatisticCurve(name, target, output, seed, epoch, inside, outside)


def means_of(task: Task) -> tuple[float, float] | None:
    """Mean over members and over non-members of what an attack reads; None where it is not one number."""
    if not parts_of(task):  # the attack does not apply
        return None
    table = judged(task, ("statistic", "member"), _DRAWN)
    if "statistic" not in table.column_names:
        return None
    values, member = np.asarray(table["statistic"]), np.asarray(table["member"])
    return float(values[member].mean()), float(values[~member].mean())
