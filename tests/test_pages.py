"""Every block and every command of the pages: it is run, understood by what would run it, or listed with a reason."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
import tomllib
from dataclasses import is_dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch
import yaml
from sklearn.datasets import load_digits
from torch import nn

from mi_core.auditing import config_text
from mi_core.images import encode_png
from pipelines.config.reading.schema import schema
from tests.cluster.reading import ray_commands
from tests.pages import COMMANDS, ROOT, Block, blocks, commands, inline, understood
from tests.test_docs_site import PAGES

NOW = [page for page in PAGES if page != "CHANGELOG.md"]  # which tells of commands that are gone
BLOCKS = [block for page in NOW for block in blocks(page)]
AUDITS = dict.fromkeys(block.text for block in BLOCKS if "import audit\n" in block.text)  # two pages have the same
ELSEWHERE = {
    "docs/gate.md": "recipes of pipelines, which tests.test_gate_page reads",
    "docs/own-attack.md": "names what its own packages bring; tests.mi_core.test_plugins installs them",
}
"""Pages whose YAML another test reads."""
SCHEMA = schema()
NOT_RUN = {
    "aws": ("needs a cloud", "AWS|S3"),
    "sky": ("needs a cloud", "SkyPilot"),
    "docker": ("needs Docker", "Docker"),
    "kubectl": ("needs Kubernetes", "Kubernetes"),
    "sbatch": ("needs Slurm", "Slurm"),
    "ray": ("needs a cluster; its options are held against Ray's own command line", "cluster|head"),
    **dict.fromkeys(("cosign", "ssh-keygen"), ("needs a key", "Sign")),
    **dict.fromkeys(("pip", "python3"), ("installs what the tests run in", "")),
    **dict.fromkeys(("make", "python", "pytest"), ("takes minutes; targets, files and modules are there", "")),
    **dict.fromkeys((".", "export", "mkdir", "cp", "tail", "umask", "base64"), ("a word of the shell", "")),
}
"""Programs by what keeps the tests from running them, and the word by which the section around it has to say so."""
FAR = {"s3://": "bucket|S3", "submit": "cluster|head|Jobs API"}
"""What needs a place elsewhere in our own commands, and the words by which a section says so."""
OPTIONS = {"--help", "--exclusive", "--signal", "--env-file"}.union(  # all but the first of Slurm and Docker
    *([*one.opts, *one.secondary_opts] for command in COMMANDS.values() for one in command.params)
)
ABSENT = {"mlflow": "a service of others", "wandb": "a service of others", "my_attack": "the page's own"}
"""Modules of examples that are not installed for the tests."""


def in_language(*languages: str) -> Any:
    found = [block for block in BLOCKS if block.language in languages]
    return pytest.mark.parametrize("block", found, ids=lambda block: block.place)


def check(words: list[str]) -> None:
    """Hold a command against what would run it."""
    program, *rest = words
    named = [word for word in words if re.match(r"(?:configs|cluster|tests|docs|mi_core|pipelines)/", word)]
    assert not [name for name in named if not (ROOT / name).exists()], words
    if program == "encoder-audit":
        understood(rest)
    elif program == "ray" and rest[0] != "--version":
        assert {word for word in rest if word.startswith("--")} <= ray_commands()[rest[0]], words
    elif program == "make":
        targets = re.findall(r"(?m)^([\w-]+):", (ROOT / "Makefile").read_text())
        assert rest and set(rest) <= set(targets), words
    elif program == "python" and rest[0] == "-m":
        assert find_spec(rest[1]) is not None, words
    elif program == "python" and rest[0] == "-c":
        check_python(rest[1])


def check_python(code: str) -> None:
    """Modules and names that code imports are there, and what it calls of them takes what it gives."""
    tree, known = ast.parse(code), dict[str, Any]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            assert all(one.name in ABSENT or find_spec(one.name) for one in node.names), ast.unparse(node)
        elif isinstance(node, ast.ImportFrom) and node.module not in ABSENT:
            module = importlib.import_module(str(node.module))
            known |= {one.asname or one.name: getattr(module, one.name) for one in node.names}
    for node in ast.walk(tree):
        called = known.get(node.func.id) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else None
        if inspect.isfunction(called) or is_dataclass(called):
            assert isinstance(node, ast.Call)
            given = {str(one.arg): None for one in node.keywords}
            inspect.signature(called).bind(*node.args, **given)


def test_every_block_says_its_language() -> None:
    known = {"sh", "console", "python", "yaml", "toml", "text"}
    assert not [block.place for block in BLOCKS if block.language not in known]
    hidden = [block for block in BLOCKS if block.language == "text" and "encoder-audit " in block.text]
    assert not [block.place for block in hidden if re.search(r"(?m)^(\$ )?encoder-audit ", block.text)]


def needs(words: list[str]) -> list[str]:
    """Patterns of what the section around a command has to say."""
    far = [need for sign, need in FAR.items() if any(sign in word for word in words[1:])]
    return [*far, *([] if words[0] == "encoder-audit" else [NOT_RUN[words[0]][1]])]


@in_language("sh", "console")
def test_commands_of_a_block(block: Block) -> None:
    """A program that nobody put into the table fails."""
    if block.language == "sh" and " [" not in block.text:  # else a summary, no script
        subprocess.run(["bash", "-n"], input=block.text, text=True, check=True)
    for words in commands(block.text, block.language):
        assert words[0] == "encoder-audit" or words[0] in NOT_RUN, f"say in NOT_RUN why {words[0]} is not run"
        check(words)
        unsaid = [need for need in needs(words) if not re.search(need, block.section)]
        assert not unsaid, f"the section around {words} does not say that it needs one of {unsaid}"


@pytest.mark.parametrize("page", NOW)
def test_commands_and_options_in_running_text(page: str) -> None:
    for code in inline(page):
        program = code.partition(" ")[0]
        if program.startswith("--"):
            assert program in OPTIONS, code
        if program in {"encoder-audit", *NOT_RUN} and " " in code and "<" not in code:
            for words in commands(code):
                if " ".join(words[1:]) not in COMMANDS:  # else a name
                    check(words)


def test_the_page_of_commands_has_all_of_them() -> None:
    told = {words[1] for block in blocks("docs/commands.md") for words in commands(block.text) if len(words) > 1}
    assert told >= {name.partition(" ")[0] for name in COMMANDS if name}


@in_language("yaml")
def test_a_config_has_fields_that_exist(block: Block) -> None:
    values = yaml.safe_load(block.text)
    if block.page not in ELSEWHERE:
        jsonschema.validate(values, SCHEMA)


@in_language("toml")
def test_toml_is_read(block: Block) -> None:
    assert tomllib.loads(block.text)


@in_language("python")
def test_python_imports_what_is_there(block: Block) -> None:
    check_python(block.text)


@pytest.mark.parametrize("code", AUDITS, ids=["audit"])
def test_an_audit_from_python_runs(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code of a page, on digits of 8 pixels."""
    images = np.round(load_digits().images * (255 / 16)).astype(np.uint8)
    for folder, some in (("photos", images[:60]), ("others", images[60:180])):
        (tmp_path / folder).mkdir()
        for row, pixels in enumerate(some):
            (tmp_path / folder / f"{row}.png").write_bytes(encode_png(pixels))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(config_text, "EPOCHS", 2)
    torch.manual_seed(0)
    made: dict[str, Any] = {"model": nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 16))}
    exec(code.replace("size=224", "size=8"), made)
    assert made["found"].answer in (tmp_path / "report.html").read_text()


def test_the_leak_meter_of_the_page_runs() -> None:
    code = next(block.text for block in blocks("docs/audit.md") if "LeakMeter" in block.text)
    rng = np.random.default_rng(0)
    members, held_out = (rng.integers(0, 256, (120, 3, 8, 8), dtype=np.uint8) for _ in range(2))
    network = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 16))
    made = {"network": network, "members": members, "held_out": held_out, "epochs": 2, "train_one_epoch": lambda _: 0}
    exec(code.replace("size=32", "size=8"), made)
    assert made["meter"].epoch == 2
