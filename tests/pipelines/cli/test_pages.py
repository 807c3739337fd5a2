"""The committed pages are those that the docstrings make; none is missing or left over; their snippets are configs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from mi_core.attacks import ATTACKS
from mi_core.checks import ConfigError
from mi_core.defenses import DEFENSES
from mi_core.objectives import OBJECTIVES
from pipelines.cli import catalogue, listing, pages
from pipelines.config.encoders import DefendedConfig, TrainedConfig
from pipelines.config.load import parse
from pipelines.config.run_config import RunConfig
from pipelines.errors import UserError
from tests.conftest import small_config

ROOT = Path(__file__).parents[3]
CLASSIFIER = {"objective": "supervised", "parameters": {"classes": 10}, "augmentation": {}}
CLIP = {
    "objective": "clip",
    "parameters": {"projection_width": 16, "text_width": 16, "text_layers": 1, "text_heads": 2},
    "augmentation": {},
}


def snippets(path: str) -> list[str]:
    return re.findall(r"```yaml\n(.*?)```", (ROOT / path).read_text(), re.DOTALL)


def config_with(snippet: str, **target: Any) -> RunConfig:
    """A small config without known samples and shadows, with the lines of a page in it."""
    raw = small_config(attacks=[{"attack": "mean-cosine", "reference": "nonmembers"}])
    raw["data"]["sources"] = {"pool": {"kind": "digits"}}
    raw["data"]["roles"] = {role: {"from": "pool", "count": 500} for role in ("target-member", "target-nonmember")}
    if "attacks" not in yaml.safe_load(snippet):  # of a defense: the attack is not the page's
        raw["data"]["roles"]["known-nonmember"] = {"from": "target-nonmember", "count": 100}
    raw["encoders"]["target"] |= {"epochs": 30, "checkpoints": [], **target}
    raw["queries"]["outputs"] = ["backbone"]
    del raw["encoders"]["shadow"]
    return parse(merged(raw, yaml.safe_load(snippet)), "page")


def merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    both = {key for key in one if isinstance(one[key], dict) and isinstance(other.get(key), dict)}
    return {**one, **other, **{key: merged(one[key], other[key]) for key in both}}


def test_the_committed_pages_are_up_to_date() -> None:
    stale = [path for path, text in pages.pages().items() if not (ROOT / path).exists()]
    stale += [path for path, text in pages.pages().items() if (ROOT / path).exists() and read(path) != text]
    assert not stale, f"run `make pages`: {', '.join(stale)}"


def read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def test_every_method_has_a_page_and_no_page_is_left_over() -> None:
    there = {str(path.relative_to(ROOT)) for folder in pages.FOLDERS.values() for path in (ROOT / folder).rglob("*.md")}
    assert there | {f"pipelines/{catalogue.FILE}"} == set(pages.pages()), "run `make pages`"
    assert {f"mi_core/attacks/docs/{name}.md" for name in ATTACKS} <= there
    assert {f"mi_core/defenses/docs/{name}.md" for name in (*DEFENSES, "talos")} <= there
    assert set(pages.defenses()) - set(DEFENSES) == {
        name for name, objective in OBJECTIVES.items() if objective.target == "attribute"
    }


@pytest.mark.parametrize("name", ATTACKS)
def test_a_config_with_the_lines_of_an_attacks_page_is_valid(name: str) -> None:
    method = ATTACKS[name]
    target = {("logits",): CLASSIFIER, ("projection",): CLIP}.get(method.outputs or (), {})
    found = snippets(f"mi_core/attacks/docs/{name}.md")
    assert len(found) == len(method.reference)
    for snippet in found:
        config = config_with(snippet, **target)
        (attack,) = config.attacks
        assert attack.attack == name
        assert attack.parameters() == method.Parameters()  # the settings shown are the defaults


@pytest.mark.parametrize("name", pages.defenses())
def test_a_config_with_the_lines_of_a_defenses_page_is_valid(name: str) -> None:
    (snippet,) = snippets(f"mi_core/defenses/docs/{name}.md")
    if name in DEFENSES:
        served = config_with(snippet, **CLASSIFIER).encoders[f"target+{name}"]
        assert isinstance(served, DefendedConfig)
        assert served.method(0).parameters == DEFENSES[name].Parameters()
    else:
        target = config_with(snippet, parameters={}).encoders["target"]
        assert isinstance(target, TrainedConfig)
        assert target.objective == name


def test_links_lead_somewhere() -> None:
    for path in pages.pages():
        for link in re.findall(r"\]\(([^)]+)\)", read(path)):
            assert ((ROOT / path).parent / link).exists(), f"{path}: {link}"


@dataclass(frozen=True)
class Documented:
    """Settings.

    Args:
        one, two: of a pair; None: all
            of them.
    """

    one: int = 1
    two: int | None = None


@dataclass(frozen=True)
class Wider(Documented):
    """Settings beside these.

    Args:
        three: a number.
    """

    three: float = 1e-5


@dataclass(frozen=True)
class Silent(Documented):
    """Settings that say nothing of ``four``."""

    four: str = "x"


@dataclass(frozen=True)
class Wrong(Documented):
    """Settings.

    Args:
        five: is none.
    """


def test_settings_are_read_from_args() -> None:
    assert pages.settings_of(Wider) == [
        ("one", "int", "1", "of a pair; `null`: all of them."),
        ("two", "int or null", "null", "of a pair; `null`: all of them."),
        ("three", "float", "1.0e-05", "a number."),
    ]
    with pytest.raises(ValueError, match="Silent: Args says nothing of four"):
        pages.settings_of(Silent)
    with pytest.raises(ValueError, match="Wrong: Args tells of five, which is no setting"):
        pages.settings_of(Wrong)


def test_the_lists_print_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    listing.list_attacks("lpla")
    listing.list_defenses("talos")
    out = capsys.readouterr().out
    assert "Queries per image: 1\n" in re.sub(" +\n", "\n", out)
    assert "projection_width" in out
    assert "objective: talos" in out
    with pytest.raises(ConfigError, match="attack = 'lplo', allowed: "):
        listing.list_attacks("lplo")


def test_writing_removes_what_is_left_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="run make pages in the root of the repository"):
        pages.write()
    for folder in pages.FOLDERS.values():
        (tmp_path / folder / "docs").mkdir(parents=True)
        (tmp_path / folder / "__init__.py").touch()
    (tmp_path / "mi_core/attacks/docs/gone.md").touch()
    pages.write()
    made = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.suffix in (".md", ".json")}
    assert made == set(pages.pages())
