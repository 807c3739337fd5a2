"""The help of every command ends with an example, and every example is one that works."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from mi_core.bench.extraction import EXTRACTION_CASES
from mi_core.bench.label_only import LABEL_ONLY_CASES
from pipelines.bench import train
from pipelines.cli import app as cli
from pipelines.cli.examples import PREFIX
from pipelines.config.reading.shipped import shipped
from pipelines.plan.load import load

SECONDS = {
    "list attacks",
    "list defenses",
    "list encoders",
    "list",
    "shards inspect",
    "shards import",
    "shards",
    "schema",
}
"""Commands whose examples run here; the others train, or need a cluster or a finished run."""
CASES = {"train": train.CASES, "label-only": LABEL_ONLY_CASES, "extract": EXTRACTION_CASES}


def commands(command: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Every command and group by its name."""
    yield name, command
    for inner, one in getattr(command, "commands", {}).items():
        yield from commands(one, f"{name} {inner}".strip())


COMMANDS = dict(commands(get_command(cli.app)))


def words(name: str) -> list[str]:
    """The words of an example after ``encoder-audit``."""
    first, *rest = shlex.split(COMMANDS[name].epilog.removeprefix(PREFIX))
    assert first == "encoder-audit"
    return rest


def called(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["encoder-audit", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_ends_with_the_example(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert called(monkeypatch, *name.split(), "--help") == 0
    lines = " ".join(capsys.readouterr().out.split())
    assert COMMANDS[name].epilog.startswith(PREFIX)
    assert lines.endswith(COMMANDS[name].epilog)


@pytest.mark.parametrize("name", COMMANDS)
def test_an_example_is_understood(name: str) -> None:
    """It calls the command itself, or one of the group; options, choices and numbers are allowed; its config loads."""
    given = words(name)
    longest = max((one for one in COMMANDS if given[: len(one.split())] == one.split()), key=len)
    assert longest == name or longest.startswith(f"{name} ".lstrip())
    command = COMMANDS[longest]
    assert not hasattr(command, "commands")
    context = command.make_context(longest, given[len(longest.split()) :])
    if not str(context.params.get("config") or "runs/").startswith("runs/"):  # a config, no run folder
        assert context.params["config"] in shipped()
        config = load(context.params["config"], context.params["overrides"] or ())
        assert longest != "tune" or config.tune is not None
        assert longest == "submit" or context.params.get("out") in (None, f"runs/{config.name}")
    if "case" in context.params:
        assert set(context.params["case"]) <= set(CASES[longest.removeprefix("bench ")])


@pytest.mark.parametrize("name", sorted(SECONDS))
def test_an_example_runs(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert called(monkeypatch, *words(name)) == 0
    captured = capsys.readouterr()
    assert captured.out or any(tmp_path.iterdir())
