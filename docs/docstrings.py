"""Reads the docstrings of this project as those of Google's style, which griffe knows."""

from __future__ import annotations

import ast
import re
from typing import Any

import griffe

_ENTRY = re.compile(r"^    (\w+(?:, \w+)+): (.*(?:\n {5}.*)*)", re.MULTILINE)


class Docstrings(griffe.Extension):
    """Rewrites docstrings once they are read.

    An entry of several names becomes an entry for each. ``Example`` becomes ``Examples``, which are code. The
    description of a field of a config becomes its docstring.
    """

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of an object."""
        if obj.docstring:
            text = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE)
            obj.docstring.value = _ENTRY.sub(_apart, text)
        elif isinstance(obj, griffe.Attribute) and isinstance(obj.value, griffe.ExprCall):
            told = {part.name: part.value for part in obj.value.arguments if isinstance(part, griffe.ExprKeyword)}
            if "description" in told:
                obj.docstring = griffe.Docstring(ast.literal_eval(str(told["description"])), parent=obj)
                obj.value = told.get("default")


def _apart(entry: re.Match[str]) -> str:
    return "\n".join(f"    {name}: {entry[2]}" for name in entry[1].split(", "))
