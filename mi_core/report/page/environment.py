"""The renderer of both pages: every text is escaped, and a name that a template does not know is an error."""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined


def page_environment() -> Environment:
    """The templates of this folder, without filters."""
    return Environment(
        loader=PackageLoader("mi_core", "report/page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
