"""What the tests of the files in ``cluster/`` have in common: their texts, broken copies, Ray's own command line."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
CLUSTER = ROOT / "cluster"
TEXTS = {path.name: path.read_text() for path in sorted(CLUSTER.iterdir()) if path.is_file()}
GONE = object()


def changed(document: Any, path: str, value: Any) -> Any:
    """A copy with one value replaced, or taken away."""
    copied = copy.deepcopy(document)
    *steps, last = [int(step) if step.isdigit() else step for step in path.split("/")]
    place = copied
    for step in steps:
        place = place[step]
    if value is GONE:
        place.pop(last, None)
    else:
        place[last] = value
    return copied


def ray_version() -> str:
    """The version of Ray in the Dockerfile, which is the only place where it is chosen."""
    (version,) = re.findall(r"^ARG RAY_VERSION=(\S+)$", TEXTS["Dockerfile"], re.M)
    return str(version)


@cache
def ray_commands() -> dict[str, set[str]]:
    """The commands of Ray's command line, and the options of each; of groups those of their commands."""
    import click
    from ray.scripts.scripts import cli

    def options(command: click.Command) -> set[str]:
        inner = command.commands.values() if isinstance(command, click.Group) else ()
        own = {option for one in command.params for option in (*one.opts, *one.secondary_opts)}
        return own.union(*map(options, inner))

    return {name: options(command) for name, command in cli.commands.items()}


def strings(value: Any) -> Iterator[str]:
    """All texts in plain values."""
    if isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from strings(one)
    elif isinstance(value, str):
        yield value
