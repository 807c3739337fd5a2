"""The chain of a lot, and how far a claim leaves its owner a choice.

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

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from mi_core.checks import ConfigError
from mi_core.lots.commitment import Header, entry_digest
from mi_core.lots.draw import spelled

KIND = "encoder-audit question, version 1"
WITNESSED, FIXED, OWNERS_WORD = "witnessed", "fixed", "the owner's word"
GRADES = (WITNESSED, FIXED, OWNERS_WORD)
"""The grades of a claim, the best one first."""
ENCODER = "encoder"
"""The part of a plan that the owner chose where the encoder is code of his own."""
_NONCE = 32  # hex digits, as of other nonces


@dataclass(frozen=True)
class Question:
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

    def as_json(self) -> dict[str, Any]:
        """The content of registered.json."""
        return {"kind": KIND, **asdict(self), "given": list(self.given)}

    @classmethod
    def from_json(cls, entry: Any) -> Question:
        """Read the output of `as_json`.

        Raises:
            ConfigError: it is no question of this version.
        """
        try:
            if entry["kind"] != KIND:
                raise ConfigError(f"it is of kind {entry['kind']!r}, not {KIND!r}")
            return cls(**{part.name: entry[part.name] for part in fields(cls)} | {"given": tuple(entry["given"])})
        except (KeyError, TypeError) as error:
            raise ConfigError(f"it is no question about a lot ({type(error).__name__}: {error})") from error

    @property
    def commitment(self) -> str:
        """The number of the registration, to post: 64 hex digits."""
        return entry_digest(self.as_json())

    def asks_as(self, other: Question) -> bool:
        """Tell whether another question is about the same encoder, asked in the same way."""
        return (self.fingerprint, self.plan) == (other.fingerprint, other.plan)


Link = Header | Question


def link_from_json(entry: Any) -> Link:
    """Read a link of a chain.

    Raises:
        ConfigError: it is neither a header nor a question.
    """
    is_question = isinstance(entry, Mapping) and entry.get("kind") == KIND
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
    numbers = [link.commitment for link in links if isinstance(link, Question)]
    return numbers.index(question.commitment) + 1


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
    """The grade of a claim, of `GRADES`.

    Args:
        headers: of the releases that were asked about.
        question: that was asked.
    """
    if question.given or not all(header.beacon for header in headers):
        return OWNERS_WORD
    return WITNESSED if question.decided_by else FIXED
