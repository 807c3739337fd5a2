"""Makes the site from pages and docstrings where they stand in the repository; this folder holds no copy of them."""

from __future__ import annotations

import base64
import json
import os.path
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from pipelines.cli import listing

ROOT = Path(__file__).parents[1]
REFERENCE = ("mi_core", "pipelines/config")
"""Folders whose modules the reference shows."""
NOTEBOOKS = "docs/notebooks/"
LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)(#[^)\s]*)?\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the modules to the navigation."""
    assert config.nav is not None
    config.nav.insert(-1, {"Reference": [{folder.replace("/", "."): _entries(folder)} for folder in REFERENCE]})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the navigation, the files that they link to, and the pages that are made of docstrings."""
    made = {"attacks.md": _methods("attack"), "defenses.md": _methods("defense"), "encoders.md": _encoders()}
    for page in files.documentation_pages():  # of this folder: as all pages, they get their path from the root
        files.remove(page)
    modules = _modules()
    made |= {uri: f"---\ntitle: {name}\n---\n::: {name}\n" for name, uri in modules.items()}
    for path in sorted((ROOT / NOTEBOOKS).glob("*.ipynb")):
        made[f"notebooks/{path.stem}.md"], figures = _notebook(path)
        for name, content in figures.items():
            files.append(File.generated(config, f"notebooks/{name}", content=content))
    for uri, text in made.items():
        files.append(File.generated(config, uri, content=text))
    for uri in _pages(config.nav):
        if uri not in made:
            files.append(File.generated(config, uri, abs_src_path=str(ROOT / uri)))
            for target in _linked(uri):
                if (
                    target.suffix not in (".md", ".ipynb")
                    and _name(target) not in modules
                    and not files.get_file_from_path(str(target))
                ):
                    files.append(File.generated(config, str(target), abs_src_path=str(ROOT / target)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links to modules to their reference, to notebooks to their page, to folders to their README."""

    def pointed(match: re.Match[str]) -> str:
        path = _path(page.file.src_uri, match[1])
        name = _name(path)
        if name in modules:
            return f"][{name}]"
        if str(path).startswith(NOTEBOOKS):
            return f"]({os.path.relpath(f'notebooks/{path.stem}.md', Path(page.file.src_uri).parent)})"
        return f"]({match[1].rstrip('/')}/README.md{match[2] or ''})" if (ROOT / path).is_dir() else match[0]

    modules = _modules()
    return LINK.sub(pointed, markdown) + _frames(markdown)


def _frames(markdown: str) -> str:
    """The reports that a page links to, side by side."""
    shown = re.findall(r"\[([^\]]+)\]\((gallery/[^)]+)\)", markdown)
    frames = "".join(f'<iframe title="{title}" src="{place}" loading="lazy"></iframe>' for title, place in shown)
    return f'\n\n<div class="gallery">{frames}</div>\n' if frames else ""


def _linked(uri: str) -> Iterator[Path]:
    """Files of the repository that a page links to."""
    for match in LINK.finditer((ROOT / uri).read_text(encoding="utf-8")):
        path = _path(uri, match[1])
        if (ROOT / path).is_file():
            yield path


def _notebook(path: Path) -> tuple[str, dict[str, bytes]]:
    """The page of a notebook with its kept outputs, and its figures by name."""
    parts, figures = [], dict[str, bytes]()
    for number, cell in enumerate(json.loads(path.read_text(encoding="utf-8"))["cells"]):
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source.replace("](../../", "](../"))
            continue
        parts.append(f"```python\n{source}\n```")
        for place, output in enumerate(cell["outputs"]):
            kind, content = _output(output)
            if kind == "image/png":
                name = f"{path.stem}-{number}-{place}.png"
                figures[name] = base64.b64decode(content)
                content = f"![Figure that the code above draws]({name})"
            parts.append(content if kind.startswith(("image", "text/html")) else f"```text\n{content.rstrip()}\n```")
    title, _, rest = parts[0].partition("\n")
    told = f"This page is a notebook with its outputs: [take it]({path.name}) and run it yourself."
    return "\n\n".join([title, told, rest, *parts[1:]]), figures


def _output(output: Mapping[str, Any]) -> tuple[str, str]:
    """The best kind of an output that a page can show, and its content."""
    data = output.get("data", {"text/plain": output.get("text", "")})
    kind = next(kind for kind in ("image/png", "text/html", "text/plain") if kind in data)
    return kind, "".join(data[kind])


def _path(uri: str, link: str) -> Path:
    return Path(os.path.normpath(Path(uri).parent / link))


def _pages(nav: Any) -> Iterator[str]:
    """The paths in a navigation."""
    if isinstance(nav, str):
        yield nav
    for entry in nav.values() if isinstance(nav, dict) else nav if isinstance(nav, list) else ():
        yield from _pages(entry)


def _modules() -> dict[str, str]:
    """The page of every module in the reference, by the name of the module."""
    found = {}
    for folder in REFERENCE:
        for path in sorted((ROOT / folder).rglob("*.py")):
            place = path.relative_to(ROOT)
            found[_name(place)] = f"reference/{place.with_suffix('.md')}".replace("__init__", "index")
    return found


def _name(path: Path) -> str:
    return path.as_posix().removesuffix(".py").replace("/", ".").removesuffix(".__init__")


def _entries(folder: str) -> list[Any]:
    """The navigation of a package: its own page, its modules and its folders."""
    found: list[Any] = [f"reference/{folder}/index.md"]
    for path in sorted((ROOT / folder).iterdir()):
        if (path / "__init__.py").is_file():
            found.append({path.name: _entries(f"{folder}/{path.name}")})
        elif path.suffix == ".py" and path.stem != "__init__":
            found.append({path.stem: f"reference/{folder}/{path.stem}.md"})
    return found


def _methods(kind: str) -> str:
    """A page of all attacks or defenses."""
    parts = [f"# {kind.capitalize()}s"]
    methods = listing.methods(kind)
    for name, facts in listing.facts_in(kind).items():
        method = methods[name]
        told = "\n".join(f"- **{fact}**: {value}" for fact, value in facts.items() if fact != "settings")
        more = f"[Documentation][{_full_name(method)}], [parameters][{_full_name(method.Parameters)}]. In a config:"
        summary = str(method.__doc__).splitlines()[0]
        parts += [f"## {name}", summary, told, more, f"```yaml\n{listing.in_config(kind, name)}\n```"]
    return "\n\n".join(parts)


def _full_name(method: type[Any]) -> str:
    return f"{method.__module__}.{method.__name__}"


def _encoders() -> str:
    """A page of all encoders."""
    parts = ["# Encoders"]
    for heading, entries in listing.facts().items():
        if heading not in ("attack", "defense"):
            parts += [f"## {heading}", "\n".join(f"- **{name}**: {told['']}" for name, told in entries.items())]
    return "\n\n".join(parts)
