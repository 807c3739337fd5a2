"""Pages of results: every figure of a table stands in the JSON beside it, and every recipe of the papers is there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PAPERS = Path(__file__).parents[1] / "configs" / "papers"
PAGE = (PAPERS / "README.md").read_text()
INTERVAL = re.compile(r"(?<![\d.])-?(\.\d{2,3}) \[-?(\.\d{2,3}), -?(\.\d{2,3})\]")
ASIDE = {"ci95", "sd", "recall", "precision", "tpr_0.001_percent_as_published", "timings", "versions", "knowledge"}
FIGURE = re.compile(r"(?<![\d.])\.(\d{2,3})(?!\d)")
SECTIONS = {
    title: body for title, body in re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S) if "](results/" in body
}

STATED = ("the paper's claim", "what it resolves")
"""Columns of other figures than the run's."""


def cells(body: str) -> Iterator[str]:
    """The cells of a section's tables that hold figures of its run."""
    head: list[str] = []
    for line in body.splitlines():
        row = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        head = row if row and not head else head if row else []
        yield from (cell for name, cell in zip(head, row, strict=True) if name not in STATED)


def numbers(part: Any, *, values: bool = False) -> Iterator[float]:
    """Every number in some JSON, and what a defense takes of a number, also as a share of it.

    With ``values`` without bounds, spreads, and rates that no page tells.
    """
    if isinstance(part, dict) and part.keys() >= {"clean", "defended"}:
        clean, defended = (part[side]["value"] for side in ("clean", "defended"))
        yield from (clean - defended, (clean - defended) / clean)
    if isinstance(part, dict | list):
        kept = part.items() if isinstance(part, dict) else enumerate(part)
        for one in [one for name, one in kept if not (values and name in ASIDE)]:
            yield from numbers(one, values=values)
    elif isinstance(part, int | float) and not isinstance(part, bool):
        yield float(part)


def intervals(part: Any) -> Iterator[tuple[float, float, float]]:
    """Every value in some JSON with the ends of its interval."""
    if isinstance(part, dict):
        ends = part.get("ci95")
        if isinstance(ends, dict):
            yield from ((part[name], *ends[name]) for name in ends)
        elif ends is not None:
            yield (part["value"], *ends)
    if isinstance(part, dict | list):
        for one in part.values() if isinstance(part, dict) else part:
            yield from intervals(one)


def unknown_intervals(text: str, runs: list[Any]) -> list[str]:
    """Intervals of a text that stand in no run with their value."""
    known = [tuple(map(written, one)) for run in runs for one in intervals(run)]
    return [
        " ".join(found)
        for found in INTERVAL.findall(text)
        if not any(all(figure in one for figure, one in zip(found, ways, strict=True)) for ways in known)
    ]


def written(value: float) -> set[str]:
    """The ways in which a page rounds a number below 1, which the JSON has with four digits."""
    return {f"{abs(value) + slip:.{places}f}".removeprefix("0") for places in (2, 3) for slip in (-6e-5, 0, 6e-5)}


@pytest.mark.parametrize("title", SECTIONS)
def test_every_figure_of_a_table_is_in_its_results(title: str) -> None:
    """A run that is repeated changes the JSON, and then this page."""
    body = SECTIONS[title]
    runs = [json.loads((PAPERS / name).read_text()) for name in re.findall(r"\]\((results/[^)]+\.json)\)", body)]
    found = set().union(*(written(value) for value in numbers(runs)))
    told = [f".{digits}" for cell in cells(body) for digits in FIGURE.findall(cell)]
    assert told, title
    assert not unknown_intervals("\n".join(cells(body)), runs)
    assert not {figure for figure in told if figure not in found}


