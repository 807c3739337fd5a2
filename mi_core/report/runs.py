"""One finished run as a row among many: what its report says in one line, checked before it is shown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from mi_core.checks import NumericError
from mi_core.records import Estimate
from mi_core.report.contents import fault_of, pooled_rows, primary_row
from mi_core.report.words.numbers import share
from mi_core.report.words.wording import Answer, answer

LONGEST = 120  # characters of a text from a report
_JUDGED = ("candidate", "control", "target-member", "target-nonmember")
_WRONG = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


@dataclass(frozen=True)
class Entry:
    """What a page over many runs shows of one.

    Args:
        folder: of the run, as the page names it.
        link: address of its report.html relative to the page; empty: the page cannot link to it.
        name: of the run.
        created: when the report was written, in UTC.
        answer: the verdict in words.
        family: what stays the same from one version of the encoder to the next: its architecture or where it is from.
        encoder: the same with the length of its training.
        weights: fingerprints of the target's weights, one per seed.
        attack: the primary one, with its output.
        auc, blind, control: AUC of the primary attack, of the classifier without the encoder, and of the attack on the
            reference encoders; None: not measured.
        share: how many of the images were used, in words; empty: the verdict is no leak.
        folded: seeds and sweeps that the run is made of, in words; empty: one seed, no sweep.
        images: what identifies the images that were judged: two runs of equal sets compare.
    """

    folder: str
    link: str
    name: str
    created: datetime
    answer: Answer
    family: str
    encoder: str
    weights: tuple[str, ...]
    attack: str
    auc: Estimate | None
    blind: Estimate | None
    control: Estimate | None
    share: str
    folded: str
    images: frozenset[str]

    @property
    def date(self) -> str:
        """Day and minute of the report."""
        return f"{self.created:%Y-%m-%d %H:%M}"


@dataclass(frozen=True)
class Unread:
    """A folder of a run, or of what may be one, without a report to show.

    Args:
        folder: as the page names it.
        why: the reason, in one line.
    """

    folder: str
    why: str


def entry_of(report: Any, folder: str, link: str) -> Entry | Unread:
    """The entry of a run, or why its report cannot be read; nothing in a report raises.

    Args:
        report: what report.json holds, whatever that is.
        folder, link: as `Entry` takes them.
    """
    fault = fault_of(report)
    if not fault:
        try:
            return _entry(report, folder, link)
        except _WRONG as error:
            fault = f"is not as this version writes it ({type(error).__name__}: {error})"
    return Unread(folder, plain(f"report.json {fault}"))


def plain(text: Any, longest: int = LONGEST) -> str:
    """A text of unknown origin in one line of printable characters, cut where it is long.

    Example:
        >>> plain("two\\nlines, and \\u202eturned"), plain("x" * 9, 5)
        ('two lines, and �turned', 'xxxx…')
    """
    line = " ".join(str(text[: 4 * longest] if isinstance(text, str) else text).split())
    shown = "".join(letter if letter.isprintable() else "\ufffd" for letter in line)
    return shown if len(shown) <= longest else f"{shown[: longest - 1]}…"


def encoder_in_words(entry: Mapping[str, Any], *, epochs: bool = True) -> str:
    """An encoder of report.json: where it is from, or how it was trained.

    Example:
        >>> encoder_in_words({"objective": "simclr", "backbone": "conv4", "epochs": 400, "fingerprint": "7c"})
        'simclr, conv4, 400 epochs'
        >>> encoder_in_words({"load": "open_clip:ViT-B-32", "weights": "b.pt", "fingerprint": "7c"})
        'open_clip:ViT-B-32'
    """
    length = f"{entry['epochs']} epochs" if epochs and "epochs" in entry else None
    return str(entry.get("load") or ", ".join(filter(None, (entry.get("objective"), entry.get("backbone"), length))))


def _entry(report: Mapping[str, Any], folder: str, link: str) -> Entry:
    row = primary_row(pooled_rows(report)) or next(iter(pooled_rows(report)), {})
    validity, encoders = report.get("validity", {}), report["encoders"]
    target = row.get("target") or next(iter(encoders), "")
    encoder = encoders[target]
    seeds = encoder.get("per_seed") or [encoder]
    family = encoder_in_words(encoder, epochs=False)
    created = datetime.fromisoformat(report["created"])
    return Entry(
        folder,
        link,
        plain(report["name"]),
        (created if created.tzinfo else created.replace(tzinfo=UTC)).astimezone(UTC),
        answer(report),
        plain(family if target == "target" else f"{target}: {family}"),
        plain(encoder_in_words(encoder)),
        tuple(plain(seed["fingerprint"]) for seed in seeds),
        plain(f"{row['attack']}, {row['output']} output" if row else "no attack"),
        _auc(validity.get("attack_auc") or row.get("auc")),
        _auc(validity.get("blind_auc")),
        _auc(validity.get("control_auc")),
        _share(report),
        plain(_folded(len(seeds), report.get("sweeps", []))),
        frozenset(_images(report["data"])),
    )


def _auc(entry: Any) -> Estimate | None:
    if entry is None:
        return None
    found = Estimate.from_json(entry)
    if not all(0 <= float(one) <= 1 for one in (found.low, found.value, found.high)) or not math.isfinite(found.n):
        raise NumericError(f"an AUC of {found.value} [{found.low}, {found.high}]")
    return found


def _share(report: Mapping[str, Any]) -> str:
    """How many of the images were used, as far as the primary attack tells; empty without a leak."""
    if report.get("validity", {}).get("verdict") != "leak":
        return ""
    row: Mapping[str, Any] = next(
        (row for row in report.get("evidence", {}).get("tests", []) if row.get("primary")), {}
    )
    if "share" in row:
        return share(row["share"])
    if "least_share" not in row:
        return "not measured"
    least = math.floor(100 * row["least_share"])
    return f"at least {least} % (95 % confidence)" if least else "none shown"


def _folded(seeds: int, sweeps: Iterable[Mapping[str, Any]]) -> str:
    parts = [f"{seeds} seeds"] if seeds > 1 else []
    parts += [f"sweep of {sweep['name']}: {len(sweep['points'])} points" for sweep in sweeps]
    return "; ".join(parts)


def _images(data: Mapping[str, Any]) -> Iterable[str]:
    for seed in data.get("per_seed", [data]):
        yield from (f"{role}:{seed['roles'][role]['sha256']}" for role in _JUDGED if role in seed["roles"])
