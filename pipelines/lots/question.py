"""The question of a claim: how an encoder is asked about a lot, and its registration in the lot's chain.

Encoder and lot settle the whole plan. What an owner chooses beside it is listed, and lowers the grade of the claim.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt
import torch

from mi_core.adoption.builders import LOADERS
from mi_core.auditing.models import is_address, model_of
from mi_core.auditing.questions import PRECISION, question_of
from mi_core.auditing.questions import Question as Way
from mi_core.encoders.checkpoint import Encoder
from mi_core.encoders.remote.adapters import ADAPTERS
from mi_core.encoders.remote.parameters import EndpointParameters
from mi_core.images import decode
from mi_core.lots.commitment import ALL, ENCODER, Header, Link, Question, entry_digest, headers_before, nonce_of
from mi_core.lots.draw import CAPTIONS
from mi_core.provenance import now
from pipelines.console import say
from pipelines.errors import UserError
from pipelines.files import storage
from pipelines.lots.vault import REGISTERED, Lot, Release
from pipelines.run.registration import code_digest

ATTACK, VIEWS = "mean-cosine", 10
SETTINGS = ("size", "decoding", "weights", "weights_key", "objective", "augmentation", "output", "mean", "std")
_PROBED = 8  # images by whose answers a function is known
_OF_THE_API = ("query", "outputs", "size")  # parts of an endpoint's identity that an owner could choose


def whole(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of `question_of` and ``views``, with those that are not given.

    Raises:
        UserError: there is no such setting.
    """
    usual: dict[str, Any] = dict.fromkeys(SETTINGS)
    usual |= {"endpoint": None, "key": None, "trust_code": False, "views": VIEWS}
    unknown = settings.keys() - usual.keys()
    if unknown:
        raise UserError(f"{min(unknown)} is no setting of a claim, allowed: {', '.join(usual)}")
    return usual | dict(settings)


def way_of(model: Any, settings: Mapping[str, Any]) -> Way:
    """How an encoder is asked, from the settings of `whole`."""
    return question_of(model, **{name: part for name, part in settings.items() if name != "views"}, seed=0)


def plan_of(model: Any, settings: Mapping[str, Any], *, captions: bool, counted: str) -> dict[str, Any]:
    """All that settles what is asked, but the encoder and the nonce: an entry of JSON.

    Args:
        model: a name, an address, a network or a function.
        settings: of `whole`.
        captions: whether it is asked about captions.
        counted: of the lot.
    """
    way = way_of(model, settings)
    plan: dict[str, Any] = {
        "attack": ATTACK,
        "views": settings["views"],
        "counted": counted,
        "captions": bool(captions),
        "precision": PRECISION,
        "output": way.output,
        "objective": way.objective,
        "augmentation": repr(way.recipe),
        "decoder": way.decoder.settings(),
    }
    plan |= {name: settings[name] for name in ("mean", "std", "weights_key") if settings[name] is not None}
    if is_address(model):
        usual, given = (EndpointParameters(url=model, **some).identity() for some in ({}, settings["endpoint"] or {}))
        plan |= {f"endpoint.{name}": given.get(name) for name in _OF_THE_API if given.get(name) != usual.get(name)}
        plan["adapter"] = given["adapter"]
    return dict(json.loads(json.dumps(plan)))


def chosen_parts(encoder: Any, settings: Mapping[str, Any], plan: Mapping[str, Any]) -> tuple[str, ...]:
    """The parts of a plan that an owner chose: the encoder by itself would settle them in another way, or not at all.

    Args:
        encoder: as `plan_of` takes it.
        settings: of `whole`; weights and code count, other settings do not.
        plan: of `plan_of`.
    """
    kept = {name: settings[name] for name in ("weights", "trust_code")}
    usual = plan_of(encoder, whole(kept), captions=plan["captions"], counted=plan["counted"])
    usual |= {"adapter": plan["adapter"]} if is_address(encoder) and plan.get("adapter") in ADAPTERS else {}
    parts = set(differing(plan, usual))
    kind = encoder.partition(":")[0] if isinstance(encoder, str) else ""
    is_public = is_address(encoder) or (kind in LOADERS and kind != "python")  # others can name it
    return tuple(sorted(parts | (set() if is_public else {ENCODER})))


