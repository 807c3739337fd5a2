"""A commitment to a lot before it is drawn: one number of 64 characters, to be posted, time-stamped or mailed.

It is the SHA-256 of a *header*, which tells the design, the SHA-256 of the salt, which public number will be taken as
beacon, and the Merkle root over the images. With the salt and the images bound, the coins are bound, too: they are a
function of salt, beacon and design (`mi_core.lots.draw`). Leaves are blinded, so that whoever is shown some of the
images can neither guess the others nor recognise those he has. A header names the link of the lot's chain before it
(`mi_core.lots.chain`).
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from dataclasses import asdict, dataclass, fields
from typing import Any

from mi_core.checks import ConfigError
from mi_core.lots.draw import Design
from mi_core.lots.merkle import leaf_digest

KIND = "encoder-audit lot, version 1"
ALONE = ""
"""In place of a beacon: the salt decides, and every statement says that the owner drew alone."""
ALL, UNTIL_DECIDED = "all", "until-decided"
"""The images that a claim asks about: all, or wave after wave until it is decided."""


_BLIND = 32  # bytes


@dataclass(frozen=True)
class Unit:
    """The facts on one image that a leaf binds.

    Args:
        sha256: of the pixels at full size (hex).
        captions: SHA-256 (hex) of the captions, of none or of two in the order of the coin.
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
        fits = len(self.captions) in (0, 2 * design.captions)
        return "" if whole and fits and len(blind) == _BLIND else "has another shape than the design says"

    def content(self, blind: bytes) -> bytes:
        """The bytes that are hashed as a leaf, with a number of 32 bytes that nobody can guess."""
        return blind + "|".join((self.sha256, ",".join(self.captions))).encode()

    def leaf(self, blind: bytes) -> bytes:
        """The digest of the leaf."""
        return leaf_digest(self.content(blind))


@dataclass(frozen=True)
class Header:
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

    def as_json(self) -> dict[str, Any]:
        """The content of header.json."""
        return {"kind": KIND, **asdict(self)}

    @classmethod
    def from_json(cls, entry: Any) -> Header:
        """Read the output of `as_json`.

        Raises:
            ConfigError: it is no header of this version.
        """
        try:
            if entry["kind"] != KIND:
                raise ConfigError(f"it is of kind {entry['kind']!r}, not {KIND!r}")
            design = Design(**entry["design"] | {"sizes": tuple(entry["design"]["sizes"])})
            return cls(design, **{part.name: str(entry[part.name]) for part in fields(cls)[1:]})
        except (AttributeError, KeyError, TypeError) as error:
            raise ConfigError(f"it is no header of a lot ({type(error).__name__}: {error})") from error

    @property
    def commitment(self) -> str:
        """The number to post: 64 hex digits."""
        return entry_digest(self.as_json())


def entry_digest(entry: Any) -> str:
    """The SHA-256 (hex) of an entry of JSON, however it is laid out."""
    return text_digest(json.dumps(entry, sort_keys=True, separators=(",", ":"), ensure_ascii=True))


def blind_of(key: str, number: int) -> bytes:
    """The blinding number of one leaf, from a secret key that is never shown: HMAC-SHA256, 32 bytes."""
    return hmac.digest(key.encode(), str(number).encode(), "sha256")


def text_digest(text: str) -> str:
    """The SHA-256 (hex) of a text, such as a salt, as the header tells it, or a caption, as a leaf does."""
    return hashlib.sha256(text.encode()).hexdigest()
