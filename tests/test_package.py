"""What is installed holds what the commands need: the configs by their names, templates, schemas."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
BUILD = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"


def test_a_wheel_holds_every_config(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "encoder_audit_main.py"):
        shutil.copy(ROOT / name, source)
    for name in ("mi_core", "pipelines", "configs"):
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run([sys.executable, "-c", BUILD, str(tmp_path)], cwd=source, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        held = {name: archive.read(name) for name in archive.namelist() if name.endswith(".yaml")}
        assert "mi_core/report/report.schema.json" in archive.namelist()
        assert "encoder_audit_main.py" in archive.namelist()
    configs = [*(ROOT / "configs").glob("*.yaml"), *(ROOT / "configs" / "papers").rglob("*.yaml")]
    assert held == {f"pipelines/{path.relative_to(ROOT)}": path.read_bytes() for path in configs}


def test_the_version_stands_in_one_place_and_all_others_agree() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == version
    assert re.search(r"(?m)^## (\S+)$", (ROOT / "CHANGELOG.md").read_text())[1] == version  # type: ignore[index]
