"""The sentences of a report, by the templates of this folder, and the names of the two groups that attacks tell apart.

Where the truth is known they are members and non-members. Where somebody asks whether images of hers were used, they
are her images and control images: nobody knows who is a member, so accuracy, precision and recall do not exist.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from mi_core.records import Estimate
from mi_core.report.contents import method_in_words
from mi_core.report.model.attacks import PooledRow
from mi_core.report.model.defenses import Inferred, Membership
from mi_core.report.model.report import Report
from mi_core.report.words import numbers
from mi_core.report.words.numbers import count, estimate, percent, share
from mi_core.validity.verdict import FACTOR, LEVEL

WORDS, PAGES = "mi_core/report/words", "mi_core/report/page"
FORMATS = {
    way.__name__: way
    for way in (
        *(numbers.rate, numbers.interval, numbers.estimate, numbers.count, numbers.percent, numbers.percents),
        *(numbers.plain, numbers.small, numbers.chance, numbers.share, numbers.times, numbers.duration),
        *(numbers.settings, numbers.upward, numbers.downward, numbers.wanted),
    )
}
"""The ways in which numbers look, by the names that templates have for them."""


@dataclass(frozen=True)
class Sides:
    """The words for both groups.

    Args:
        known: whether it is known who is a member.
        inside, outside: the two groups.
        candidates, controls: the same, where the truth is not used.
        one, other: one image of each.
    """

    known: bool
    inside: str
    outside: str
    candidates: str
    controls: str
    one: str
    other: str

    def counted(self, n: int) -> str:
        """So many images of the first group.

        Example:
            >>> _KNOWN.counted(2), _ASKED.counted(1)
            ('2 members', 'your 1 image')
        """
        return f"{count(n)} {self.inside}" if self.known else f"your {count(n)} {'image' if n == 1 else 'images'}"


_KNOWN = Sides(
    True, "members", "non-members", "candidates", "controls", "one image it was trained on", "one it was not trained on"
)
_ASKED = Sides(
    False, "your images", "control images", "your images", "control images", "one of your images", "one control image"
)


def sides_of(report: Report) -> Sides:
    """The words of a report."""
    return sides_by(report.membership)


def sides_by(membership: str | None) -> Sides:
    """The words where it is ``asked`` who is a member, or ``known``, as where nothing is said.

    Example:
        >>> sides_by("asked").inside, sides_by(None).inside
        ('your images', 'members')
    """
    return _ASKED if membership == "asked" else _KNOWN


def measured_by(rows: Iterable[PooledRow | Membership | Inferred]) -> tuple[str, str]:
    """The estimate by which rows are compared, and its name: accuracy where every row has one, else the AUC."""
    return ("accuracy", "accuracy") if all(row.accuracy is not None for row in rows) else ("auc", "AUC")


def rate_or_share(entry: Estimate, sides: Sides) -> str:
    """The estimate under `share_found`: a rate of an attack, or a share of the user's images.

    Example:
        >>> entry = Estimate(0.56, 0.514, 0.61, 440)
        >>> rate_or_share(entry, _KNOWN), rate_or_share(entry, _ASKED)
        ('.560 [.51, .61]', '56 % [51.4 %, 61 %]')
    """
    return estimate(entry) if sides.known else share(entry)


def share_found(alpha: str | float, sides: Sides) -> str:
    """The true-positive rate at a false-positive rate, in words.

    Example:
        >>> share_found("0.01", _KNOWN), share_found("0.01", _ASKED)
        ('TPR at 1 % FPR', 'above 99 % of controls')
    """
    return f"TPR at {percent(alpha)} FPR" if sides.known else f"above {percent(1 - float(alpha))} of controls"


def capital(text: str) -> str:
    """A text whose first letter is a capital."""
    return text[:1].upper() + text[1:]


@cache
def template(path: str) -> Template:
    """A template by its place in a package; those of pages escape what they show, others make plain text."""
    folder, _, name = path.rpartition("/")
    package, _, place = folder.partition("/")
    templates = Environment(
        loader=PackageLoader(package, place),
        autoescape=folder == PAGES,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters |= FORMATS | {"capital": capital}
    templates.globals |= {"sides_of": sides_of, "method_in_words": method_in_words, "FACTOR": FACTOR, "LEVEL": LEVEL}
    templates.globals |= {"say": say, "checks": checks}
    return templates.get_template(name)


def say(name: str, *about: Any) -> str:
    """What the macro ``name`` of sentences.j2 says about something, in one line; empty: nothing.

    Example:
        >>> say("bound_heading")
        'How much do these attacks find at most?'
    """
    return " ".join(_sentences()[name](*about).split())


def checks(part: str) -> dict[str, str]:
    """One column of the table of checks in sentences.j2, by the fields of the checks that have it."""
    return {field: check[part] for field, check in _sentences()["CHECKS"].items() if part in check}


def _sentences() -> dict[str, Any]:
    """The macros and the table of sentences.j2 by name."""
    return vars(template(f"{WORDS}/sentences.j2").module)


def sections(path: str, **about: Any) -> list[tuple[str, str]]:
    """The sections of a template, each begun by a line with #: titles and texts, each in one line, in order."""
    _, *parts = re.split(r"(?m)^#(.*)$", template(path).render(about))
    return [(title.strip(), " ".join(text.split())) for title, text in zip(parts[::2], parts[1::2], strict=True)]


def glossary(sides: Sides) -> dict[str, str]:
    """Term to meaning, with the report's words for the two groups."""
    return dict(sections(f"{WORDS}/glossary.j2", sides=sides))
