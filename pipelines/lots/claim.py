"""Claim that an encoder used what a lot published: ask about published and held-back images, and test the draw.

The question is registered in the lot's chain before the first query, and leaves its owner nothing to choose (see
`mi_core.lots.chain`). Answers are kept part by part, so that a claim that was ended goes on where it stopped, and
nothing is asked twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mi_core.auditing.models import evaluating, is_address
from mi_core.lots.chain import Question, grade_of, number_of
from mi_core.lots.commitment import UNTIL_DECIDED
from mi_core.lots.draw import beacon_fault
from mi_core.lots.drawn import counted_against, waves_of
from mi_core.lots.verdict import USED, ClaimResult, judge_claim
from mi_core.provenance import now
from pipelines.console import say
from pipelines.errors import UserError
from pipelines.files import storage
from pipelines.lots.asking import Asking, ask_part, expected_files, make_ready
from pipelines.lots.question import describe, folder_of, register, same_question, settled_nonce, whole
from pipelines.lots.statement import CAPTION_SCORES, SCORE, Asked, write_statement
from pipelines.lots.vault import VAULT, Lot, Release, drawn_of, order_of
from pipelines.run.parts import TaskMap, on_parts

_MAY_MISS = 0.01  # of the files of a lot, before a claim asks for them
_ASKED = ["name", "sha256", "captions"]  # columns that asking needs
_VALUE = "value.json"  # in the folder of a question: the number that decided its nonce


@dataclass(frozen=True)
class Claim:
    """A claim and where it stands.

    Args:
        lot: that was asked about.
        question: that was registered before the first query.
        value: of the later number that decided the nonce; empty: none did.
        grade: of `mi_core.lots.chain.GRADES`.
        result: what it says.
        lost: images that are missing or altered; they count against the claim.
        answers: number of the answers, 64 hex digits: the last link of the chain.
    """

    lot: Lot
    question: Question
    value: str
    grade: str
    result: ClaimResult
    lost: int
    answers: str

    @property
    def statement(self) -> str:
        """The folder of the two files to hand over, outside of the vault."""
        return f"{self.lot.claims}/{self.question.commitment[:12]}"

    @property
    def alone(self) -> bool:
        """Tell whether the owner drew a release without a beacon."""
        return not all(release.drawing["beacon"] for release in self.lot.releases() if release.is_drawn)


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
    place: str,
    model: Any,
    *,
    beacon: str = "",
    missing_ok: bool = False,
    address: str | None = None,
    **settings: Any,
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
        described = describe(model, own, releases)
        question = _decided(lot, described, beacon)
        say("claim", f"question {number_of(lot.chain(), question)}: {question.commitment}")
        asking = Asking(model, own, settled_nonce(lot, question, beacon))
        return _asked(lot, releases, question, beacon, asking, each)


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
    for release in releases:
        for folder, keys in expected_files(release):
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
    lot: Lot,
    releases: Sequence[Release],
    question: Question,
    value: str,
    asking: Asking,
    each: TaskMap,
) -> Claim:
    """Ask wave by wave, or about all at once, and judge."""
    drawn, order = drawn_of(releases, captions=question.plan["captions"]), order_of(releases)
    waves, counted = waves_of([len(release.units) for release in releases]), question.plan["counted"]
    scores, captions = np.full(len(order), np.nan), np.full((len(order), 2), np.nan)
    stops = np.unique(waves) if counted == UNTIL_DECIDED else [int(waves[-1])]
    views = asking.settings["views"]
    say("claim", f"asking about {'' if len(stops) == 1 else 'up to '}{len(order):,} images, {views} views of each")
    begun = 0
    for wave in stops:
        count = int(np.searchsorted(waves, wave, "right"))
        folder = f"{folder_of(lot, question)}/answers/{wave:04d}"
        for own, found in zip((scores, captions), ask(releases, order[begun:count], folder, asking, each), strict=True):
            own[order[begun:count]] = found[order[begun:count]]
        begun, rows = count, order[:count]
        judged = counted_against(scores[rows], captions[rows], drawn, rows)
        result = judge_claim(
            drawn,
            rows,
            waves[:count],
            *judged,
            counted=counted,
            questions_asked=number_of(lot.chain(), question),
            seed=asking.nonce,
        )
        if counted == UNTIL_DECIDED:
            say("claim", f"{count:,} of {len(order):,} images asked about: p = {result.any_time_p_value:.2g}")
        if result.verdict == USED:
            break
    rows = order[:begun]
    lost = int(np.isnan(scores[rows]).sum())
    grade = grade_of([release.header for release in releases], question)
    asked = Asked(rows, scores[rows], captions[rows])
    answers = write_statement(lot, releases, question, value, asked, result)
    return Claim(lot, question, value, grade, result, lost, answers)


def ask(
    releases: Sequence[Release], units: npt.NDArray[np.int64], folder: str, asking: Asking, each: TaskMap
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Ask about some units: scores of images (N,) and of both captions (N, 2); NaN: not asked about, or missing.

    Args:
        releases: with N units together.
        units: (M,) numbers over all releases.
        folder: of the answers, part by part; what is there is not asked again.
        asking: how.
        each: runs the parts.
    """
    total = sum(len(release.units) for release in releases)
    scores, captions = np.full(total, np.nan), np.full((total, 2), np.nan)
    wanted = np.isin(np.arange(total), units)
    tasks: list[tuple[Any, ...]] = []
    offsets, start = [], 0
    for release in releases:
        count = len(release.units)
        seen = np.zeros(count, dtype=bool)
        for name in release.parts():
            images = release.images(name, _ASKED)
            place = pc.index_in(images["sha256"], value_set=release.digests)
            numbers = np.asarray(pc.fill_null(place, -1))
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
        paths = each(ask_part, tasks, title="asking the encoder")
    else:  # of this process alone, loaded once and only if something is left to ask
        one = partial(ask_part, ready=cache(lambda: make_ready(asking)))
        paths = [one(*task) for task in tasks]
    for offset, path in zip(offsets, paths, strict=True):
        table = storage.read_table(path)
        rows = offset + np.asarray(table["unit"])
        scores[rows] = np.asarray(table[SCORE])
        captions[rows] = np.stack([np.asarray(table[name]) for name in CAPTION_SCORES], axis=1)
    return scores, captions
