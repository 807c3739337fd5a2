"""Pages of results: every figure of a table stands in the JSON beside it, and every recipe of the papers is there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from docs.studies import tables

PAPERS = Path(__file__).parents[1] / "configs" / "papers"
PAGE = (PAPERS / "README.md").read_text()
INTERVAL = re.compile(r"(?<![\d.])-?(\.\d{2,3}) \[-?(\.\d{2,3}), -?(\.\d{2,3})\]")
ASIDE = {"ci95", "sd", "recall", "precision", "tpr_0.001_percent_as_published", "timings", "versions", "knowledge"}
FIGURE = re.compile(r"(?<![\d.])\.(\d{2,3})(?!\d)")
SECTIONS = {
    title: body for title, body in re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S) if "](results/" in body
}

PUBLISHED = {"clip-mia-bench", "dov4mm", "salmubench"}
"""Configs for large models of others, without a version for two cores."""
VERDICTS = ("agrees", "disagrees", "not resolved", "not comparable")
"""The words for a paper's claim, which the top of the page explains."""
JUDGED = re.compile(rf"(?:[^:]+: )?(?:{'|'.join(VERDICTS)})(?![\w-])")
"""One claim and its verdict, as the tables of every line have them."""
MARGIN = re.compile(r"(\.\d{3}) on either side")
SPREAD = re.compile(r"\bsd (\.\d{3})((?: / \.\d{3})*)")


def named_cells(body: str) -> Iterator[tuple[str, str]]:
    """The cells of a section's tables, with the names of their columns, below the first line."""
    head: list[str] = []
    for line in body.splitlines():
        row = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if row and head:
            yield from zip(head, row, strict=True)
        head = row if row and not head else head if row else []


def cells(body: str) -> Iterator[str]:
    """The cells of a section's tables."""
    yield from (cell for _, cell in named_cells(body))


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
            yield from ((value, *ends) for value in part.values() if isinstance(value, float))
    elif isinstance(part, list) and len(part) == 3 and all(isinstance(one, float) for one in part):
        yield (part[0], part[1], part[2])
    if isinstance(part, dict | list):
        for one in part.values() if isinstance(part, dict) else part:
            yield from intervals(one)


def unknown_intervals(text: str, runs: list[Any]) -> list[str]:
    """Intervals of a text that stand in no run with their value."""
    known = [tuple(map(written, one)) for run in runs for one in intervals(run)]
    return [" ".join(found) for found in INTERVAL.findall(text) if not any(map(_same, repeat(found), known))]


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


def test_the_tables_of_results_are_what_the_json_has() -> None:
    """``python -m docs.studies.tables`` writes them; every mark is read, and every JSON is named on the page."""
    text = tables.PAGE.read_text(encoding="utf-8")
    assert len(tables.MARKED.findall(text)) == text.count("<!-- table ") == text.count("<!-- end -->") > 25
    assert tables.page(text) == text
    assert not [path.name for path in tables.RESULTS.glob("*.json") if path.name not in text]


APART = {".807", ".761", ".858", ".486", ".785", ".147", ".030", ".913"}
"""Values with an interval in the text of results whose run has no JSON, or that are computed from it."""


def _same(told: tuple[str, ...], known: tuple[set[str], ...]) -> bool:
    return all(figure in ways for figure, ways in zip(told, known, strict=True))


def test_the_intervals_in_the_text_of_results_are_in_the_json_of_their_section() -> None:
    text, told = tables.PAGE.read_text(encoding="utf-8"), 0
    for body in text.split("\n## ")[2:]:
        runs = [tables.result(name) for name in re.findall(r"\]\(([\w-]+)\.json\)", body)]
        known = [tuple(map(written, one)) for one in intervals(runs)]
        known += [(value, high, low) for value, low, high in known]  # of a difference told the other way round
        prose = INTERVAL.findall(re.sub(r"(?m)^\|.*$", "", body)) if runs else []
        missed = [one for one in prose if one[0] not in APART and not any(map(_same, repeat(one), known))]
        told += len(prose)
        assert not missed, body[:40]
    assert told > 15


def every_line() -> str:
    """The tables of every table and figure of the papers."""
    return PAGE[PAGE.index("## Every table and figure") :].split("\n## ")[0]


