"""A page per attack and per defense, made of what their docstrings say; ``make pages`` writes all.

A page can only be as good as the docstrings: a setting without an entry in an Args section ends in an error.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import fields
from textwrap import dedent
from typing import Any

import yaml

from mi_core.attacks import ATTACKS
from mi_core.attacks.base import Attack
from mi_core.checks import check_choice
from mi_core.defenses.base import Defense
from mi_core.features import consumes
from pipelines.cli import catalogue
from pipelines.cli.catalogue import defenses, needs_of
from pipelines.config.attacks import KNOWN, NONMEMBERS, SHADOW, SHADOWS, UNLABELLED
from pipelines.errors import UserError
from pipelines.files import storage

VIEWS = 10
FOLDERS = {"attacks": "mi_core/attacks", "defenses": "mi_core/defenses"}
MADE = "Made of the docstrings by `make pages`."
_HEADINGS = ("Args:", "Raises:", "Returns:", "Example:")
_FITTED_ON = {
    SHADOW: "a shadow encoder, which the attacker trains on images of her own",
    SHADOWS: "several shadow encoders, each trained on a random half of the audited images",
    KNOWN: "known members and non-members of the target",
    NONMEMBERS: "known non-members of the target",
    UNLABELLED: "samples of unknown membership, and known non-members of the target",
}
_ASKED = {
    "views": "augmented views",
    "clean": "the image itself",
    "patches": "patches of the image",
    "parts": "a view with its feature map, and small parts of it",
    "caption": "the image and its caption",
    "boundary": "the images of a search for the decision boundary",
    "adversarial": "images crafted on the shadow",
}
_NEEDS = {
    "logits": "a classifier (an encoder with the output `logits`: `objective: supervised`)",
    "labels": "the classes of its training images",
    "attributes": "an attribute of its training images (`attribute`)",
    "outside": "images that it was not trained on (`outside`)",
    "epoch": "a checkpoint (`epoch`)",
}
_SHADOW_ROLES = ("shadow-member", "shadow-nonmember")
_NONMEMBER = {"known-nonmember": {"from": "target-nonmember", "fraction": 0.3}}
_BESIDE: dict[str, dict[str, Any]] = {  # what a config needs beside an attack or a defense, by what that needs
    SHADOW: {
        "data": {"roles": {role: {"from": "pool", "count": 500} for role in _SHADOW_ROLES}},
        "encoders": {"shadow": {"like": "target", "train_on": "shadow-member"}},
    },
    SHADOWS: {
        "encoders": {"shadows": {"like": "target", "train_on": ["target-member", "target-nonmember"], "halves": 4}}
    },
    KNOWN: {"data": {"roles": {"known-member": {"from": "target-member", "fraction": 0.3}, **_NONMEMBER}}},
    NONMEMBERS: {"data": {"roles": _NONMEMBER}},
    UNLABELLED: {"data": {"roles": {"unlabelled": {"from": "pool", "count": 500}, **_NONMEMBER}}},
    "anchors": {"data": {"roles": {"anchor": {"from": "pool", "count": 2000}}}},
    "outside": {"data": {"roles": {"provider-nonmember": {"from": "pool", "count": 500}}}},
    "attributes": {
        "data": {"attributes": {"kind": {"from": "class", "values": {"even": [0, 2, 4, 6, 8], "odd": [1, 3, 5, 7, 9]}}}}
    },
    "epoch": {"encoders": {"target": {"checkpoints": [20]}}},
}
_IN_ENTRY: dict[str, dict[str, Any]] = {
    "outside": {"outside": {"target": "provider-nonmember"}},
    "attributes": {"attribute": "kind"},
    "epoch": {"epoch": 20},
}


def pages() -> dict[str, str]:
    """The text of every page, of both indexes and of the catalogue, by its path in the repository."""
    found = {f"{FOLDERS['attacks']}/README.md": _index_of_attacks(), f"{FOLDERS['defenses']}/README.md": _index()}
    found |= {f"{FOLDERS['attacks']}/docs/{name}.md": attack_page(name) for name in ATTACKS}
    found[f"pipelines/{catalogue.FILE}"] = catalogue.text()
    return found | {f"{FOLDERS['defenses']}/docs/{name}.md": defense_page(name) for name in defenses()}


def attack_page(name: str) -> str:
    """The page of an attack.

    Raises:
        ConfigError: there is no such attack.
        ValueError: a setting is not documented.
    """
    method = ATTACKS[check_choice("attack", name, ATTACKS)]
    asked = dict.fromkeys(_ASKED[consumes(need)] for need in method().needs)
    extra = [*(["the true classes"] if method.labelled else []), *(["anchor images"] if method.anchored else [])]
    outputs = "any" if method.outputs is None else _code(method.outputs)
    facts = {
        "Sees": method.threat_model,
        "Fitted on": "; or ".join(_FITTED_ON[kind] for kind in _references(method)),
        "Needs": "; ".join([f"{_code(method().needs)}, of {' and '.join(asked)}", *extra]),
        "Queries per image": queries_in_words(method),
        "Reads the output": outputs + (" of a classifier (`objective: supervised`)" if "logits" in outputs else ""),
        "Source": method.source,
    }
    shown = [f"Fitted on {_FITTED_ON[kind]}:\n\n{_fenced(snippet)}" for kind, snippet in attack_snippets(name).items()]
    return _page(name, "attacks", method, facts, "beside `attack`", shown)


def defense_page(name: str) -> str:
    """The page of a defense, or of an objective that is one. Raises as `attack_page`."""
    method = defenses()[check_choice("defense", name, defenses())]
    added = issubclass(method, Defense)
    needs = "; ".join(_NEEDS[need] for need in sorted(needs_of(method))) or "any encoder that is trained here"
    facts = {
        "Hides": method.hides,
        "Needs": needs,
        "Kind": "added to a trained encoder (section `defenses`)"
        if added
        else "an objective that an encoder is trained with",
        "Source": method.source,
    }
    return _page(name, "defenses", method, facts, _place(method), [_fenced(defense_snippet(name))])


def attack_snippets(name: str) -> dict[str, str]:
    """What a config says of an attack, in YAML, by what it is fitted on."""
    method, found = ATTACKS[name], {}
    for kind in _references(method):
        entry = {"attack": name, "target": "target", "reference": kind, **_example(method)}
        beside = [_BESIDE[kind], *([_BESIDE["anchors"]] if method.anchored else [])]
        found[kind] = _snippet(*beside, {"attacks": [entry]})
    return found


def defense_snippet(name: str) -> str:
    """What a config says of a defense, in YAML."""
    method = defenses()[name]
    needs = [need for need in sorted(needs_of(method)) if need in _IN_ENTRY]
    extra = {key: value for need in needs for key, value in _IN_ENTRY[need].items()}
    beside = [_BESIDE[need] for need in needs]
    if issubclass(method, Defense):
        settings = {"settings": _example(method)} if _example(method) else {}
        return _snippet(*beside, {"defenses": [{"defense": name, **extra, **settings}]})
    return _snippet(*beside, {"encoders": {"target": {"objective": name, **extra, "parameters": _example(method)}}})


def queries_in_words(method: type[Attack]) -> str:
    """Queries per image at 10 views."""
    made = method()
    asked = made.queries_per_sample(VIEWS)
    most = "at most " if method.sequential or any(consumes(need) == "boundary" for need in made.needs) else ""
    views = f" at {VIEWS} views" if asked != made.queries_per_sample(VIEWS - 1) else ""
    return f"{most}{asked:,}{views}{', and one per anchor image once' if method.anchored else ''}"


def settings_of(parameters: type[Any]) -> list[tuple[str, str, str, str]]:
    """Name, type, default and meaning of every setting of a parameter dataclass.

    Raises:
        ValueError: a setting has no entry in an Args section, or an entry is of no setting.
    """
    entries: dict[str, str] = {}
    for part in reversed(parameters.__mro__):
        entries |= dict(_entries(_sections(part).get("Args:", "")))
    names = [field.name for field in fields(parameters)]
    wrong = sorted(set(names) ^ set(entries))
    if wrong:
        place = f"{parameters.__module__}.{parameters.__qualname__}"
        told = f"says nothing of {wrong[0]}" if wrong[0] in names else f"tells of {wrong[0]}, which is no setting"
        raise ValueError(f"{place}: Args {told}")
    kinds = {field.name: str(field.type).replace(" | None", " or null") for field in fields(parameters)}
    return [(field.name, kinds[field.name], _yaml(field.default), entries[field.name]) for field in fields(parameters)]


def write() -> None:
    """Write all pages, and remove what is left over.

    Raises:
        UserError: this is not the root of the repository.
    """
    made = pages()
    for folder in FOLDERS.values():
        if not storage.exists(f"{folder}/__init__.py"):
            raise UserError(f"{folder} is not here; run make pages in the root of the repository")
        kept = {storage.absolute(path) for path in made}
        for path in storage.list_files(f"{folder}/docs"):
            if path not in kept:
                storage.remove(path)
    for path, text in made.items():
        storage.write_atomic(path, text.encode())


def _page(name: str, kind: str, method: type[Any], facts: Mapping[str, str], place: str, snippets: list[str]) -> str:
    module = sys.modules[method.__module__]
    source = method.__module__.replace(".", "/") + ".py"
    up = "../" * (f"{FOLDERS[kind]}/docs".count("/") + 1)
    link = source.removeprefix(f"{FOLDERS[kind]}/")
    facts = {**facts, "Code": f"[`{source}`]({'../' + link if link != source else up + source})"}
    summary, *details = _paragraphs(_sections(method)[""])
    pool = ", `pool` one of `data.sources`" if any("pool" in snippet for snippet in snippets) else ""
    settings, said = settings_of(method.Parameters), _paragraphs(_sections(method.Parameters)[""])
    parts = [
        f"# {name}",
        summary,
        "\n".join(f"- **{fact}**: {text}" for fact, text in facts.items()),
        "## What it does",
        *_paragraphs(_sections(module)[""]),
        *details,
        "## Settings",
        *(said[1:] if settings else said),
        *([f"They stand {place}.", _table(("setting", "type", "default", "meaning"), settings)] if settings else []),
        "## In a config",
        f"What a config says of it; `target` is the encoder that is attacked{pool}.",
        *snippets,
        f"[All {kind}](../README.md). {MADE}",
    ]
    return "\n\n".join(parts) + "\n"


def _index_of_attacks() -> str:
    rows = [
        (f"[{name}](docs/{name}.md)", method.threat_model, queries_in_words(method), method.source)
        for name, method in ATTACKS.items()
    ]
    return f"# Attacks\n\n{_table(('attack', 'sees', 'queries per image', 'source'), rows)}\n\n{MADE}\n"


def _index() -> str:
    rows = [
        (f"[{name}](docs/{name}.md)", method.hides, ", ".join(sorted(needs_of(method))) or "any encoder", method.source)
        for name, method in defenses().items()
    ]
    return f"# Defenses\n\n{_table(('defense', 'hides', 'needs', 'source'), rows)}\n\n{MADE}\n"


def _references(method: type[Attack]) -> list[str]:
    return [kind for kind in _FITTED_ON if kind in method.reference]


def _place(method: type[Any]) -> str:
    return "under `settings`" if issubclass(method, Defense) else "under `parameters` of the encoder"


def _example(method: type[Any]) -> dict[str, Any]:
    """The first setting of the method's own that has a default."""
    own = [field for field in fields(method.Parameters) if field.name in method.Parameters.__annotations__]
    return {field.name: field.default for field in own if field.default is not None and field is own[0]}


