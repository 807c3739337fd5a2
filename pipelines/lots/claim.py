"""Claim that an encoder used what a lot published: ask about published and held-back images, and test the draw.

What is asked is written down before the first query, so that nobody chooses it by its answers. Answers are kept part by
part, so that a claim that was ended goes on where it stopped, and nothing is asked twice.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import torch

from mi_core.auditing.models import device_of, evaluating, model_of, tried_out
from mi_core.auditing.questions import Question, ViewSimilarity, question_of
from mi_core.encoders.checkpoint import Encoder
from mi_core.image_files import ImageError
from mi_core.images import decode_and_hash
from mi_core.lots.verdict import ALL, UNTIL_DECIDED, USED, ClaimResult, judge_claim, waves_of
from mi_core.nonce import GIVEN, SYSTEM, new_nonce
from mi_core.provenance import now
from pipelines.console import say
from pipelines.data.read.samples import Item
from pipelines.data.read.sources import Source
from pipelines.errors import UserError
from pipelines.files import storage
from pipelines.lots.parts import Mapped, on_parts
from pipelines.lots.vault import VAULT, Lot, Release, drawn_of, order_of
from pipelines.run.registration import code_digest

CLAIMS = "claims"
ATTACK = "mean-cosine"
_BATCH = 64  # images that are decoded and asked about together
_Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Claim:
    """A claim and where it stands.

    Args:
        path: its folder.
        registered: what was written down before the first query: the encoder, how it is asked, nonce and time.
        result: what it says.
        drawings: of each release, how it was drawn: ``by``, ``beacon`` and ``drawn``.
        lost: images that are missing or altered; they count against the claim.
    """

    path: str
    registered: Mapping[str, Any]
    result: ClaimResult
    drawings: tuple[Mapping[str, Any], ...]
    lost: int


@dataclass(frozen=True)
class _Asking:
    """How an encoder is asked, as a task gets it.

    Args:
        model: a name or an address; anything else is asked in the process that has it.
        settings: of `question_of`.
        views: of each image.
        nonce: of the views.
    """

    model: Any
    settings: Mapping[str, Any]
    views: int
    nonce: str


def claim(
    place: str,
    model: Any,
    *,
    views: int = 10,
    until_decided: bool = False,
    nonce: str | None = None,
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
    with on_parts(f"{lot.path}/{VAULT}", address) as each, evaluating(model):
        asking = _Asking(model, _whole(settings), views, "")
        prepared, fingerprint, load = _described(asking)
        registered, folder = _register(lot, releases, prepared, asking, fingerprint, load, until_decided, nonce)
        asking = _Asking(model, asking.settings, views, registered["nonce"]["value"])
        return _asked(lot, releases, folder, registered, asking, each)


def _whole(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of `question_of`, with those that are not given."""
    usual: dict[str, Any] = dict.fromkeys(
        ("size", "decoding", "weights", "weights_key", "objective", "augmentation", "output", "mean", "std")
    ) | {"endpoint": None, "key": None, "trust_code": False, "seed": 0}
    unknown = settings.keys() - usual.keys()
    if unknown:
        raise UserError(f"{min(unknown)} is no setting of a claim, allowed: {', '.join(usual)}")
    return usual | dict(settings)


def _described(asking: _Asking) -> tuple[Question, str, str]:
    """How the encoder is asked, its fingerprint, and what it is in words."""
    question = question_of(asking.model, **asking.settings)
    target = model_of(asking.model, question.how)
    if question.output not in target.encoder.outputs:
        raise UserError(f"output = {question.output!r}: the encoder has {', '.join(target.encoder.outputs)}")
    mark = target.part.fingerprint or ""
    if callable(asking.model) and not isinstance(asking.model, torch.nn.Module):
        mark = hashlib.sha256(_answers(target.encoder, question).tobytes()).hexdigest()
    return question, mark, target.part.load or ""