class Line(NamedTuple):
    """A row of the tables of every line, with the runs of its recipes; "as above" means those of the row above."""

    name: str
    paper: str
    here: str
    seeds: str
    verdict: str
    recipe: str
    runs: list[Any]


def lines() -> Iterator[Line]:
    """Every table and figure of the papers."""
    recipes = [""]
    for row in [line.strip("|").split("|") for line in every_line().splitlines() if re.match(r"\| \w", line)]:
        told = [cell.strip() for cell in row]
        recipes = recipes if "as above" in told[-1] else re.findall(r"`([^`]+)`", told[-1])
        files = [PAPERS / "results" / f"{name.removesuffix('-cpu')}-cpu.json" for name in recipes]
        runs = [json.loads(path.read_text()) for path in files if path.exists()]
        name, paper, here, seeds, verdict, recipe = told
        yield Line(name, paper, here, seeds, verdict, recipe, runs)


def spreads(part: Any, name: str) -> Iterator[float]:
    """Every spread in some JSON: ``sd`` over seeds, or half the width of a ``ci95``."""
    if isinstance(part, dict):
        ends = part.get("ci95")
        for found in ends.values() if isinstance(ends, dict) else [ends]:
            if name == "ci95" and found is not None:
                yield (found[1] - found[0]) / 2
        if name == "sd" and "sd" in part:
            yield part["sd"]
    if isinstance(part, dict | list):
        for one in part.values() if isinstance(part, dict) else part:
            yield from spreads(one, name)


def unknown(said: str, runs: list[Any]) -> list[str]:
    """Figures of a text that stand in no run: values, intervals, half widths of intervals, and spreads over seeds."""
    margins = set().union(*(written(value) for value in spreads(runs, "ci95")))
    sds = set().union(*(written(value) for value in spreads(runs, "sd")))
    told = [figure for first, more in SPREAD.findall(said) for figure in (first, *more.split(" / ")[1:])]
    missed = [figure for figure in MARGIN.findall(said) if figure not in margins]
    missed += [figure for figure in told if figure not in sds]
    values = set().union(*(written(value) for value in numbers(runs, values=True)))
    bare = FIGURE.findall(INTERVAL.sub("", MARGIN.sub("", SPREAD.sub("", said))))
    return [*missed, *(f".{digits}" for digits in bare if f".{digits}" not in values), *unknown_intervals(said, runs)]


def test_every_line_is_in_the_results_of_its_recipe() -> None:
    """What is said of each table and figure is in the JSON of its recipes."""
    assert sum(len(FIGURE.findall(line.here)) for line in lines()) > 300
    assert not [(line.name, missed) for line in lines() if (missed := unknown(line.here, line.runs))]


def test_every_line_says_how_many_seeds() -> None:
    """The numbers of the column are those of its runs, and a row without a run has none."""
    for line in lines():
        kept = {row["seeds"] for run in line.runs for row in run["rows"]} if line.here else set()
        assert {int(one) for one in re.findall(r"\d+", line.seeds)} == kept, line.name
    assert "1" in {line.seeds for line in lines()}


def test_every_verdict_is_one_of_four_words() -> None:
    """They are explained before they are used, and every claim of a row that was run has one."""
    explained = re.findall(r"^\| ([a-z ]+) \| ", PAGE[: PAGE.index("| experiment ")], re.M)
    assert tuple(explained) == ("word", *VERDICTS)
    for line in lines():
        claims = line.verdict.split("; ")
        assert all(JUDGED.match(one) or one == "drawn in every report" for one in claims) if line.here else True, line


def test_no_projection_is_judged() -> None:
    """The papers attack the backbone; a projection stands in another column, or beside a line, without a verdict."""
    assert not [line.name for line in lines() if "projection" in line.here + line.verdict]


def test_the_first_table_is_in_the_results() -> None:
    """Its two columns of what was measured here, with the words for a claim."""
    table = PAGE[PAGE.index("| experiment ") :].split("\n\n")[0]
    runs = [json.loads(path.read_text()) for path in (PAPERS / "results").glob("*.json")]
    assert {cell for name, cell in named_cells(table) if name == "seeds"} - {"---"} == {"1", "3", "5"}
    said = [cell for name, cell in named_cells(table) if name.startswith(("here", "what also leaks"))]
    assert not unknown("\n".join(said), runs)
    assert all(JUDGED.match(cell) for cell in said if re.match("[a-z]", cell))


