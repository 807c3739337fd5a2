"""Claim that an encoder used what a lot published: ask about published and held-back images, and test the draw.

What is asked is written down before the first query, so that nobody chooses it by its answers. Answers are kept part by
part, so that a claim that was ended goes on where it stopped, and nothing is asked twice.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import torch

from mi_core.auditing.models import evaluating, is_address, model_of
from mi_core.auditing.questions import Question, question_of
from mi_core.encoders.checkpoint import Encoder
from mi_core.images import decode
from mi_core.lots.draw import CAPTIONS
from mi_core.lots.drawn import counted_against, waves_of
from mi_core.lots.verdict import ALL, UNTIL_DECIDED, USED, ClaimResult, Elsewhere, judge_claim, without
from mi_core.nonce import GIVEN, SYSTEM, new_nonce
from mi_core.provenance import now
from pipelines.config.sections.sources import SourceConfig
from pipelines.console import say
from pipelines.data.columns import DESCRIPTOR, PHASH
from pipelines.errors import UserError
from pipelines.files import storage
from pipelines.lots.asking import Asking, ask_part, expected_files, made_ready, pictures_of
from pipelines.lots.elsewhere import seen_in
from pipelines.lots.statement import CAPTION_SCORES, SCORES, Asked, write_statement
from pipelines.lots.vault import VAULT, Lot, Release, drawn_of, order_of
from pipelines.run.parts import TaskMap, on_parts
from pipelines.run.registration import code_digest

CLAIMS = "claims"
ATTACK = "mean-cosine"
_MAY_MISS = 0.01  # of the files of a lot, before a claim asks for them
_PROBED = 8  # images by whose answers a function is known
_ASKED = ["name", "sha256", "versions", "captions"]  # columns that asking needs


@dataclass(frozen=True)
class Claim:
    """A claim and where it stands.

    Args:
        path: its folder.
        registered: what was written down before the first query: the encoder, how it is asked, nonce and time.
        result: what it says.
        drawings: of each release, how it was drawn: ``by``, ``beacon`` and ``drawn``.
        lost: images that are missing or altered; they count against the claim.
        elsewhere: what would be without the images that were seen elsewhere; None: nobody asked.
    """

    path: str
    registered: Mapping[str, Any]
    result: ClaimResult
    drawings: tuple[Mapping[str, Any], ...]
    lost: int
    elsewhere: Elsewhere | None = None

    @property
    def statement(self) -> str:
        """The folder of the two files to hand over, outside of the vault."""
        root, _, name = self.path.rpartition(f"/{VAULT}/{CLAIMS}/")
        return f"{Lot(root).claims}/{name}"


def claim(
    place: str,
    model: Any,
    *,
    views: int = 10,
    until_decided: bool = False,
    nonce: str | None = None,
    missing_ok: bool = False,
    seen_elsewhere: SourceConfig | None = None,
    address: str | None = None,
    **settings: Any,
) -> Claim:
    """Ask an encoder about a lot, and test whether its answers depend on the draw.

    Args:
        place: folder of the lot.
        model: the encoder, as `mi_core.audit` takes it. A network or function is asked in this process; a name or an
            address also by Ray tasks.
        views: of each image, at least 2.
        until_decided: ask in waves and stop when it is decided, by the p-value that allows that; else ask about all.
        nonce: a number of the other party; None: drawn when the claim is registered.
        missing_ok: ask although images are missing; else a few may be. They count against the claim.
        seen_elsewhere: images that are known to stand elsewhere, too. What the result would be without them and their
            near-copies is told; the verdict does not follow it, for they were named after the draw.
        address: a Ray cluster; None: a local Ray where there are many images.
        settings: ``size``, ``decoding``, ``weights``, ``weights_key``, ``objective``, ``augmentation``, ``output``,
            ``mean``, ``std``, ``endpoint``, ``key``, ``trust_code`` and ``seed`` as `mi_core.audit` has them.

    Returns:
        The claim; the same call again goes on with it, or gives the same.

    Raises:
        UserError: there is no lot, or it is not drawn and written to its end.
        ConfigError, ShapeError, NumericError: as `mi_core.audit`.
    """
    lot = Lot.at(place)
    releases = [release for release in lot.releases() if release.is_written]
    if not releases:
        raise UserError(f"{place} has no release that is drawn and written; run encoder-audit lot")
    _check_there(releases, missing_ok=missing_ok)
    with on_parts(f"{lot.path}/{VAULT}", address) as each, evaluating(model):
        asking = Asking(model, _whole(settings), views, "")
        if is_address(model):
            say(
                "claim",
                "the operator of the API gets to see held-back images; --until-decided sends fewer",
            )
        described = _described(asking, releases)
        registered, folder = _register(lot, releases, described, asking, until_decided, nonce)
        asking = Asking(model, asking.settings, views, registered["nonce"]["value"])
        seen = set() if seen_elsewhere is None else _seen(releases, seen_elsewhere)
        return _asked(releases, folder, registered, asking, each, None if seen_elsewhere is None else seen)


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


def _seen(releases: Sequence[Release], source: SourceConfig) -> set[str]:
    """The pixels of the images of a lot that stand in a source as well."""
    columns = ["sha256", PHASH, DESCRIPTOR]
    tables = [release.images(name, columns) for release in releases for name in release.parts()]
    whole = pa.concat_tables(tables)
    return seen_in(whole.filter(pc.not_equal(whole["sha256"], "")), source)


def _whole(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of `question_of`, with those that are not given."""
    usual: dict[str, Any] = dict.fromkeys(
        ("size", "decoding", "weights", "weights_key", "objective", "augmentation", "output", "mean", "std")
    ) | {"endpoint": None, "key": None, "trust_code": False, "seed": 0}
    unknown = settings.keys() - usual.keys()
    if unknown:
        raise UserError(f"{min(unknown)} is no setting of a claim, allowed: {', '.join(usual)}")
    return usual | dict(settings)


