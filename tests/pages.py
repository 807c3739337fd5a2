"""What pages tell to type: their blocks, and the commands in blocks and in running text."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from typer.main import get_command

from mi_core.attacks import ATTACKS
from mi_core.defenses import DEFENSES
from pipelines.cli.app import app
from pipelines.cli.check import check_stage, loaded_run
from pipelines.cli.flags import Flags
from pipelines.config.reading.yaml_text import shipped
from pipelines.config.run_config import RunConfig
from pipelines.report.gate import Gate

ROOT = Path(__file__).parents[1]
YOURS = {"CONFIG", "RUN", "my-config.yaml", "mine.yaml"}
"""Configs of the reader; that of quickstart stands for them."""
_FENCE = re.compile(r"^( *)```(\S*)\n(.*?)^ *```$", re.M | re.S)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page; the words of the section around it and of the page's begin, without those of blocks."""

    page: str
    line: int
    language: str
    text: str
    section: str

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: str) -> Iterator[Block]:
    """The fenced blocks of a page."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for found in _FENCE.finditer(text):
        before, after = _FENCE.sub("", text[: found.start()]), _FENCE.sub("", text[found.end() :])
        section = re.split(r"(?m)^#", before)[-1] + re.split(r"(?m)^#", after)[0] + before.partition("\n## ")[0]
        yield Block(page, text[: found.start()].count("\n") + 1, found[2], found[3], section)


def inline(page: str) -> list[str]:
    """The pieces of code in the running text of a page."""
    text = _FENCE.sub("", (ROOT / page).read_text(encoding="utf-8"))
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", text)]


def commands(text: str, language: str = "sh") -> Iterator[list[str]]:
    """The words of every command of a block; of one with output, those behind ``$``.

    A command that another one starts is one of its own. ``[x]`` may be left out and is not; of ``a|b`` either is meant.
    """
    joined = text.replace("\\\n", " ").splitlines()
    lines = [line[2:] for line in joined if line.startswith("$ ")] if language == "console" else joined
    for line in lines:
        for words in _spelled_out(line):
            yield from _each(words)


def _spelled_out(line: str) -> Iterator[list[str]]:
    bare = re.sub(r" \[(?=[A-Za-z-])([^\]]+)\]", r" \1", line)
    lexer = shlex.shlex(bare, posix=True, punctuation_chars=";&<>")
    lexer.whitespace_split = True
    choices = [word.split("|") if re.fullmatch(r"[\w-]+(?:\|[\w-]+)+", word) else [word] for word in lexer]
    yield from (list(one) for one in product(*choices))


def _each(words: list[str]) -> Iterator[list[str]]:
    """The commands of a line, apart: without redirections, settings of the environment, and what is left open."""
    parts: list[list[str]] = [[]]
    redirected = False
    for word in words:
        if word in ("&&", ";", "|", "--"):
            parts.append([])
        elif redirected or word in (">", "<", ">>"):
            redirected = not redirected
        elif word != "..." or (parts[-1] and parts[-1][-1].startswith("--")):
            parts[-1].append(re.sub(r"(?<==)\.\.\.$", "x", word).removesuffix(",..."))
    for part in parts:
        while part and re.match(r"[A-Z_]+=", part[0]):
            part.pop(0)
        if part:
            yield part
        for word in part[1:]:
            if re.match(r"(?:ray|encoder-audit) ", word):
                yield shlex.split(word)


def _named(command: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    yield name, command
    for inner, one in getattr(command, "commands", {}).items():
        yield from _named(one, f"{name} {inner}".strip())


COMMANDS: dict[str, Any] = dict(_named(get_command(app)))
"""Every command and group of the command line by its name, such as ``shards import``."""


def understood(words: Sequence[str]) -> dict[str, Any]:
    """What the command line makes of the words after ``encoder-audit``; configs load, and what names something exists.

    Raises:
        Exception: of the command line or of the config, as it is told to a user.
    """
    command = COMMANDS[""]
    context, rest = command.make_context("encoder-audit", list(words)), list(words)
    while hasattr(command, "commands"):
        name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        context = command.make_context(name, rest, parent=context)
    given: dict[str, Any] = context.params
    if "overrides" in given:
        given["loaded"] = _loaded(given, context.info_name)
    if "fail_on" in given:
        Gate.from_options(given["fail_on"], given["max_auc"], None, given["least_auc"])
    check_stage(given.get("force"))
    if context.info_name in ("attacks", "defenses"):
        assert given["name"] in (None, "NAME", "low-cosine", *ATTACKS, *DEFENSES)  # one that a page makes
    return given


def _loaded(given: dict[str, Any], command: str) -> RunConfig:
    own = {name: value for name, value in given.items() if name in Flags.__dataclass_fields__}
    overrides = [word for word in given["overrides"] or () if word != "section.field=value"]
    config = given.get("config")
    if "config" not in given or (config is None and command == "selftest"):
        config = "CONFIG"
    if config in YOURS or str(config).startswith("runs/"):
        config = shipped()["tune-digits" if command == "tune" else "quickstart"]
    return loaded_run(config, overrides, None, Flags(**own))[0]
