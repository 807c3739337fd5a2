"""Completion as a shell asks for it: bash itself completes, with the script that the command prints."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipelines.cli.flags import VARIABLE

ROOT = Path(__file__).parents[3]
PROGRAM = """\
#!{python}
import sys
sys.path.insert(0, {root!r})
from pipelines.cli.app import main
try:
    main()
finally:
    heavy = sorted({{"torch", "ray", "pandas", "matplotlib"}} & set(sys.modules))
    open({log!r}, "a").write(" ".join(heavy))
"""
COMPLETE = """\
source {script}
COMP_WORDS=({words}) COMP_CWORD={last}
$(complete -p encoder-audit | sed 's/.*-F \\([^ ]*\\).*/\\1/') encoder-audit
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the program, and with ``heavy``: what its processes imported that takes long."""
    folder = tmp_path_factory.mktemp("completion")
    program = folder / "bin" / "encoder-audit"
    program.parent.mkdir()
    program.write_text(PROGRAM.format(python=sys.executable, root=str(ROOT), log=str(folder / "heavy")))
    program.chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def environment(home: Path) -> dict[str, str]:
    return {**os.environ, "PATH": f"{home / 'bin'}:{os.environ['PATH']}"}


def printed(shell: str, environment: dict[str, str]) -> str:
    command = ["encoder-audit", "completion", shell]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def script(home: Path, environment: dict[str, str]) -> Path:
    path = home / "completion.bash"
    path.write_text(printed("bash", environment))
    return path


def completed(line: str, script: Path, environment: dict[str, str], place: Path) -> list[str]:
    """What bash offers for a line when the Tab key is hit at its end."""
    words = [*line.split(), ""] if line.endswith(" ") else line.split()
    commands = COMPLETE.format(script=script, words=" ".join(f"'{word}'" for word in words), last=len(words) - 1)
    done = subprocess.run(
        ["bash", "-c", commands], env=environment, cwd=place, capture_output=True, text=True, check=True, timeout=300
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("encoder-audit qui", ["quickstart"]),
        ("encoder-audit co", ["compare", "completion"]),
        ("encoder-audit completion ", ["bash", "zsh", "fish"]),
        ("encoder-audit audit --fo", ["--force"]),
        ("encoder-audit audit --force at", ["attack"]),
        ("encoder-audit audit clip-a", ["clip-audit"]),
        ("encoder-audit check my", ["mymine.yaml", "myruns"]),
        ("encoder-audit check myruns/", ["myruns/first"]),
        ("encoder-audit list attacks encodermi-", ["encodermi-s", "encodermi-t", "encodermi-v"]),
        ("encoder-audit list defenses output-", ["output-noise"]),
        ("encoder-audit shards i", ["import", "inspect"]),
        ("encoder-audit nothing-of-this-name-", []),
    ],
)
def test_bash_completes(
    line: str, offered: list[str], home: Path, script: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    place = tmp_path / "place"
    (place / "myruns" / "first").mkdir(parents=True)
    (place / "mymine.yaml").touch()
    (place / "my-notes.txt").touch()
    found = completed(line, script, environment, place)
    assert sorted(found) == sorted(offered)
    assert (home / "heavy").read_text() == ""


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_per_shell(shell: str, environment: dict[str, str]) -> None:
    assert f"{VARIABLE}=complete_{shell}" in printed(shell, environment)


def test_another_shell_is_refused(environment: dict[str, str]) -> None:
    refused = subprocess.run(["encoder-audit", "completion", "csh"], env=environment, capture_output=True, check=False)
    assert refused.returncode == 2
