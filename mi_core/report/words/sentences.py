"""The sentences of a report, by the templates of this folder: ``sentences``, ``answer`` and ``glossary``."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from mi_core.report.contents import method_in_words
from mi_core.report.words import numbers
from mi_core.report.words.sides import Sides, sides_of
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