@dataclass(frozen=True)
class _Described:
    """How an encoder is asked, its fingerprint, what it is in words, and whether it is asked about captions."""

    question: Question
    fingerprint: str
    load: str
    captions: bool


def _described(asking: Asking, releases: Sequence[Release]) -> _Described:
    """Look at the encoder that the user gave."""
    question = question_of(asking.model, **asking.settings)
    target = model_of(asking.model, question.how)
    if question.output not in target.encoder.outputs:
        raise UserError(f"output = {question.output!r}: the encoder has {', '.join(target.encoder.outputs)}")
    designs = {name for release in releases for name in release.header.design.designs}
    reads = CAPTIONS in designs and target.encoder.text is not None
    if CAPTIONS in designs and not reads:
        if designs == {CAPTIONS}:
            raise UserError("only captions were drawn, and the encoder reads no texts: nothing can be shown")
        say("claim", "the encoder reads no texts, so that the coins of captions are left out")
    mark = target.part.fingerprint or ""
    if callable(asking.model) and not isinstance(asking.model, torch.nn.Module):
        mark = hashlib.sha256(_answers(target.encoder, question, releases[0]).tobytes()).hexdigest()
    return _Described(question, mark, target.part.load or "", reads)


@torch.inference_mode()
def _answers(encoder: Encoder, question: Question, release: Release) -> npt.NDArray[np.float32]:
    """Answers of a function, of which only its name is known, to a few images of the lot, to four digits."""
    name = release.parts()[0]
    keys = [row["name"] for row in release.images(name, _ASKED).to_pylist() if row["sha256"]]
    held = dict.fromkeys(keys, False)
    data = [one for _, _, one in islice(pictures_of(release, name, held), _PROBED)]
    if not data:
        raise UserError(f"{release.lot.published} holds none of the published images; put them back")
    pixels = torch.from_numpy(np.stack([decode(one, question.decoder) for one in data]))
    found = encoder(pixels.float() / 255)[question.output].float().numpy()
    return np.asarray(np.round(found / (np.abs(found).max() or 1), 4) + 0.0, dtype=np.float32)