def _snippet(*parts: Mapping[str, Any]) -> str:
    merged: dict[str, Any] = {}
    for part in parts:
        merged = _merged(merged, part)
    return yaml.safe_dump(merged, default_flow_style=None, sort_keys=False, width=120).strip()


def _merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    both = {key: _merged(one[key], other[key]) for key in one if key in other}
    return {**one, **other, **both}


def _sections(documented: Any) -> dict[str, str]:
    """The text of a docstring by its headings, what stands before them under no name."""
    found: dict[str, list[str]] = {"": []}
    heading = ""
    for line in inspect.cleandoc(documented.__doc__ or "").splitlines():
        if line in _HEADINGS:
            heading = line
        found.setdefault(heading, []).append("" if line == heading else line)
    return {name: "\n".join(lines).strip("\n") for name, lines in found.items()}


def _entries(text: str) -> Iterable[tuple[str, str]]:
    for entry in re.split(r"\n(?=\S)", dedent(text)):
        names, colon, meaning = entry.partition(":")
        for name in names.split(",") if colon else ():
            yield name.strip(), re.sub(r"\bNone\b", "`null`", _markdown(" ".join(meaning.split())))


def _paragraphs(text: str) -> list[str]:
    return [_markdown(" ".join(block.split())) for block in re.split(r"\n\s*\n", text) if block.strip()]


def _markdown(text: str) -> str:
    return text.replace("``", "`")


def _table(columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [columns, ("---",) * len(columns), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _fenced(text: str) -> str:
    return f"```yaml\n{text}\n```"


def _yaml(value: Any) -> str:
    return str(yaml.safe_dump(value)).splitlines()[0]
