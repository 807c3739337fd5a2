"""The page of the gate: recipes for pipelines are valid, paths into report.json are there, and exit codes are those."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipelines.config.reading.yaml_text import shipped
from pipelines.report.gate import EXIT_CODES
from tests.mi_core.report.conftest import BOUND_BROKEN, BOUND_MET, make_full
from tests.pages import blocks, understood

PAGE = (Path(__file__).parents[1] / "docs" / "gate.md").read_text(encoding="utf-8")
GITHUB, GITLAB = (yaml.safe_load(one.text) for one in blocks("docs/gate.md") if one.language == "yaml")
RUN = [step["run"] for step in GITHUB["jobs"]["leak"]["steps"] if "run" in step]
SCRIPT = GITLAB["leak"]["script"]


def commands(lines: list[str]) -> list[list[str]]:
    return [shlex.split(line.replace("\\\n", "")) for line in lines]


def test_the_recipes_have_the_keys_that_are_read() -> None:
    assert GITHUB[True] == ["push"]  # YAML 1.1 reads "on" as true; GitHub does not
    job = GITHUB["jobs"]["leak"]
    assert set(job) == {"runs-on", "timeout-minutes", "steps"}
    assert all(("run" in step) != ("uses" in step) for step in job["steps"])
    assert set(GITLAB["leak"]) == {"image", "timeout", "script", "artifacts"}
    assert f"allow_failure: {{exit_codes: {EXIT_CODES['cannot tell']}}}" in PAGE


@pytest.mark.parametrize("lines", [RUN, SCRIPT], ids=["github", "gitlab"])
def test_the_commands_of_a_recipe_are_understood(lines: list[str], tmp_path: Path) -> None:
    (tmp_path / "script.sh").write_text("\n".join(lines))
    subprocess.run(["bash", "-n", tmp_path / "script.sh"], check=True)
    first, second = commands(lines)
    assert first == ["pip", "install", "."]
    assert second[:3] == ["encoder-audit", "audit", "quickstart"] and second[2] in shipped()
    given = understood(second[1:])
    kept = [*GITLAB["leak"]["artifacts"]["paths"], *GITHUB["jobs"]["leak"]["steps"][-1]["with"]["path"].split()]
    assert all(path.startswith(given["out"]) for path in kept if path != given["junit"])
    assert GITLAB["leak"]["artifacts"]["reports"]["junit"] == given["junit"] and given["junit"] in kept


def test_both_recipes_run_the_same() -> None:
    assert commands(RUN) == commands(SCRIPT)


def test_every_path_leads_into_a_report() -> None:
    whole: dict[str, Any] = make_full() | {"bounds": [BOUND_MET, BOUND_BROKEN]}
    whole["validity"] |= {"reason": "by-lot", "works": True, "registered": True, "other_attack": "lpla", "other_p": 0.1}
    table = PAGE.partition("<!-- paths -->")[2].partition("\n\n")[0]
    cells = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    paths = [path for cell in cells for path in re.findall(r"`(.*?)`", cell)]
    assert len(paths) > 15
    for path in paths:
        parts: list[Any] = [whole]
        for name in re.findall(r"\w+|\[\]", path):
            if name == "[]":
                parts = [inner for part in parts for inner in part]
            elif name.isdigit():
                parts = [part[int(name)] for part in parts]
            else:
                parts = [part[name] for part in parts if name in part]
        assert parts, path


def test_the_exit_codes_are_told() -> None:
    told = {outcome: int(code) for code, outcome in re.findall(r"^\| (\d) \| ([a-z ]+) \|", PAGE, re.MULTILINE)}
    assert told == EXIT_CODES | {"wrong input": 2}