def test_talos_is_measured_against_the_plain_encoder() -> None:
    """The shares of what exceeds guessing, against the plain encoder and against lambda 0."""
    run = json.loads((PAPERS / "results" / "contrastiveleaks-talos-cifar10-cpu.json").read_text())
    pattern = r"(\d+) % and (\d+) % of what they have above guessing.*? it is (\d+) % and (\d+) %"
    told = re.search(pattern, " ".join(PAGE.split()))
    shares = []
    for target in ("plain", "0"):
        for variant, name in (("variant = linear", "linear"), ("variant = paper", "paper")):
            rows = [row for row in run["attribute_inference"] if variant in row["settings"]]
            found = {row["target"]: row["accuracy"]["value"] for row in rows}
            before = found["target-classifier"] if target == "plain" else run["from_seeds"]["means"][name]["0"]["value"]
            lost = before - found["target-talos-classifier"]
            shares.append(round(100 * lost / (before - rows[0]["majority"]["value"])))
    assert told is not None
    assert [int(share) for share in told.groups()] == shares


def test_the_steps_of_the_knowledge_matrix_are_counted() -> None:
    """How often one dimension more gives a higher accuracy on the backbone: ten times of twelve for T, nine for S."""
    run = json.loads((PAPERS / "results" / "encodermi-cifar10-knowledge-cpu.json").read_text())
    rises = {}
    for attack in ("encodermi-t", "encodermi-s"):
        rows = [row for row in run["rows"] if (row["attack"], row["output"]) == (attack, "backbone")]
        known = {frozenset(k for k, v in row["knowledge"].items() if v): row["accuracy"]["value"] for row in rows}
        steps = [(less, more) for less in known for more in known if less < more and len(more - less) == 1]
        assert len(steps) == 12
        rises[attack] = sum(known[more] > known[less] for less, more in steps)
    assert rises == {"encodermi-t": 10, "encodermi-s": 9}
    assert "rises in ten for T and in nine for S" in " ".join(PAGE.split())


def test_the_least_coverage_is_told() -> None:
    """Of all simulated settings, those too that the sample does not support."""
    results = PAPERS.parent / "results"
    settings = json.loads((results / "coverage.json").read_text())["cells"]
    least = min(cell["coverage"] for cell in settings)
    supported = [cell["coverage"] for cell in settings if cell["supported"]]
    row = next(line for line in (results / "README.md").read_text().splitlines() if line.startswith("| [Do intervals"))
    assert f"the least share of 95 % intervals that held the truth was .{round(100 * least)}" in row
    assert f"in the {len(supported)} settings that the sample supports it was .{round(1000 * min(supported))}" in row
    assert f".{round(1000 * least)} [" in (results / "README.md").read_text()


def test_every_recipe_of_the_papers_is_there() -> None:
    """Of every table and figure: the recipe, and its config for two cores."""
    table = every_line()
    assert len(list(lines())) > 30
    headings = {
        re.sub(r"[^\w -]", "", title).replace(" ", "-").lower() for title in re.findall(r"^## (.+)$", PAGE, re.M)
    }
    for line in lines():
        family = ""
        assert set(re.findall(r"\]\(#([^)]+)\)", line.recipe)) <= headings
        assert line.here or re.match(r"(data|drawn)\b", line.verdict), line.name
        for name in re.findall(r"`([^`]+)`", line.recipe):
            family = family or name.rpartition("-")[0].partition("-")[0]
            recipe = f"{family}{name}" if name.startswith("-") else name
            assert (PAPERS / f"{recipe}.yaml").exists(), recipe
            if not recipe.endswith("-cpu") and not recipe.startswith("..") and recipe not in PUBLISHED:
                assert (PAPERS / f"{recipe}-cpu.yaml").exists(), recipe
    recipes = {path.stem for path in PAPERS.glob("*.yaml") if not path.stem.endswith("-cpu")}
    named = {recipe for recipe in recipes if re.search(rf"`(\S*{recipe}|-{recipe.partition('-')[2]})`", table)}
    assert recipes <= named
