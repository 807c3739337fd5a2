"""Attacks of other packages: the page's own example as a real installed package, and packages that are broken."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "own-attack.md").read_text()


def block(language: str, number: int = 0) -> str:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.M | re.S)[number]


def install(folder: Path, code: str, points: str, name: str = "my-attack") -> Path:
    """What pip leaves of a package of one module."""
    info = folder / f"{name.replace('-', '_')}-0.1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text(points)
    (folder / f"{name.replace('-', '_')}.py").write_text(code)
    return folder


def python(folder: Path, *arguments: str, code: int = 0) -> str:
    """The output of Python with a folder of packages, and its errors."""
    environment = os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    table = re.search(r'^\[project\.(entry-points\."encoder_audit\.attacks")\]\n(.*)$', block("toml"), re.M)
    assert table is not None
    point = table[2].replace('"', "")
    return install(tmp_path, block("python"), f"[encoder_audit.attacks]\n{point}\n")


def test_the_page_s_attack_keeps_the_contract(installed: Path) -> None:
    python(installed, "-c", block("python", 1) + "\ntest_it_keeps_the_contract()")


def test_it_is_listed_configured_and_bound(installed: Path) -> None:
    told = " ".join(python(installed, "-m", "pipelines.cli", "list", "attacks", "low-cosine").split())
    assert "keeps even its odd views together" in told
    assert "share: 0.1" in told
    code = f"""
import yaml
from mi_core import plugins
from mi_core.provenance import versions
from pipelines.config.sections.attacks import ATTACK_CONFIGS
from pipelines.run import registration
entry = yaml.safe_load({block("yaml")!r})["attacks"][0]
print(ATTACK_CONFIGS["low-cosine"].model_validate(entry).parameters().share, versions()["my-attack"])
before = registration.code_digest()["code_sha256"]
(_, path), = plugins.code_files()
path.write_text(path.read_text() + "# changed\\n")
print(registration.code_digest()["code_sha256"] != before)
"""
    assert python(installed, "-c", code).split() == ["0.2", "0.1", "True"]


@pytest.mark.parametrize(
    ("code", "point", "words"),
    [
        ("1 / 0", "new = my_attack:New", "cannot be loaded (ZeroDivisionError: division by zero); uninstall it"),
        ("New = 1", "new = my_attack:New", "is no subclass of mi_core.attacks.base.Attack; uninstall it"),
        ("from mi_core.attacks.base import Attack as New", "new = my_attack:New", "calls itself None in its attribute"),
        ("", "lpla = my_attack:New", "has a name that is taken; uninstall the package, or let its author rename it"),
    ],
    ids=["broken", "no class", "no name", "taken"],
)
def test_a_package_that_cannot_be_used_is_named(tmp_path: Path, code: str, point: str, words: str) -> None:
    folder = install(tmp_path, code, f"[encoder_audit.attacks]\n{point}\n")
    name = point.split(maxsplit=1)[0]
    told = python(folder, "-m", "pipelines.cli", "check", "quickstart", code=2)
    assert f"the attack {name} of the package my-attack {words}" in told
    assert "Traceback" not in told


def test_of_two_packages_with_one_name_the_second_is_named(tmp_path: Path) -> None:
    point = "[encoder_audit.attacks]\nlow-cosine = {}:LowCosine\n"
    install(tmp_path, block("python"), point.format("my_attack"))
    install(tmp_path, block("python"), point.format("other"), name="other")
    assert "has a name that is taken" in python(tmp_path, "-c", "import mi_core.attacks", code=1)
