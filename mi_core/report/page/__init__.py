"""Pages of HTML, and their templates: `html` of a run, `index` over many. Nothing else of the report imports it."""

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