@torch.inference_mode()
def _answers(encoder: Encoder, question: Question) -> npt.NDArray[np.float32]:
    """What a function, of which nothing but its name is known, answers to some noise, to three digits."""
    side = question.decoder.image_size
    noise = torch.from_numpy(np.random.default_rng(0).random((4, question.decoder.channels, side, side), np.float32))
    found = encoder(noise)[question.output].float().numpy()
    return np.asarray(np.round(found / (np.abs(found).max() or 1), 3) + 0.0, dtype=np.float32)


def _register(
    lot: Lot,
    releases: Sequence[Release],
    question: Question,
    asking: _Asking,
    fingerprint: str,
    load: str,
    until_decided: bool,
    nonce: str | None,
) -> tuple[dict[str, Any], str]:
    """Write down what is asked, unless it stands there already; and the folder of the claim."""
    counted = UNTIL_DECIDED if until_decided else ALL
    asked = {
        "encoder": load,
        "fingerprint": fingerprint,
        "attack": ATTACK,
        "output": question.output,
        "objective": question.objective,
        "augmentation": repr(question.recipe),
        "decoder": question.decoder.settings(),
        "views": asking.views,
        "seed": asking.settings["seed"],
        "counted": counted,
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
    lot: Lot,
    releases: Sequence[Release],
    folder: str,
    registered: Mapping[str, Any],
    asking: _Asking,
    each: Mapped,
) -> Claim:
    """Ask wave by wave, or about all at once, and judge."""
    drawn, order = drawn_of(releases), order_of(releases)
    waves = waves_of([len(release.units) for release in releases])
    scores = np.full(len(order), np.nan)
    is_lost = np.zeros(len(order), dtype=bool)
    stops = np.unique(waves) if registered["counted"] == UNTIL_DECIDED else [int(waves[-1])]
    begun = 0
    for wave in stops:
        count = int(np.searchsorted(waves, wave, "right"))
        _ask(releases, order[begun:count], f"{folder}/answers/{wave:04d}", asking, each, scores, is_lost)
        begun = count
        result = judge_claim(
            drawn,
            order[:count],
            waves[:count],
            _against(scores, is_lost, drawn.held_back)[order[:count], None],
            counted=registered["counted"],
            questions_asked=registered["number"],
            seed=f"{releases[-1].header.commitment} {folder.rpartition('/')[2]}",
        )
        if registered["counted"] == UNTIL_DECIDED:
            say("claim", f"{count:,} of {len(order):,} images asked about: p = {result.any_time_p_value:.2g}")
        if result.verdict == USED:
            break
    drawings = tuple(release.drawing for release in releases)
    found = Claim(folder, registered, result, drawings, int(is_lost.sum()))
    told = {"registered": dict(registered), "drawings": list(drawings), "lost": found.lost}
    storage.write_json(f"{folder}/claim.json", told | result.as_json())
    return found


def _against(scores: npt.NDArray[np.float64], is_lost: npt.NDArray[np.bool_], held_back: npt.NDArray[np.bool_]) -> Any:
    """Scores where lost images count against the claim: as the lowest if published, as the highest if held back."""
    known = scores[~np.isnan(scores)]
    low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 0.0)
    return np.where(is_lost, np.where(held_back, high, low), scores)


