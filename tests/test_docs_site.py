"""The documentation site builds without a warning and loads nothing from elsewhere; links hold on GitHub too."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest
import yaml

from mi_core.attacks import ATTACKS
from mi_core.defenses import DEFENSES
from mi_core.encoders import ENCODERS

ROOT = Path(__file__).parents[1]
PAGES = [
    *("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "cluster/README.md", "pipelines/README.md"),
    *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "configs").rglob("*.md"))),
    *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").glob("*.md"))),
]
NOTEBOOKS = sorted(path.stem for path in (ROOT / "docs" / "notebooks").glob("*.ipynb"))
PACKAGES = ("attacks", "defenses", "features", "metrics", "validity", "encoders", "querying", "training")
LOADED = re.compile(
    r"<(?:script|img|iframe|source|embed)\b[^>]*\ssrc=[\"']?([^\"'\s>]+)|<link\b[^>]*\shref=[\"']?([^\"'\s>]+)"
    r"|url\([\"']?([^\"')]+)|@import\s+[\"']([^\"']+)"
)
LINK = re.compile(r"<a\b[^>]*\shref=[\"']?([^\"'\s>]+)")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site."""
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def loaded(text: str) -> Iterator[str]:
    """The addresses that a page or a style sheet loads by itself."""
    for found in LOADED.findall(text):
        yield from filter(None, found)


def elsewhere(address: str) -> bool:
    return re.match(r"(https?:)?//", address) is not None


@pytest.mark.slow
def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    for path in (*site.rglob("*.html"), *site.rglob("*.css")):
        far = [address for address in loaded(path.read_text(encoding="utf-8")) if elsewhere(address)]
        assert not far, f"{path.relative_to(site)} loads {far}"


@pytest.mark.slow
def test_links_of_the_site_lead_somewhere(site: Path) -> None:
    checked = set()
    for path in site.rglob("*.html"):
        if path.name == "404.html":  # its links are absolute
            continue
        for link in LINK.findall(path.read_text(encoding="utf-8")):
            target = unquote(urldefrag(unescape(link)).url)
            if target and not re.match(r"\w+:", target):
                checked.add((path.parent / target).resolve())
    assert len(checked) > 200
    assert not [path for path in checked if not path.is_file()]


@pytest.mark.slow
def test_every_method_is_on_the_site(site: Path) -> None:
    for name, methods in (("attacks", ATTACKS), ("defenses", (*DEFENSES, "talos")), ("encoders", ENCODERS)):
        text = (site / f"{name}.html").read_text(encoding="utf-8")
        assert not [method for method in methods if method not in text]
        assert "<code>" in text
    for method in ATTACKS.values():
        module = f"{method.__module__.replace('.', '/')}.html"
        assert f'id="{method.__module__}.{method.__name__}"' in (site / "reference" / module).read_text()


@pytest.mark.slow
def test_the_reference_shows_packages_parameters_fields_and_examples(site: Path) -> None:
    reference = site / "reference"
    assert all((reference / "mi_core" / package / "index.html").is_file() for package in PACKAGES)
    assert "order of the norm, 2 in the paper" in (reference / "mi_core/attacks/lpla.html").read_text()
    assert "encoder attacked" in (reference / "pipelines/config/sections/attacks.html").read_text()
    assert "&gt;&gt;&gt;" in (reference / "mi_core/attacks/encodermi.html").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_on_the_site_with_its_outputs(site: Path, name: str) -> None:
    page = (site / "notebooks" / f"{name}.html").read_text(encoding="utf-8")
    figures = re.findall(rf'src="({name}-\d+-\d+\.png)"', page)
    assert figures
    assert all((site / "notebooks" / figure).read_bytes().startswith(b"\x89PNG") for figure in figures)
    assert f'href="{name}.ipynb"' in page
    assert "encoder-audit 0." in page  # what a cell prints
    assert "<td>" in page  # what a cell shows as a table


def test_every_page_of_the_repository_is_on_the_site() -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert sorted(
        re.findall(r"\S+/\S+\.md|[A-Z]+\.md", text.partition("\nnav:")[2].partition("\ntheme:")[0])
    ) == sorted([*PAGES, *(f"notebooks/{name}.md" for name in NOTEBOOKS)])
    assert yaml.safe_load(text)["theme"]["font"] is False


@pytest.mark.parametrize("page", PAGES)
def test_links_on_github_lead_somewhere(page: str) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", (ROOT / page).read_text(encoding="utf-8")):
        if not re.match(r"https?:|#", link):
            assert ((ROOT / page).parent / urldefrag(link).url).exists(), f"{page}: {link}"
