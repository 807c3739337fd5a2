"""Secrets kept out of texts: what a server says may hold the key that it was sent."""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from urllib.parse import quote, quote_plus

HIDDEN = "***"
_CUT = 16  # characters from which on the first half of a secret is taken for a part of it
_WORD = re.compile("[A-Za-z0-9]{8,}")
_SHORT = 4  # characters of base64 that say nothing yet
_RUN = re.compile(rf"[A-Za-z0-9+/_=-]{{{_SHORT},}}")


class Redaction:
    """Takes secrets out of texts, in the forms in which a server sends them back.

    These are the secret itself in any case, quoted for an address, JSON or HTML, anything in base64 that holds it
    (``Bearer KEY``, ``user:KEY``), its first half where a text was cut, and its longer words in whatever else.

    Args:
        secrets: what must not be shown.

    Example:
        >>> Redaction(["s3cret"]).hide("no such key: Bearer S3CRET")
        'no such key: Bearer ***'
    """

    def __init__(self, secrets: Sequence[str]) -> None:
        self._plain = _any(form for secret in secrets if secret for form in _forms(secret))
        self._encoded = _any(core for secret in secrets for core in _in_base64(secret.encode()))

    def hide(self, text: str) -> str:
        """The text with `HIDDEN` for every secret."""
        if self._encoded is not None:
            text = _RUN.sub(self._hide_run, text)
        return text if self._plain is None else self._plain.sub(HIDDEN, text)

    def _hide_run(self, run: re.Match[str]) -> str:
        return HIDDEN if self._encoded is not None and self._encoded.search(run[0]) else run[0]


def _any(patterns: Iterable[str]) -> re.Pattern[str] | None:
    ordered = sorted(set(patterns), key=len, reverse=True)
    return re.compile("|".join(ordered)) if ordered else None


def _forms(secret: str) -> Iterator[str]:
    """Patterns of a secret as text."""
    quoted = {secret, quote(secret, safe=""), quote(secret), quote_plus(secret), html.escape(secret)}
    for form in quoted | {json.dumps(secret)[1:-1], repr(secret)[1:-1], *_WORD.findall(secret)}:
        yield f"(?i:{re.escape(form)})"
    if len(secret) >= _CUT:
        yield rf"(?i:{re.escape(secret[: len(secret) // 2])})[^\s\"'<>]*"


def _in_base64(secret: bytes) -> Iterator[str]:
    """Patterns of a secret in the base64 of any text around it, one for each place in three bytes."""
    for before in range(3):
        encoded = base64.b64encode(bytes(before) + secret).decode()
        core = encoded[(0, 2, 3)[before] : (before + len(secret)) * 8 // 6]
        if len(core) >= _SHORT:
            yield "".join({"+": "[+-]", "/": "[/_]"}.get(sign, sign) for sign in core)