@pytest.mark.parametrize(
    ("title", "name", "kept", "least"),
    [
        ("Attacks on answers, and the one with the weights", "attacks-cifar10", "needed", 200),
        ("One score from all attacks", "combined-cifar10", "tests", 60),
        ("The momentum copy of MoCo v3", "white-box-cifar10", "needed", 24),
    ],
)
def test_a_table_of_attacks_is_in_its_results(title: str, name: str, kept: str, least: int) -> None:
    results = PAPERS.parent / "results"
    page = (results / "README.md").read_text()
    body = page[page.index(f"## {title}") :].split("\n## ")[0]
    run = json.loads((results / f"{name}.json").read_text())
    found = set().union(*map(written, numbers(run)))
    told = [f".{digits}" for cell in cells(body) for digits in FIGURE.findall(cell)]
    needed = {
        f"{count:,}" for entry in run["from_stored_scores"][kept] for count in (entry["needed"] or {}).values() if count
    }
    assert len(told) >= least
    assert not {figure for figure in told if figure not in found}
    counts = [cell for cell in cells(body) if re.fullmatch(r"[\d,]+( \[[\d,]+, [\d,]*\])?", cell)]
    assert counts
    assert not {one for cell in counts for one in re.findall(r"\d[\d,]*(?<!,)", cell) if one not in needed}


def every_line() -> str:
    """The tables of every table and figure of the papers."""
    return PAGE[PAGE.index("## Every table and figure") :].split("\n## ")[0]


def test_every_line_is_in_the_results_of_its_recipe() -> None:
    """What is said of each table and figure is in the JSON of its recipes; "as above" means those of the row above."""
    told, recipes, missed = 0, [""], []
    for row in [line.split("|") for line in every_line().splitlines() if re.match(r"\| \w", line)]:
        recipes = recipes if "as above" in row[5] else re.findall(r"`([^`]+)`", row[5])
        files = [PAPERS / "results" / f"{name.removesuffix('-cpu')}-cpu.json" for name in recipes]
        runs = [json.loads(path.read_text()) for path in files if path.exists()]
        said = row[3].replace("guessing", "")
        bare = [f".{digits}" for digits in FIGURE.findall(INTERVAL.sub("", said))]
        values = set().union(*(written(value) for run in runs for value in numbers(run, values=True)))
        missed += [(row[1], figure) for figure in bare if figure not in values]
        missed += [(row[1], one) for one in unknown_intervals(said, runs)]
        told += len(bare) + len(INTERVAL.findall(said))
    assert told > 100
    assert not missed


def test_the_table_of_a_young_clip_is_in_its_results() -> None:
    results = PAPERS.parent / "results"
    body = (results / "README.md").read_text().split("## The gradients of a young CLIP")[1].split("\n## ")[0]
    run = json.loads((results / "white-box-clip-cifar10.json").read_text())
    table = "\n".join(cells(body))
    assert len(INTERVAL.findall(table)) == 18
    assert not unknown_intervals(table, [run])


def test_every_recipe_of_the_papers_is_there() -> None:
    """Of every table and figure: the recipe, and its config for two cores."""
    table = every_line()
    rows = [line.split("|") for line in table.splitlines() if re.match(r"\| \w", line)]
    assert len(rows) > 30
    headings = {
        re.sub(r"[^\w -]", "", title).replace(" ", "-").lower() for title in re.findall(r"^## (.+)$", PAGE, re.M)
    }
    for row in rows:
        family = ""
        assert set(re.findall(r"\]\(#([^)]+)\)", row[5])) <= headings
        assert row[3].strip() or re.match(r" (data|drawn|not yet run)\b", row[4]), row
        for name in re.findall(r"`([^`]+)`", row[5]):
            family = family or name.rpartition("-")[0].partition("-")[0]
            recipe = f"{family}{name}" if name.startswith("-") else name
            assert (PAPERS / f"{recipe}.yaml").exists(), recipe
            if not recipe.endswith("-cpu") and not recipe.startswith(".."):
                assert (PAPERS / f"{recipe}-cpu.yaml").exists(), recipe
    recipes = {path.stem for path in PAPERS.glob("*.yaml") if not path.stem.endswith("-cpu")}
    named = {recipe for recipe in recipes if re.search(rf"`(\S*{recipe}|-{recipe.partition('-')[2]})`", table)}
    assert recipes <= named