def differing(plan: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """The parts that two plans write in different ways: 10 and 10.0 are two, as they make two nonces."""
    names = sorted(plan.keys() | other.keys())
    return [name for name in names if entry_digest(plan.get(name)) != entry_digest(other.get(name))]


def describe(model: Any, settings: Mapping[str, Any], releases: Sequence[Release]) -> Question:
    """The question that an encoder and a lot settle, not yet registered: without time and place in the chain.

    Raises:
        UserError: the encoder has no such output, or only captions were drawn and it reads no texts.
        ConfigError, ShapeError: as `mi_core.audit`.
    """
    way = way_of(model, settings)
    target = model_of(model, way.how)
    if way.output not in target.encoder.outputs:
        raise UserError(f"output = {way.output!r}: the encoder has {', '.join(target.encoder.outputs)}")
    designs = {name for release in releases for name in release.header.design.designs}
    reads = CAPTIONS in designs and target.encoder.text is not None
    if CAPTIONS in designs and not reads:
        if designs == {CAPTIONS}:
            raise UserError("only captions were drawn, and the encoder reads no texts: nothing can be shown")
        say("claim", "the encoder reads no texts, so that the dice of captions are left out")
    mark = target.part.fingerprint or ""
    if is_address(model):
        mark = _mark_of_address(model, (settings["endpoint"] or {}).get("model"))
    elif callable(model) and not isinstance(model, torch.nn.Module):
        mark = hashlib.sha256(_answers(target.encoder, way, releases[0]).tobytes()).hexdigest()
    plan = plan_of(model, settings, captions=reads, counted=releases[0].header.counted)
    return Question(target.part.load or "", mark, plan, chosen_parts(model, settings, plan), "", "", {}, "")


def _mark_of_address(url: str, model: str | None) -> str:
    """The digest of an API's address and model name; other spellings of an address have the same."""
    parts = urlsplit(url)
    port = "" if parts.port in (None, {"http": 80, "https": 443}[parts.scheme]) else f":{parts.port}"
    path = "/".join(part for part in parts.path.split("/") if part)
    return entry_digest([f"{parts.scheme}://{parts.hostname}{port}/{path}", model])


@torch.inference_mode()
def _answers(encoder: Encoder, way: Way, release: Release) -> npt.NDArray[np.float32]:
    """Answers of a function, of which only its name is known, to a few images of the lot, to four digits."""
    name = release.parts()[0]
    keys = [row["name"] for row in release.images(name, ["name", "sha256"]).to_pylist() if row["sha256"]]
    data = [picture for _, picture in islice(release.pictures(name, dict.fromkeys(keys, False)), _PROBED)]
    if not data:
        raise UserError(f"{release.lot.published} holds none of the published images; put them back")
    pixels = torch.from_numpy(np.stack([decode(one, way.decoder) for one in data]))
    found = encoder(pixels.float() / 255)[way.output].float().numpy()
    return np.asarray(np.round(found / (np.abs(found).max() or 1), 4) + 0.0, dtype=np.float32)


def register(lot: Lot, described: Question, decided_by: str) -> Question:
    """Register a question as the next link of the chain, unless it stands there already.

    Args:
        lot: that is asked about.
        described: of `describe`.
        decided_by: which later number will decide the nonce, in words; empty: none.

    Raises:
        UserError: the same question is registered to be decided in another way.
    """
    chain = lot.chain()
    before = same_question(chain, described)
    if before is not None:
        if before.decided_by != decided_by:
            waiting = f"to be decided by {before.decided_by!r}; ask with --beacon VALUE"
            alone = "without a later number, and the same question has one answer: run encoder-audit claim"
            told = waiting if before.decided_by else alone
            raise UserError(f"this encoder was registered on {before.time}, {told}")
        return before
    question = Question(
        **{name: getattr(described, name) for name in ("encoder", "fingerprint", "plan", "given")},
        decided_by=decided_by,
        time=now(),
        tool=code_digest(),
        previous=chain[-1].commitment,
    )
    storage.write_json(f"{folder_of(lot, question)}/{REGISTERED}", question.as_json())
    number = sum(isinstance(link, Question) for link in chain) + 1
    lot.write_down(f"question {number}", question.commitment, decided_by)
    return question


def same_question(chain: Sequence[Link], described: Question) -> Question | None:
    """The registered question about the same encoder, asked in the same way about the same releases; None: none.

    Releases that came later belong to it where it may stop early, and else make another question.
    """
    headers = [link for link in chain if isinstance(link, Header)]
    for link in chain:
        if (
            isinstance(link, Question)
            and (link.fingerprint, link.plan) == (described.fingerprint, described.plan)
            and (described.plan["counted"] != ALL or headers_before(chain, link) == headers)
        ):
            return link
    return None


def folder_of(lot: Lot, question: Question) -> str:
    """The folder of a question in the vault."""
    return f"{lot.asked}/{question.commitment[:12]}"


def settled_nonce(lot: Lot, question: Question, value: str) -> str:
    """The nonce of a registered question, by the number that decided it, or an empty text."""
    headers = headers_before(lot.chain(), question)
    beacons = [release.drawing["beacon"] for release in lot.releases()[: len(headers)]]
    return nonce_of(headers, beacons, question, value)
