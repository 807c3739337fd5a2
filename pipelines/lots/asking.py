"""Ask an encoder about the images of a part of a lot, in this process or as a Ray task."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from mi_core.auditing.models import device_of, model_of, tried_out
from mi_core.auditing.questions import Scorer, question_of
from mi_core.image_files import ImageError
from mi_core.images import decode_and_hash
from pipelines.console import bars
from pipelines.data.read.samples import Item
from pipelines.data.read.sources import Source
from pipelines.files import storage
from pipelines.lots.statement import CAPTION_SCORES, SCORE
from pipelines.lots.vault import Release

_BATCH = 64  # images that are decoded and asked about together


@dataclass(frozen=True)
class Asking:
    """How an encoder is asked, as a task gets it.

    Args:
        model: a name or an address; anything else is asked in the process that has it.
        settings: of `pipelines.lots.question.whole`.
        nonce: of the views.
    """

    model: Any
    settings: Mapping[str, Any]
    nonce: str


def ask_part(
    asking: Asking, release: Release, name: str, part: pa.Table, path: str, ready: Callable[[], Scorer] | None = None
) -> str:
    """Ask about the images of a part, and write their scores (NaN: missing or altered), unless that is done.

    Images that were missing are asked about once they are there. ``ready`` loads the encoder; None: it is loaded here,
    by its name or address.
    """
    scores = {unit: np.full(3, np.nan) for unit in part["unit"].to_pylist()}
    if storage.exists(path):
        before = storage.read_table(path)
        columns = np.stack([np.asarray(before[name]) for name in (SCORE, *CAPTION_SCORES)], axis=1)
        scores |= dict(zip(before["unit"].to_pylist(), columns, strict=True))
    rows = {row["name"]: row for row in part.to_pylist() if np.isnan(scores[row["unit"]][0])}
    held = {row["name"]: bool(release.draw.held_back[row["unit"]]) for row in rows.values()}
    if storage.exists(path) and not any(True for _ in pictures_of(release, name, held)):
        return path
    ask = ready() if ready is not None else _kept_ready(asking)
    batch: list[tuple[Mapping[str, Any], np.ndarray]] = []

    def send() -> int:
        if not batch:
            return 0
        images = torch.from_numpy(np.stack([pixels for _, pixels in batch]))
        names = [row["name"] for row, _ in batch]
        for (row, _), score in zip(batch, ask.similarity(images, names), strict=True):
            scores[row["unit"]][0] = score
        some = [at for at, (row, _) in enumerate(batch) if row["captions"]]
        for caption in (0, 1):
            if some:
                texts = [batch[at][0]["captions"][caption] for at in some]
                fits = ask.caption_fit(images[some], texts, [names[at] for at in some])
                for at, score in zip(some, fits, strict=True):
                    scores[batch[at][0]["unit"]][1 + caption] = score
        count = len(batch)
        batch.clear()
        return count

    with bars("images", draw=False) as asked:
        task = asked.add_task("asking the encoder", total=len(rows))
        asked.begin(task)
        for key, data in pictures_of(release, name, held):
            row = rows[key]
            try:
                decoded = decode_and_hash(data, ask.decoder)
            except ImageError:
                continue
            if decoded.sha256 == row["sha256"]:
                batch.append((row, decoded.pixels))
            if len(batch) == _BATCH:
                asked.advance(task, send())
        asked.advance(task, send())
    columns = np.stack(list(scores.values()))
    table = {name: columns[:, at] for at, name in enumerate((SCORE, *CAPTION_SCORES))}
    storage.write_table(path, pa.table({"unit": list(scores), **table}))
    return path


def pictures_of(release: Release, name: str, held: Mapping[str, bool]) -> Iterator[tuple[str, bytes]]:
    """The images of a part that are there: names and bytes."""
    shown = [key for key, is_held in held.items() if not is_held]
    back = [key for key, is_held in held.items() if is_held]
    for folder, keys in ((release.lot.published, shown), (release.held_back, back)):
        if release.source.kind == "imagefolder":
            for key in sorted(keys):
                data = storage.file_or_none(f"{folder}/{key}")
                if data is not None:
                    yield key, data
        elif keys and storage.exists(path := f"{folder}/{name}.tar"):
            for sample in Source(release.source).read(Item(name, path=path), set(keys)):
                yield sample.key, sample.image


def expected_files(release: Release) -> Iterator[tuple[str, list[str]]]:
    """The folders of a release with the files of its units that stand in each."""
    held_back = release.draw.held_back
    for folder, is_held in ((release.lot.published, False), (release.held_back, True)):
        names: list[str] = []
        for part in release.parts():
            table = release.images(part, ["name", "sha256"])
            units = np.asarray(pc.fill_null(pc.index_in(table["sha256"], value_set=release.digests), -1))
            mine = (units >= 0) & (held_back[units] == is_held)
            if release.source.kind == "imagefolder":
                names += table["name"].filter(pa.array(mine)).to_pylist()
            elif mine.any():
                names.append(f"{part}.tar")
        yield folder, names


def make_ready(asking: Asking) -> Scorer:
    """Load an encoder.

    Raises:
        ConfigError, ShapeError: as `mi_core.audit`.
    """
    how = dict(asking.settings)
    views = how.pop("views")
    question = question_of(asking.model, **how, seed=0)
    target = tried_out(model_of(asking.model, question.how), question.decoder.image_size)
    return Scorer(target.encoder, question, views, asking.nonce, device_of(asking.model))


def _kept_ready(asking: Asking) -> Scorer:
    """An encoder with a name or an address, loaded once per process."""
    key = json.dumps([asking.model, asking.settings, asking.nonce], sort_keys=True, default=str)
    if key not in _KEPT:
        _KEPT.clear()
        _KEPT[key] = make_ready(asking)
    return _KEPT[key]


_KEPT: dict[str, Scorer] = {}
