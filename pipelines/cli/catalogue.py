"""What there is to choose from, in short: read off the methods, and kept in ``catalogue.json`` by `make pages`.

`encoder-audit list` prints the kept text, because importing all methods to print a table takes seconds.
"""

from __future__ import annotations

import json
from dataclasses import fields
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from pipelines.console import count_of

if TYPE_CHECKING:
    from mi_core.defenses.base import Defense
    from mi_core.objectives.base import Objective

FILE = "catalogue.json"
Catalogue = dict[str, dict[str, dict[str, str]]]
"""Facts or a first line (under the name ``""``) by name, by the heading of a table."""


def kept() -> Catalogue:
    """The catalogue that stands beside this module."""
    return dict(json.loads((files("pipelines") / FILE).read_text(encoding="utf-8")))


def text() -> str:
    """The text of ``catalogue.json``, made of the methods themselves."""
    return json.dumps(made(), indent=1, ensure_ascii=False) + "\n"


def made() -> Catalogue:
    """The catalogue, read off the methods."""
    return {"attack": _attacks(), "defense": _defenses(), **_encoders()}


def defenses() -> dict[str, type[Defense] | type[Objective]]:
    """The defenses of trained encoders, and the objectives that are defenses."""
    from mi_core.defenses import DEFENSES
    from mi_core.objectives import OBJECTIVES

    return {**DEFENSES, **{name: method for name, method in OBJECTIVES.items() if method.hides}}


def needs_of(method: type[Defense] | type[Objective]) -> frozenset[str]:
    """What a defense cannot do without, as `Defense.needs` has it."""
    from mi_core.defenses.base import Defense

    if issubclass(method, Defense):
        return method.needs
    return frozenset({"attributes"} if method.target == "attribute" else ())


def _attacks() -> dict[str, dict[str, str]]:
    from mi_core.attacks import ATTACKS

    found = {}
    for name, method in ATTACKS.items():
        attack = method()
        asked = count_of(attack.queries_per_sample(10), "query", "queries")
        views = " at 10 views" if attack.queries_per_sample(10) != attack.queries_per_sample(9) else ""
        anchors = ", and one per anchor" if method.anchored else ""
        found[name] = {
            "sees": method.threat_model,
            "fitted on": " or ".join(sorted(method.reference)),
            "needs": f"{', '.join(attack.needs)}; {asked} per image{views}{anchors}",
            "source": method.source,
        }
    return found


def _defenses() -> dict[str, dict[str, str]]:
    found = {}
    for name, method in defenses().items():
        facts = {
            "hides": method.hides,
            "needs": ", ".join(sorted(needs_of(method))),
            "settings": ", ".join(f"{field.name} = {field.default}" for field in fields(method.Parameters)),
            "source": method.source,
        }
        found[name] = {fact: value for fact, value in facts.items() if value}
    return found


def _encoders() -> Catalogue:
    from mi_core.encoders import ENCODERS
    from mi_core.encoders.foreign import LOADERS
    from mi_core.encoders.remote.adapters import ADAPTERS
    from mi_core.objectives import OBJECTIVES

    def first_line(of: Any) -> dict[str, str]:
        return {"": (of.__doc__ or "").splitlines()[0]}

    return {
        "backbone": {name: first_line(build) for name, build in ENCODERS.items()},
        "framework": {name: first_line(objective) for name, objective in OBJECTIVES.items()},
        "from elsewhere": {f"{name}:...": first_line(load) for name, load in LOADERS.items()},
        "endpoint's adapter": {name: first_line(type(adapter)) for name, adapter in ADAPTERS.items()},
    }