def _register(
    lot: Lot,
    releases: Sequence[Release],
    described: _Described,
    asking: Asking,
    until_decided: bool,
    nonce: str | None,
) -> tuple[dict[str, Any], str]:
    """Write down what is asked, unless it stands there already; and the folder of the claim."""
    counted, question = UNTIL_DECIDED if until_decided else ALL, described.question
    asked = {
        "encoder": described.load,
        "fingerprint": described.fingerprint,
        "attack": ATTACK,
        "output": question.output,
        "objective": question.objective,
        "augmentation": repr(question.recipe),
        "decoder": question.decoder.settings(),
        "views": asking.views,
        "seed": asking.settings["seed"],
        "counted": counted,
        "captions": described.captions,
    } | ({} if until_decided else {"releases": [release.header.commitment for release in releases]})
    name = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:12]
    root = f"{lot.path}/{VAULT}/{CLAIMS}"
    path = f"{root}/{name}/registered.json"
    if not storage.exists(path):
        before = [one for one in storage.list_files(root) if one.endswith("/registered.json")]
        origin = {"from": SYSTEM, "value": new_nonce()} if nonce is None else {"from": GIVEN, "value": nonce}
        told = {"time": now(), "number": len(before) + 1, "nonce": origin, "tool": code_digest(), **asked}
        storage.write_json(path, told)
    registered: dict[str, Any] = storage.read_json(path)
    if nonce is not None and registered["nonce"]["value"] != nonce:
        raise UserError(f"this claim was registered with another nonce on {registered['time']}; leave --nonce out")
    return registered, f"{root}/{name}"


def _asked(
    releases: Sequence[Release],
    folder: str,
    registered: Mapping[str, Any],
    asking: Asking,
    each: TaskMap,
    seen: set[str] | None,
) -> Claim:
    """Ask wave by wave, or about all at once, and judge."""
    drawn, order = drawn_of(releases, captions=registered["captions"]), order_of(releases)
    waves = waves_of([len(release.units) for release in releases])
    asked = Asked(order, np.full((len(order), 2), np.nan), np.full((len(order), 2), np.nan))
    stops = np.unique(waves) if registered["counted"] == UNTIL_DECIDED else [int(waves[-1])]
    seed = f"{releases[-1].header.commitment} {folder.rpartition('/')[2]}"
    each_asks = asking.views * (2 if drawn.version is not None else 1)
    say(
        "claim",
        f"asking about {'' if len(stops) == 1 else 'up to '}{len(order):,} images, {each_asks} views of each",
    )
    begun = 0
    for wave in stops:
        count = int(np.searchsorted(waves, wave, "right"))
        _ask(releases, asked, slice(begun, count), f"{folder}/answers/{wave:04d}", asking, each)
        begun = count
        scores, captions = counted_against(asked.scores[:count], asked.captions[:count], drawn, order[:count])
        result = judge_claim(
            drawn,
            order[:count],
            waves[:count],
            scores,
            captions,
            counted=registered["counted"],
            questions_asked=registered["number"],
            seed=seed,
        )
        if registered["counted"] == UNTIL_DECIDED:
            say("claim", f"{count:,} of {len(order):,} images asked about: p = {result.any_time_p_value:.2g}")
        if result.verdict == USED:
            break
    whole = Asked(order[:begun], asked.scores[:begun], asked.captions[:begun])
    drawings = tuple(release.drawing for release in releases)
    lost = int(np.isnan(whole.scores).any(axis=1).sum())
    elsewhere = None
    if seen is not None:
        shas = np.concatenate([np.asarray(release.digests.to_pylist()) for release in releases])
        is_seen = np.isin(shas[whole.order], sorted(seen))
        elsewhere = without(drawn, whole.order, scores, captions, is_seen, seed=seed)
    found = Claim(folder, registered, result, drawings, lost, elsewhere)
    write_statement(found.statement, releases, registered, whole, result, seed)
    return found


def _ask(releases: Sequence[Release], asked: Asked, rows: slice, folder: str, asking: Asking, each: TaskMap) -> None:
    """Ask about some units, and enter their scores."""
    place_of = np.empty(len(asked.order), dtype=np.int64)
    place_of[asked.order] = np.arange(len(asked.order))
    wanted = np.zeros(len(asked.order), dtype=bool)
    wanted[asked.order[rows]] = True
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
        is_left = any(not storage.exists(task[-1]) for task in tasks)
        ask = partial(ask_part, loaded=made_ready(asking) if is_left else None)
        paths = [ask(*task) for task in tasks]
    for offset, path in zip(offsets, paths, strict=True):
        table = storage.read_table(path)
        places = place_of[offset + np.asarray(table["unit"])]
        for values, names in ((asked.scores, SCORES), (asked.captions, CAPTION_SCORES)):
            values[places] = np.stack([np.asarray(table[name]) for name in names], axis=1)