def _ask(
    releases: Sequence[Release],
    units: _Int64,
    folder: str,
    asking: _Asking,
    each: Mapped,
    scores: npt.NDArray[np.float64],
    is_lost: npt.NDArray[np.bool_],
) -> None:
    """Ask about some units, and enter their scores."""
    wanted = np.zeros(len(scores), dtype=bool)
    wanted[units] = True
    work, start = [], 0
    for release in releases:
        table = release.units
        count = len(table)
        numbers = pa.array(np.arange(count))
        seen = np.zeros(count, dtype=bool)
        for name, images in release.images():
            place = pc.index_in(images["sha256"], value_set=table["sha256"].combine_chunks())
            rows = np.asarray(pc.fill_null(place, -1))
            first = rows >= 0
            first[first] = ~seen[rows[first]] & wanted[start + rows[first]]
            _, once = np.unique(rows[first], return_index=True)
            chosen = np.flatnonzero(first)[np.sort(once)]
            seen[rows[chosen]] = True
            if len(chosen):
                part = pa.table(
                    {
                        "name": images["name"].take(pa.array(chosen)),
                        "sha256": images["sha256"].take(pa.array(chosen)),
                        "unit": numbers.take(pa.array(rows[chosen])),
                        "held_back": release.draw.held_back[rows[chosen]],
                    }
                )
                work.append((release, name, part, start, f"{folder}/{release.number:03d}-{name}.parquet"))
        start += count
    here = not isinstance(asking.model, str)
    tasks = [(asking, release, name, part, path) for release, name, part, _, path in work]
    paths = [_ask_part(*task) for task in tasks] if here else each(_ask_part, tasks, "asking the encoder")
    for (_, _, _, offset, _), path in zip(work, paths, strict=True):
        answers = storage.read_table(path)
        rows = offset + np.asarray(answers["unit"])
        scores[rows] = np.asarray(answers["score"])
        is_lost[rows] = np.isnan(scores[rows])


def _ask_part(asking: _Asking, release: Release, name: str, part: pa.Table, path: str) -> str:
    """Ask about the images of a part, and write their scores (NaN: missing or altered), unless that is done."""
    if storage.exists(path):
        return path
    ask = _ready(asking) if isinstance(asking.model, str) else _made_ready(asking)
    decoder = ask.decoder
    rows = part.to_pylist()
    scores = {row["unit"]: float("nan") for row in rows}
    batch: list[tuple[int, np.ndarray]] = []

    def send() -> None:
        if batch:
            images = torch.from_numpy(np.stack([pixels for _, pixels in batch]))
            found = ask.similarity(images, [str(unit) for unit, _ in batch])
            scores.update(zip([unit for unit, _ in batch], map(float, found), strict=True))
            batch.clear()

    expected = {row["name"]: (row["unit"], row["sha256"]) for row in rows}
    for key, data in _pictures(release, name, rows):
        unit, sha = expected[key]
        try:
            decoded = decode_and_hash(data, decoder)
        except ImageError:
            continue
        if decoded.sha256 == sha:
            batch.append((unit, decoded.pixels))
        if len(batch) == _BATCH:
            send()
    send()
    storage.write_table(path, pa.table({"unit": list(scores), "score": pa.array(list(scores.values()), pa.float64())}))
    return path


def _pictures(release: Release, name: str, rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, bytes]]:
    """The names and bytes of the images of a part that are there."""
    source = release.source
    for is_held, folder in ((True, release.held_back), (False, release.lot.published)):
        wanted = {row["name"] for row in rows if row["held_back"] == is_held}
        if source.kind == "imagefolder":
            for one in sorted(wanted):
                data = storage.file_or_none(f"{folder}/{one}")
                if data is not None:
                    yield one, data
        elif wanted and storage.exists(path := f"{folder}/{name}.tar"):
            for sample in Source(source).read(Item(name, path=path), wanted):
                yield sample.key, sample.image


@dataclass(frozen=True)
class _Ready:
    """An encoder that is loaded, and how its images are decoded."""

    similarity: ViewSimilarity
    decoder: Any


def _made_ready(asking: _Asking) -> _Ready:
    question = question_of(asking.model, **asking.settings)
    target = tried_out(model_of(asking.model, question.how), question.decoder.image_size)
    device = device_of(asking.model)
    return _Ready(ViewSimilarity(target.encoder, question, asking.views, asking.nonce, device), question.decoder)


def _ready(asking: _Asking) -> _Ready:
    """The same, once per process."""
    key = json.dumps([asking.model, asking.settings, asking.views, asking.nonce], sort_keys=True, default=str)
    return _kept(key, _Box(asking))


class _Box:
    """An argument that does not count for `lru_cache`."""

    def __init__(self, content: _Asking) -> None:
        self.content = content

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Box)

    def __hash__(self) -> int:
        return 0


@lru_cache(maxsize=1)
def _kept(key: str, box: _Box) -> _Ready:
    return _made_ready(box.content)
