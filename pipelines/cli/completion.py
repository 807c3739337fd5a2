"""``encoder-audit completion``: the Tab key completes commands, options, names of configs and of methods.

A shell runs ``encoder-audit`` with the variable `VARIABLE` set, and reads the suggestions from its output. That
imports neither PyTorch nor Ray.
"""

from __future__ import annotations

import os
import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from typer.completion import completion_init, get_completion_script  # type: ignore[attr-defined]

import mi_core
from mi_core import plugins

PROGRAM = "encoder-audit"
VARIABLE = "_ENCODER_AUDIT_COMPLETE"


class Shell(StrEnum):
    """Shells that completion is there for."""

    bash = "bash"
    zsh = "zsh"
    fish = "fish"


def completion(shell: Annotated[Shell, typer.Argument(help="The shell that you use.")]) -> None:
    """Print a script that lets the Tab key complete; in ~/.bashrc: eval "$(encoder-audit completion bash)"."""
    print(get_completion_script(prog_name=PROGRAM, complete_var=VARIABLE, shell=shell.value))  # noqa: T201


def prepare() -> None:
    """Get ready to answer a shell, if one asks."""
    if VARIABLE in os.environ:
        completion_init()


def configs(incomplete: str) -> list[str]:
    """Configs of the package and of the current folder, and folders, whose names begin so."""
    from pipelines.config.reading.yaml_text import shipped

    folder, slash, start = incomplete.rpartition("/")
    place = Path(f"{folder}{slash}")
    inside = place.iterdir() if place.is_dir() else ()
    beginning = [path for path in inside if path.name.startswith(start) and not path.name.startswith(".")]
    here = [f"{folder}{slash}{path.name}" for path in beginning if path.suffix == ".yaml" or path.is_dir()]
    return sorted([*(name for name in shipped() if name.startswith(incomplete)), *here])


def attacks(incomplete: str) -> list[str]:
    """Attacks whose names begin so."""
    return _methods("attacks", incomplete)


def defenses(incomplete: str) -> list[str]:
    """Defenses whose names begin so."""
    return _methods("defenses", incomplete)


def stages(incomplete: str) -> list[str]:
    """Stages whose names begin so."""
    from pipelines.run.folder import STAGES

    return [stage for stage in STAGES if stage.startswith(incomplete)]


def _methods(table: str, incomplete: str) -> list[str]:
    """Names of the methods in a table of `mi_core`, read off its file: importing them takes seconds."""
    own = Path(mi_core.__file__).with_name(table) / "__init__.py"
    names = [*re.findall(r'^    "([\w-]+)": ', own.read_text(encoding="utf-8"), re.MULTILINE), *plugins.names(table)]
    return sorted(name for name in names if name.startswith(incomplete))
