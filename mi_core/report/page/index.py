"""One page over many runs: no script, no external resource, filters by radio buttons and style rules alone.

Every text of a report passes through `mi_core.report.runs.plain` and the escaping of jinja2; the page's content
security policy forbids it to load or run anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from mi_core.records import Estimate
from mi_core.report.page.environment import page_environment
from mi_core.report.runs import Entry, Unread, plain
from mi_core.report.words import numbers, wording

FILTERS = 24  # encoders with a filter of their own: the page holds a style rule for each
MARK = '<meta name="generator" content="encoder-audit index">'
"""What tells a page of this module from any other file."""
_SAYS = {  # verdict: what so many audits say
    "leak": "found a leak",
    "no-evidence": "found no evidence of a leak",
    "confounded": "had no answer, because the two groups of images differ by themselves",
    "undecided": "had no answer, because a check is missing, the encoder does not work or attacks disagree",
}


@dataclass(frozen=True)
class _Shown:
    """A row of the table.

    Args:
        entry: the run.
        family: number of its encoder.
        latest: whether no later audit of the encoder is there.
    """

    entry: Entry
    family: int
    latest: bool


def render_index(entries: Sequence[Entry], unread: Sequence[Unread], place: str, written: datetime) -> str:
    """The page over many runs.

    Args:
        entries: the runs that have a report.
        unread: all others that were seen.
        place: the folder that was searched, as the page names it.
        written: the time in UTC.

    Returns:
        A complete HTML5 document.
    """
    environment = page_environment()
    environment.filters.update(rate=numbers.rate, count=numbers.count, bracketed=_bracketed)
    families = _families(entries)
    return environment.get_template("index.html.j2").render(
        rows=_rows(entries, families),
        unread=sorted(unread, key=lambda one: one.folder),
        place=plain(place),
        written=f"{written:%Y-%m-%d %H:%M}",
        seen=len(entries) + len(unread),
        verdicts=_verdicts(entries),
        titles=wording.TITLES,
        says=_SAYS,
        families=[(number, family, len(mine)) for number, (family, mine) in enumerate(families.items())],
        filters=FILTERS,
        mark=MARK,
    )


def _families(entries: Sequence[Entry]) -> dict[str, list[Entry]]:
    """The runs by encoder, the encoder with the most runs first."""
    found: dict[str, list[Entry]] = {}
    for entry in entries:
        found.setdefault(entry.family, []).append(entry)
    return dict(sorted(found.items(), key=lambda item: (-len(item[1]), item[0])))


def _rows(entries: Sequence[Entry], families: Mapping[str, Sequence[Entry]]) -> list[_Shown]:
    """The rows, the newest first."""
    numbered = {family: number for number, family in enumerate(families)}
    newest = {id(max(mine, key=lambda entry: entry.created)) for mine in families.values()}
    return [
        _Shown(
            entry,
            numbered[entry.family],
            id(entry) in newest,
        )
        for entry in sorted(entries, key=lambda entry: (entry.created, entry.folder), reverse=True)
    ]


def _verdicts(entries: Sequence[Entry]) -> dict[str, int]:
    """How many runs have each verdict, without those that none has."""
    found = Counter(entry.answer.verdict for entry in entries)
    return {verdict: found[verdict] for verdict in wording.TITLES if found[verdict]}


def _bracketed(estimate: Estimate) -> str:
    """The interval of an estimate, its bounds kept on one line."""
    return numbers.interval([estimate.low, estimate.high]).replace(" ", "\u00a0")
