"""The help of every command ends with an example, and every example is one that works."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from pipelines.cli.flags import PREFIX
from tests.pages import COMMANDS, understood
from tests.pipelines.report.stating import called

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


def words(name: str) -> list[str]:
    """The words of an example after ``encoder-audit``."""
    first, *rest = shlex.split(COMMANDS[name].epilog.removeprefix(PREFIX))
    assert first == "encoder-audit"
    return rest


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
    """It calls the command itself, or one of the group, and is what a page may tell."""
    given = words(name)
    longest = max((one for one in COMMANDS if given[: len(one.split())] == one.split()), key=len)
    assert longest == name or longest.startswith(f"{name} ".lstrip())
    assert not hasattr(COMMANDS[longest], "commands")
    params = understood(given)
    if "loaded" in params and params.get("config"):
        assert longest != "tune" or params["loaded"].tune is not None
        assert longest == "submit" or params.get("out") in (None, f"runs/{params['loaded'].name}")


@pytest.mark.parametrize("name", sorted(SECONDS))
def test_an_example_runs(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert called(monkeypatch, *words(name)) == 0
    captured = capsys.readouterr()
    assert captured.out or any(tmp_path.iterdir())
