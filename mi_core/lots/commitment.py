"""A commitment to a lot before it is drawn: one number of 64 characters, to be posted, time-stamped or mailed.

It is the SHA-256 of a *header*, which tells the design, the SHA-256 of the salt, which public number will be taken as
beacon, and the Merkle root over the images. With the salt and the images bound, the coins are bound, too: they are a
function of salt, beacon and design (`mi_core.lots.draw`). Leaves are blinded, so that whoever is shown some of the
images can neither guess the others nor recognise those he has.

*Chain.* The links of a lot:

    header of release 1 -> header of release 2 -> ... -> question 1 -> question 2 -> answers

Every link names the digest of the one before it, so none can be changed, taken out or put in without changing all that
follow. A *question* is one encoder, asked in one way. It is registered before the first query, and its number among
the questions of the chain sets the level of its test.

*Nothing to choose.* How an encoder is asked follows from the encoder and the lot, and so do the views: their nonce is a
digest of the commitments, the beacons, the encoder's fingerprint and the plan. An owner who asks again gets the same
answer. Three grades say how far that holds:

- ``witnessed``: beside this, a number that came after the registration decided the nonce;
- ``fixed``: as above;
- ``the owner's word``: the owner drew alone, chose a part of the plan, or asked code of his own.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Self

from mi_core.captions import CREDITS
from mi_core.checks import ConfigError
from mi_core.lots.draw import Design, spelled
from mi_core.lots.merkle import leaf_digest

ALONE = ""
"""In place of a beacon: the salt decides, and every statement says that the owner drew alone."""
ALL, UNTIL_DECIDED = "all", "until-decided"
"""The images that a claim asks about: all, or wave after wave until it is decided."""
GRADES = WITNESSED, FIXED, OWNERS_WORD = "witnessed", "fixed", "the owner's word"
"""The grades of a claim, the best one first."""
ENCODER = "encoder"
"""The part of a plan that the owner chose where the encoder is code of his own."""
_NONCE = 32  # hex digits, as of other nonces
_BLIND = 32  # bytes


@dataclass(frozen=True)
class Unit:
    """The facts on one image that a leaf binds.

    Args:
        sha256: of the pixels at full size (hex).
        captions: SHA-256 (hex) of the captions, of none or of all in the order of the die.
    """

    sha256: str
    captions: tuple[str, ...] = ()

    def fault(self, blind: bytes, design: Design) -> str:
        """The fault of an opened leaf that could stand for several images; empty: it has none.

        Args:
            blind: the number that it was opened with.
            design: of its release.
        """
        whole = all(re.fullmatch("[0-9a-f]{64}", text) for text in (self.sha256, *self.captions))
        fits = len(self.captions) in (0, CREDITS * design.captions)
        return "" if whole and fits and len(blind) == _BLIND else "has another shape than the design says"

    def content(self, blind: bytes) -> bytes:
        """The bytes that are hashed as a leaf, with a number of 32 bytes that nobody can guess."""
        return blind + "|".join((self.sha256, ",".join(self.captions))).encode()

    def leaf(self, blind: bytes) -> bytes:
        """The digest of the leaf."""
        return leaf_digest(self.content(blind))


@dataclass(frozen=True)
class _Link:
    """An entry of JSON of some kind, whose digest is the number to post."""

    KIND: ClassVar[str]
    NAMED: ClassVar[str]

    def as_json(self) -> dict[str, Any]:
        """The content of its file."""
        return {"kind": self.KIND, **asdict(self)}

    @classmethod
    def from_json(cls, entry: Any) -> Self:
        """Read the output of `as_json`. Raises ConfigError: it is none of this version."""
        try:
            if entry["kind"] != cls.KIND:
                raise ConfigError(f"it is of kind {entry['kind']!r}, not {cls.KIND!r}")
            return cls(**cls._parse({part.name: entry[part.name] for part in fields(cls)}))
        except (AttributeError, KeyError, TypeError) as error:
            raise ConfigError(f"it is no {cls.NAMED} ({type(error).__name__}: {error})") from error

    @classmethod
    def _parse(cls, entry: dict[str, Any]) -> dict[str, Any]:
        """The fields, from their values of JSON."""
        return entry

    @property
    def commitment(self) -> str:
        """The number to post: 64 hex digits."""
        return entry_digest(self.as_json())


@dataclass(frozen=True)
class Header(_Link):
    """The entries whose digest is the commitment; nothing in it tells an image or a coin.

    Args:
        design: with N units.
        root: Merkle root (hex) over the N leaves.
        salt_sha256: of the salt (hex).
        albums_sha256: `entry_digest` of the names of the strata.
        beacon: which public number will decide, in words, such as ``drand quicknet round 12345678``; `ALONE`: none.
        counted: `ALL` or `UNTIL_DECIDED`; that of the first release holds for every claim on the lot.
        previous: commitment of the link before; empty: this is the first.
    """

    design: Design
    root: str
    salt_sha256: str
    albums_sha256: str
    beacon: str = ALONE
    counted: str = ALL
    previous: str = ""

    KIND, NAMED = "encoder-audit lot, version 1", "header of a lot"

    @classmethod
    def _parse(cls, entry: dict[str, Any]) -> dict[str, Any]:
        design = Design(**entry["design"] | {"sizes": tuple(entry["design"]["sizes"])})
        return {name: str(part) for name, part in entry.items()} | {"design": design}


def entry_digest(entry: Any) -> str:
    """The SHA-256 (hex) of an entry of JSON, however it is laid out."""
    return text_digest(json.dumps(entry, sort_keys=True, separators=(",", ":"), ensure_ascii=True))


def blind_of(key: str, number: int) -> bytes:
    """The blinding number of one leaf, from a secret key that is never shown: HMAC-SHA256, 32 bytes."""
    return hmac.digest(key.encode(), str(number).encode(), "sha256")


def text_digest(text: str) -> str:
    """The SHA-256 (hex) of a text, such as a salt, as the header tells it, or a caption, as a leaf does."""
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Question(_Link):
    """One encoder, asked in one way, as it was registered before the first query.

    Args:
        encoder: its name or address.
        fingerprint: of its weights (hex); of an API that of address and model name.
        plan: how it is asked.
        given: names of the parts of the plan that the owner chose; the others follow from encoder and lot.
        decided_by: which later number will decide the nonce, in words; empty: none.
        time: of the registration, by the owner's clock.
        tool: version and digest of the code that registered it.
        previous: commitment of the link before.
    """

    encoder: str
    fingerprint: str
    plan: Mapping[str, Any]
    given: tuple[str, ...]
    decided_by: str
    time: str
    tool: Mapping[str, Any]
    previous: str

    KIND, NAMED = "encoder-audit question, version 1", "question about a lot"

    @classmethod
    def _parse(cls, entry: dict[str, Any]) -> dict[str, Any]:
        return entry | {"given": tuple(entry["given"])}


Link = Header | Question


def link_from_json(entry: Any) -> Link:
    """Read a link of a chain. Raises ConfigError: it is neither a header nor a question."""
    is_question = isinstance(entry, Mapping) and entry.get("kind") == Question.KIND
    return Question.from_json(entry) if is_question else Header.from_json(entry)


def faults_of_chain(links: Sequence[Link]) -> Iterator[str]:
    """The links that do not follow the one before them."""
    previous = ""
    for number, link in enumerate(links, start=1):
        if link.previous != previous:
            after = f"link {number - 1}" if number > 1 else "nothing, as the first one has to"
            yield f"link {number} does not follow {after}"
        previous = link.commitment


def headers_before(links: Sequence[Link], question: Question) -> list[Header]:
    """The headers of the releases that were committed when a question was registered."""
    place = [link.commitment for link in links].index(question.commitment)
    return [link for link in links[:place] if isinstance(link, Header)]


def number_of(links: Sequence[Link], question: Question) -> int:
    """The number of a question among all of its chain, from 1."""
    return [link.commitment for link in links if isinstance(link, Question)].index(question.commitment) + 1


def nonce_of(headers: Sequence[Header], beacons: Sequence[str], question: Question, value: str = "") -> str:
    """The nonce of the views, and the seed of the redraws: 32 hex digits.

    Args:
        headers: of the releases that were committed when the question was registered.
        beacons: the values that decided their draws; empty texts where the owner drew alone.
        question: neither its time nor those before it have an effect.
        value: of the later number that decides; empty: there is none.
    """
    told = [*map(spelled, beacons), spelled(value)]
    parts = [[header.commitment for header in headers], told, question.fingerprint, question.plan]
    return entry_digest(parts)[:_NONCE]


def grade_of(headers: Sequence[Header], question: Question) -> str:
    """The grade of a claim on releases with these headers: `WITNESSED`, `FIXED` or `OWNERS_WORD`."""
    if question.given or not all(header.beacon for header in headers):
        return OWNERS_WORD
    return WITNESSED if question.decided_by else FIXED
