"""Claim that an encoder used what a lot published: ask about published and held-back images, and test the draw.

The question is registered in the lot's chain before the first query, and leaves its owner nothing to choose (see
`mi_core.lots.commitment`). Answers are kept part by part, so that a claim that was ended goes on where it stopped, and
no finished part is asked twice.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from mi_core.auditing.models import device_of, evaluating, is_address, model_of, tried_out
from mi_core.auditing.questions import Scorer
from mi_core.image_files import ImageError
from mi_core.images import decode_and_hash
from mi_core.lots.commitment import UNTIL_DECIDED, Question, grade_of, number_of
from mi_core.lots.draw import beacon_fault, waves_of
from mi_core.lots.page import ClaimPage, render_claim
from mi_core.lots.verdict import USED
from mi_core.provenance import now
from pipelines.console import bars, say
from pipelines.errors import UserError
from pipelines.files import storage
from pipelines.lots.question import describe, folder_of, register, same_question, settled_nonce, way_of, whole
from pipelines.lots.statement import ANSWERS, Answers, answers_in, judge_answers, write_statement
from pipelines.lots.vault import VAULT, Lot, Release, drawn_of, order_of
from pipelines.run.parts import TaskMap, on_parts

_MAY_MISS = 0.01  # of the files of a lot, before a claim asks for them
_BATCH = 64  # images that are decoded and asked about together
_ASKED = ["name", "sha256", "captions"]  # columns that asking needs
PAGE = "claim.html"
_VALUE = "value.json"  # in the folder of a question: the number that decided its nonce


@dataclass(frozen=True)
class Claim(ClaimPage):
    """A claim on a lot, and where it stands."""

    lot: Lot

    @property
    def statement(self) -> str:
        """The folder of the two files to hand over and of the page, outside of the vault."""
        return f"{self.lot.claims}/{self.question.commitment[:12]}"


def register_claim(place: str, model: Any, decided_by: str, **settings: Any) -> Question:
    """Register a question that a later number will decide, and ask nothing yet.

    Args:
        place: folder of the lot.
        model, settings: as `claim` takes them.
        decided_by: which later number will decide the nonce, in words.

    Raises:
        UserError, ConfigError, ShapeError: as `claim`.
    """
    lot, releases = _written(place)
    with on_parts(f"{lot.path}/{VAULT}", None, "claim"), evaluating(model):
        return register(lot, describe(model, whole(settings), releases), decided_by)


def claim(
    place: str, model: Any, *, beacon: str = "", missing_ok: bool = False, address: str | None = None, **settings: Any
) -> Claim:
    """Ask an encoder about a lot, and test whether its answers depend on the draw.

    Args:
        place: folder of the lot.
        model: the encoder, as `mi_core.audit` takes it. A network or function is asked in this process; a name or an
            address also by Ray tasks.
        beacon: the number by which `register_claim` said that the views are decided; empty: none was registered.
        missing_ok: ask although images are missing; else a few may be. They count against the claim.
        address: a Ray cluster; None: a local Ray where there are many images.
        settings: ``size``, ``decoding``, ``weights``, ``weights_key``, ``objective``, ``augmentation``, ``output``,
            ``mean``, ``std``, ``endpoint``, ``key``, ``trust_code`` and ``views`` as `mi_core.audit` has them. What
            the encoder does not settle by itself makes the claim the owner's word.

    Returns:
        The claim; the same call again goes on with it, or gives the same.

    Raises:
        UserError: there is no lot, it is not drawn and written to its end, or the question waits for another number.
        ConfigError, ShapeError, NumericError: as `mi_core.audit`.
    """
    lot, releases = _written(place)
    _check_there(releases, missing_ok=missing_ok)
    with on_parts(f"{lot.path}/{VAULT}", address, "claim") as each, evaluating(model):
        own = whole(settings)
        if is_address(model):
            say("claim", "the operator of the API gets to see held-back images")
        question = _decided(lot, describe(model, own, releases), beacon)
        say("claim", f"question {number_of(lot.chain(), question)}: {question.commitment}")
        return _asked(lot, releases, question, beacon, Asking(model, own, settled_nonce(lot, question, beacon)), each)


def _written(place: str) -> tuple[Lot, list[Release]]:
    """A lot and its releases that are drawn and written."""
    lot = Lot.at(place)
    releases = [release for release in lot.releases() if release.is_committed]
    if not any(release.is_written for release in releases):
        raise UserError(f"{place} has no release that is drawn and written; run encoder-audit lot")
    for release in releases:
        if not release.is_written:  # else its owner could see what it would say, and then decide
            raise UserError(f"release {release.number} is committed and not written; run encoder-audit lot draw first")
    return lot, releases


def _decided(lot: Lot, described: Question, beacon: str) -> Question:
    """The registered question; the number that decides its views is written down before the first query."""
    if not beacon:
        return register(lot, described, "")
    question = same_question(lot.chain(), described)
    if question is None or not question.decided_by:
        raise UserError("--beacon is of a registered question, and this one is not; run encoder-audit claim register")
    if fault := beacon_fault(question.decided_by, beacon):
        raise UserError(f"--beacon: {fault}; give the number itself that {question.decided_by} has")
    path = f"{folder_of(lot, question)}/{_VALUE}"
    if not storage.exists(path):
        storage.write_json(path, {"value": beacon, "time": now()})
    if (told := storage.read_json(path))["value"] != beacon:
        raise UserError(f"this question was decided by {told['value']} on {told['time']}; no other number is taken")
    return question


def _check_there(releases: Sequence[Release], *, missing_ok: bool) -> None:
    """Name the files of a lot that are missing; they count against a claim, so nobody should lose many unawares."""
    missing: list[str] = []
    count = 0
    for folder, keys in (one for release in releases for one in release.expected_files()):
        there = set(storage.list_files(folder))
        count += len(keys)
        missing += [path for key in keys if (path := f"{folder}/{key}") not in there]
    if not missing:
        return
    told = f"{len(missing):,} of {count:,} files of the lot are missing, such as {missing[0]}"
    if not missing_ok and len(missing) > _MAY_MISS * count:
        raise UserError(f"{told}; put them back, or give --missing-ok: they count against the claim")
    say("claim", f"{told}; they count against the claim")


def _asked(
    lot: Lot, releases: Sequence[Release], question: Question, value: str, asking: Asking, each: TaskMap
) -> Claim:
    """Ask wave by wave, or about all at once, and judge."""
    drawn, order = drawn_of(releases, captions=question.plan["captions"]), order_of(releases)
    waves, counted = waves_of([len(release.units) for release in releases]), question.plan["counted"]
    answers = np.full((len(order), len(ANSWERS)), np.nan)
    stops = np.unique(waves) if counted == UNTIL_DECIDED else [int(waves[-1])]
    views = asking.settings["views"]
    say("claim", f"asking about {'' if len(stops) == 1 else 'up to '}{len(order):,} images, {views} views of each")
    begun = 0
    for wave in stops:
        count = int(np.searchsorted(waves, wave, "right"))
        folder = f"{folder_of(lot, question)}/answers/{wave:04d}"
        new = order[begun:count]
        answers[new] = ask(releases, new, folder, asking, each)[new]
        begun, rows = count, order[:count]
        result = judge_answers(drawn, rows, waves[:count], answers[rows], lot.chain(), question, asking.nonce)
        if counted == UNTIL_DECIDED:
            say("claim", f"{count:,} of {len(order):,} images asked about: p = {result.any_time_p_value:.2g}")
        if result.verdict == USED:
            break
    rows = order[:begun]
    grade = grade_of([release.header for release in releases], question)
    number = write_statement(lot, releases, question, value, rows, answers[rows], result)
    drawings = [(release.header, release.drawing["beacon"]) for release in releases]
    found = Claim(result, grade, question, value, drawings, answers[rows, 0], drawn.held_back[rows], number, lot)
    storage.write_atomic(f"{found.statement}/{PAGE}", render_claim(found).encode())
    return found


def ask(
    releases: Sequence[Release], units: npt.NDArray[np.int64], folder: str, asking: Asking, each: TaskMap
) -> Answers:
    """Ask about some units: (N, 1 + K); NaN: not asked about, or missing.

    Args:
        releases: with N units together.
        units: (M,) numbers over all releases.
        folder: of the answers, part by part; what is there is not asked again.
        asking: how.
        each: runs the parts.
    """
    total = sum(len(release.units) for release in releases)
    answers = np.full((total, len(ANSWERS)), np.nan)
    wanted = np.isin(np.arange(total), units)
    tasks: list[tuple[Any, ...]] = []
    offsets, start = [], 0
    for release in releases:
        count = len(release.units)
        seen = np.zeros(count, dtype=bool)
        for name in release.parts():
            images = release.images(name, _ASKED)
            numbers = release.numbers(images)
            chosen = np.flatnonzero(numbers >= 0)
            chosen = chosen[~seen[numbers[chosen]] & wanted[start + numbers[chosen]]]
            _, first = np.unique(numbers[chosen], return_index=True)  # of several copies
            chosen = chosen[np.sort(first)]
            seen[numbers[chosen]] = True
            if len(chosen):
                part = images.take(pa.array(chosen)).append_column("unit", pa.array(numbers[chosen]))
                tasks.append((asking, release, name, part, f"{folder}/{release.number:03d}-{name}.parquet"))
                offsets.append(start)
        start += count
    if isinstance(asking.model, str):
        paths = each(_ask_part, tasks, title="asking the encoder")
    else:  # of this process alone, loaded once and only if something is left to ask
        one = partial(_ask_part, ready=cache(lambda: _make_ready(asking)))
        paths = [one(*task) for task in tasks]
    for offset, path in zip(offsets, paths, strict=True):
        table = storage.read_table(path)
        answers[offset + np.asarray(table["unit"])] = answers_in(table)
    return answers


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


def _ask_part(
    asking: Asking, release: Release, name: str, part: pa.Table, path: str, ready: Callable[[], Scorer] | None = None
) -> str:
    """Ask about the images of a part, and write their scores (NaN: missing or altered), unless that is done.

    Images that were missing are asked about once they are there. ``ready`` loads the encoder; None: it is loaded here,
    by its name or address.
    """
    scores = {unit: np.full(len(ANSWERS), np.nan) for unit in part["unit"].to_pylist()}
    if storage.exists(path):
        before = storage.read_table(path)
        scores |= dict(zip(before["unit"].to_pylist(), answers_in(before), strict=True))
    rows = {row["name"]: row for row in part.to_pylist() if np.isnan(scores[row["unit"]][0])}
    held = {row["name"]: bool(release.draw.held_back[row["unit"]]) for row in rows.values()}
    if storage.exists(path) and not any(True for _ in release.pictures(name, held)):
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
        if some:
            fits = ask.caption_fit(images[some], [batch[at][0]["captions"] for at in some], [names[at] for at in some])
            for at, fit in zip(some, fits, strict=True):
                scores[batch[at][0]["unit"]][1:] = fit
        count = len(batch)
        batch.clear()
        return count

    with bars("images", draw=False) as asked:
        task = asked.add_task("asking the encoder", total=len(rows))
        asked.begin(task)
        for key, data in release.pictures(name, held):
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
    columns = np.stack(list(scores.values())).T
    storage.write_table(path, pa.table({"unit": list(scores), **dict(zip(ANSWERS, columns, strict=True))}))
    return path


def _make_ready(asking: Asking) -> Scorer:
    """Load an encoder.

    Raises:
        ConfigError, ShapeError: as `mi_core.audit`.
    """
    way = way_of(asking.model, asking.settings)
    target = tried_out(model_of(asking.model, way.how), way.decoder.image_size)
    return Scorer(target.encoder, way, asking.settings["views"], asking.nonce, device_of(asking.model))


def _kept_ready(asking: Asking) -> Scorer:
    """An encoder with a name or an address, loaded once per process."""
    key = json.dumps([asking.model, asking.settings, asking.nonce], sort_keys=True, default=str)
    if key not in _KEPT:
        _KEPT.clear()
        _KEPT[key] = _make_ready(asking)
    return _KEPT[key]


_KEPT: dict[str, Scorer] = {}
