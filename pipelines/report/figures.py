"""The arrays behind a report's figures, read from the run folder."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from mi_core.report.figures.data import AttackScores, EmbeddingMap, FigureData, LossCurve, ViewGrid
from mi_core.streams import pixel_streams
from pipelines.attack.inference import map_path, planes
from pipelines.attack.scores import judged
from pipelines.data.draw.images import load_images
from pipelines.data.draw.splits import Splits
from pipelines.encoders.stored import describe
from pipelines.errors import UserError
from pipelines.files import storage
from pipelines.plan.rules import recipe_of
from pipelines.report.finished import FinishedRun

VIEWED = 4  # images shown with their views
_DRAWN = 1_000_000  # scores that a figure is drawn from, at most


def figure_data(run: FinishedRun) -> FigureData:
    """Scores at the last checkpoint, training losses, maps and views."""
    return FigureData(tuple(_scores(run)), tuple(_losses(run)), tuple(_maps(run)), _views(run))


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
        table = judged(task, ("score", "member", "statistic"), _DRAWN)
        statistic = np.asarray(table["statistic"]) if "statistic" in table.column_names else None
        yield AttackScores(
            *curve, np.asarray(table["score"]), np.asarray(table["member"]), result["metrics"]["threshold"], statistic
        )


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
