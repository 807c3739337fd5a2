"""The command as a process: what hides the package, how it ends, and whose modules it finds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import encoder_audit_main

ROOT = Path(encoder_audit_main.__file__).parent
SCRIPT = "import encoder_audit_main; encoder_audit_main.main()"


def started(folder: Path, *words: str, code: str = SCRIPT, **environment: str) -> subprocess.CompletedProcess[str]:
    """A run of the console script in a folder, which stands before the package on the path, as with PYTHONPATH=."""
    given = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}", **environment}
    command = [sys.executable, "-c", code, *words]
    return subprocess.run(command, cwd=folder, env=given, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.parametrize("name", ["pipelines/__init__.py", "mi_core/__init__.py", "pipelines.py"])
def test_a_package_of_the_user_with_our_name_is_one_line(name: str, tmp_path: Path) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("x = 1")
    done = started(tmp_path, "list")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"encoder-audit: {tmp_path}/{name.removesuffix('/__init__.py')} has the name of a pack")


def test_a_folder_of_data_with_our_name_hides_nothing(tmp_path: Path) -> None:
    (folder := tmp_path / "pipelines").mkdir()
    (folder / "photo.jpg").touch()
    done = started(tmp_path, "list", "attacks")
    assert (done.returncode, "lpla" in done.stdout) == (0, True), done.stderr


def test_codes_outputs_and_what_was_asked_for_the_end_survive(tmp_path: Path) -> None:
    code = """
import atexit, sys, threading, time
from pipelines.cli import process
atexit.register(print, "at the end")
threading.Thread(target=time.sleep, args=(60,)).start()  # a thread that would keep the interpreter
{}
process.run()
"""
    for lines, words, expected in (
        ("", ("--version",), (0, "encoder-audit")),
        ("", ("check", "nothing.yaml"), (2, "is no file")),
        ("process.main = lambda _: 1 / 0", (), (1, "ZeroDivisionError")),
        ("process.main = lambda _: sys.exit('words')", (), (1, "words")),
    ):
        done = started(tmp_path, *words, code=code.format(lines))
        assert done.returncode == expected[0], done
        assert expected[1] in done.stdout + done.stderr
        assert "at the end" in done.stdout


def test_no_thread_is_alive_in_a_teardown(tmp_path: Path) -> None:
    """A native thread that outlives its library aborts the process, so the teardown is left out."""
    code = """
import sys, weakref
from pipelines.cli import process
class Torn:
    def __del__(self): print("torn down")
sys.torn = Torn()
process.main = lambda _: print("done"); process.run()
"""
    assert started(tmp_path, code=code).stdout == "done\n"


def test_code_of_the_current_folder_is_found_by_every_command(tmp_path: Path) -> None:
    (tmp_path / "enc.py").write_text("def f(x):\n    return x.flatten(1)[:, :32]\n")
    code = """
import sys
sys.path = [place for place in sys.path if place not in ("", sys.argv[1])]  # as of a console script
from mi_core.adoption.code import code_backbone
print(code_backbone("python:enc:f", None)[0].function.__name__)
"""
    done = started(tmp_path, str(tmp_path), code=code, PYTHONPATH=str(ROOT))
    assert done.stdout == "f\n", done.stderr


@pytest.mark.parametrize("name", ["RAY_TMPDIR", "TMPDIR"])
def test_a_temporary_folder_with_a_long_path_is_one_line(name: str, tmp_path: Path) -> None:
    (long := tmp_path / ("x" * 90)).mkdir()
    without = {other: "" for other in ("RAY_TMPDIR", "TMPDIR") if other != name}
    done = started(tmp_path, "quickstart", "--out", str(tmp_path / "r"), **{name: str(long)}, **without)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(f"encoder-audit: {name} has {len(str(long))} bytes, and Ray's")
