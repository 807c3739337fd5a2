"""One finished run as a row among many: what its report says in one line, checked before it is shown."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from mi_core.checks import NumericError
from mi_core.records import Estimate
from mi_core.report.contents import fault_of, pooled_rows, primary_row
from mi_core.report.model.attacks import Sweep
from mi_core.report.model.encoders import EncoderPart
from mi_core.report.model.judgement import VerdictPart
from mi_core.report.model.report import Report, report_from_json
from mi_core.report.words.numbers import share
from mi_core.report.words.wording import Answer, answer

LONGEST = 120  # characters of a text from a report
_WRONG = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


@dataclass(frozen=True)
class Entry:
    """The entry of one run on a page over many.

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
            return _entry(report_from_json(report), folder, link)
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


def encoder_in_words(encoder: EncoderPart, *, epochs: bool = True) -> str:
    """An encoder of a report: where it is from, or how it was trained.

    Example:
        >>> encoder_in_words(EncoderPart(objective="simclr", backbone="conv4", epochs=400, fingerprint="7c"))
        'simclr, conv4, 400 epochs'
        >>> encoder_in_words(EncoderPart(load="open_clip:ViT-B-32", weights="b.pt", fingerprint="7c"))
        'open_clip:ViT-B-32'
    """
    length = f"{encoder.epochs} epochs" if epochs and encoder.epochs is not None else None
    return encoder.load or ", ".join(filter(None, (encoder.objective, encoder.backbone, length)))


def _entry(report: Report, folder: str, link: str) -> Entry:
    row = primary_row(pooled_rows(report)) or next(iter(pooled_rows(report)), None)
    judged, encoders = report.validity or VerdictPart(verdict="undecided"), report.encoders
    target = next(iter(encoders), "") if row is None else row.target
    encoder = encoders[target]
    family = encoder_in_words(encoder, epochs=False)
    created = datetime.fromisoformat(report.created)
    return Entry(
        folder,
        link,
        plain(report.name),
        (created if created.tzinfo else created.replace(tzinfo=UTC)).astimezone(UTC),
        answer(report),
        plain(family if target == "target" else f"{target}: {family}"),
        plain(encoder_in_words(encoder)),
        tuple(map(plain, encoder.fingerprints)),
        plain("no attack" if row is None else f"{row.attack}, {row.output} output"),
        _auc(judged.attack_auc or (None if row is None else row.auc)),
        _auc(judged.blind_auc),
        _auc(judged.control_auc),
        _share(report),
        plain(_folded(len(encoder.fingerprints), report.sweeps)),
    )


def _auc(auc: Estimate | None) -> Estimate | None:
    if auc is None:
        return None
    if not all(0 <= float(part) <= 1 for part in (auc.low, auc.value, auc.high)) or not math.isfinite(auc.n):
        raise NumericError(f"an AUC of {auc.value} [{auc.low}, {auc.high}]")
    return auc


def _share(report: Report) -> str:
    """How many of the images were used, as far as the primary attack tells; empty without a leak."""
    if report.validity is None or report.validity.verdict != "leak":
        return ""
    test = None if report.evidence is None else report.evidence.primary_test
    if test is not None and test.share is not None:
        return share(test.share)
    if test is None or test.least_share is None:
        return "not measured"
    least = math.floor(100 * test.least_share)
    return f"at least {least} % (95 % confidence)" if least else "none shown"


def _folded(seeds: int, sweeps: Iterable[Sweep]) -> str:
    parts = [f"{seeds} seeds"] if seeds > 1 else []
    parts += [f"sweep of {sweep.name}: {len(sweep.points)} points" for sweep in sweeps]
    return "; ".join(parts)
