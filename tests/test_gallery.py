"""The reports of docs/gallery.md say what the page quotes, show no machine, and come out the same when made anew."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import pytest

from docs.studies.gallery import FOLDER, ROOT, made
from tests.test_notebooks import MACHINE

ROWS = re.findall(
    r"(?m)^\| \[[^\]]+\]\(gallery/([\w-]+)\.html\) \| .* \| (.*) \|$", (ROOT / "docs/gallery.md").read_text()
)
MOST_BYTES, MOST_OF_PICTURE = 1_500_000, 80_000
VERDICTS = {
    **{name: name for name in ("leak", "no-evidence", "confounded", "undecided")},
    "leak-by-choice": "leak",
    "claim": "leak",  # the colour of what was used
}


def words(page: str) -> str:
    """What a reader sees."""
    bare = re.sub(r"<(style|svg)\b.*?</\1>", "", page, flags=re.S)
    return " ".join(unescape(re.sub(r"<[^>]+>", "", bare)).split())


def verdict(page: str) -> str:
    (found,) = re.findall(r'<section class="verdict ([\w-]+)"', page)
    return str(found)


def test_the_page_shows_what_the_reports_say() -> None:
    assert {name for name, _ in ROWS} == {path.stem for path in FOLDER.glob("*.html")} == VERDICTS.keys()
    for name, told in ROWS:
        page = (FOLDER / f"{name}.html").read_text(encoding="utf-8")
        assert verdict(page) == VERDICTS[name]
        assert all(quoted in words(page) for quoted in re.findall('"([^"]+)"', told)), name
        assert all(cases in words(page) for cases in re.findall(r"\d+ of \d+ cases", told)), name
        assert not MACHINE.findall(words(page))
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < MOST_BYTES
    assert "docs/gallery/leak.png" in (ROOT / "README.md").read_text()
    assert (FOLDER / "leak.png").stat().st_size < MOST_OF_PICTURE


@pytest.mark.slow
def test_reports_made_anew_have_the_same_verdicts(tmp_path: Path) -> None:
    made(tmp_path)
    assert {path.stem: verdict(path.read_text(encoding="utf-8")) for path in tmp_path.glob("*.html")} == VERDICTS
