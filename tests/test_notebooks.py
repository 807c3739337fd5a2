"""The notebooks of docs/ keep the outputs of a whole run, show no machine, and find the same when run again."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urldefrag

import pytest
import yaml

from docs.studies.notebooks import FOLDER, METADATA, ROOT, executed

NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
MOST_BYTES = 400_000
MACHINE = re.compile(r"(?<![\w.])/(?:home|root|tmp|usr|opt|var|mnt|work|Users)/|\b[A-Z]:\\")
CLAIM = "claim"
"""Tag of the cells whose output must be the same in another run; figures of others differ with the machine."""
every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def cells(notebook: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == kind]


def outputs(notebook: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for cell in cells(notebook, "code"):
        yield from cell["outputs"]


def words(output: dict[str, Any]) -> str:
    """What an output says, without its figures."""
    texts = [output.get("text", ""), *(data for kind, data in output.get("data", {}).items() if "image" not in kind)]
    return "\n".join("".join(text) for text in texts)


def claims(notebook: dict[str, Any]) -> list[str]:
    tagged = [cell for cell in cells(notebook, "code") if CLAIM in cell["metadata"].get("tags", ())]
    return ["".join(map(words, cell["outputs"])) for cell in tagged]


@every_notebook
def test_the_outputs_of_a_whole_run_are_kept(path: Path) -> None:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    code = cells(notebook, "code")
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert all(cell["outputs"] for cell in code)
    assert claims(notebook), "a cell with the tag 'claim' says what the notebook finds"


@every_notebook
def test_nothing_went_wrong_and_no_machine_shows(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    notebook = json.loads(text)
    for output in outputs(notebook):
        assert output["output_type"] != "error"
        assert output.get("name") != "stderr", words(output)
        assert "Warning" not in words(output)
    assert not MACHINE.findall("".join(map(words, outputs(notebook))))
    assert notebook["metadata"] == METADATA
    assert not any("execution" in cell["metadata"] for cell in notebook["cells"]), "run without record_timing"
    assert len(text.encode()) < MOST_BYTES


@every_notebook
def test_its_links_lead_somewhere_and_readers_find_it(path: Path) -> None:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    text = "\n".join("".join(cell["source"]) for cell in cells(notebook, "markdown"))
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        assert (path.parent / urldefrag(link).url).exists(), link
    assert f"(docs/notebooks/{path.name})" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"notebooks/{path.stem}.md" in json.dumps(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])


@pytest.mark.slow
@pytest.mark.timeout(3000)
@every_notebook
def test_another_run_finds_the_same(path: Path, tmp_path: Path) -> None:
    assert claims(executed(path, tmp_path)) == claims(json.loads(path.read_text(encoding="utf-8")))
