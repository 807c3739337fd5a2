"""One page over many runs: no script, no external resource, filters by radio buttons and style rules alone.

Every text of a report passes through `plain` and the escaping of jinja2; the page's content security policy forbids it
to load or run anything.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any

from jinja2 import TemplateError

from mi_core.checks import NumericError
from mi_core.records import Estimate
from mi_core.report.contents import fault_of, plain, pooled_rows, primary_row
from mi_core.report.model.report import Report, report_from_json
from mi_core.report.pooling import grouped
from mi_core.report.words import wording
from mi_core.report.words.sentences import PAGES, say, template
from mi_core.report.words.wording import Answer, answer

_WRONG = (ArithmeticError, AttributeError, LookupError, RecursionError, TemplateError, TypeError, ValueError)


@dataclass(frozen=True)
class Entry:
    """The entry of one run on a page over many.

    Args:
        folder: of the run, as the page names it; link: of its report.html from there, empty where it has none.
        created: when the report was written, in UTC.
        family: what stays the same from one version of the encoder to the next: its architecture or where it is from.
        encoder: the same with the length of its training; weights: its fingerprints, one per seed.
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
    """A folder of a run, or of what may be one, without a report to show, and why in one line.

    Args:
        share: of the work under way that is done, in [0, 1]; None: not known.
    """

    folder: str
    why: str
    share: float | None = None


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


def _entry(report: Report, folder: str, link: str) -> Entry:
    row = primary_row(pooled_rows(report)) or next(iter(pooled_rows(report)), None)
    target = next(iter(report.encoders), "") if row is None else row.target
    encoder = report.encoders[target]
    family = say("encoder", encoder, False)
    created = datetime.fromisoformat(report.created)
    seeds = [f"{len(encoder.fingerprints)} seeds"] if len(encoder.fingerprints) > 1 else []
    sweeps = [f"sweep of {sweep.name}: {len(sweep.points)} points" for sweep in report.sweeps]
    return Entry(
        folder,
        link,
        plain(say("title", report, row)),
        (created if created.tzinfo else created.replace(tzinfo=UTC)).astimezone(UTC),
        answer(report),
        plain(family if target == "target" else f"{target}: {family}"),
        plain(say("encoder", encoder)),
        tuple(map(plain, encoder.fingerprints)),
        plain("no attack" if row is None else f"{row.attack}, {row.output} output"),
        _auc(report.judged.attack_auc or (None if row is None else row.auc)),
        _auc(report.judged.blind_auc),
        _auc(report.judged.control_auc),
        say("share_used", report),
        plain("; ".join(seeds + sweeps)),
    )


def _auc(auc: Estimate | None) -> Estimate | None:
    if auc is None:
        return None
    if not all(0 <= float(part) <= 1 for part in (auc.low, auc.value, auc.high)) or not math.isfinite(auc.n):
        raise NumericError(f"an AUC of {auc.value} [{auc.low}, {auc.high}]")
    return auc


FILTERS = 24  # encoders with a filter of their own: the page holds a style rule for each
MARK = '<meta name="generator" content="encoder-audit index">'
"""What tells a page of this module from any other file."""


def render_index(
    entries: Sequence[Entry], unread: Sequence[Unread], place: str, written: datetime, *, served: bool = False
) -> str:
    """The page over many runs, the newest first; of the encoders the one with the most runs first.

    Args:
        entries: the runs that have a report.
        unread: all others that were seen.
        place: the folder that was searched, as the page names it.
        written: the time in UTC.
        served: by a server that compares two runs; the page asks for itself every few seconds.

    Returns:
        A complete HTML5 document.
    """
    newest = sorted(entries, key=lambda entry: (entry.created, entry.folder), reverse=True)
    of_family = grouped(newest, attrgetter("family"))
    families = {name: n for n, name in enumerate(sorted(of_family, key=lambda one: (-len(of_family[one]), one)))}
    found = Counter(entry.answer.verdict for entry in entries)
    return template(f"{PAGES}/index.html.j2").render(
        rows=[(entry, families[entry.family], entry is of_family[entry.family][0]) for entry in newest],
        unread=sorted(unread, key=lambda entry: entry.folder),
        place=plain(place),
        written=f"{written:%Y-%m-%d %H:%M}",
        seen=len(entries) + len(unread),
        verdicts={verdict: found[verdict] for verdict in wording.TITLES if found[verdict]},
        titles=wording.TITLES,
        families=[(number, family, len(of_family[family])) for family, number in families.items()],
        filters=FILTERS,
        mark=MARK,
        served=served,
    )
