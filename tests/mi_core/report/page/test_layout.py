"""The page in a browser as wide as a phone: nothing is cut, the answer comes first, letters can be read."""

from __future__ import annotations

import base64
import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from mi_core.report.figures.drawing import Drawing
from mi_core.report.model.report import report_from_json as typed
from mi_core.report.page.html import render_html
from tests.mi_core.report.conftest import make_asked

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--hide-scrollbars",
)
WIDTH, HEIGHT = 390, 844
MEASURE = """
const page = frame.contentDocument, seen = frame.contentWindow;
const clipped = one => { for (let up = one.parentElement; up; up = up.parentElement)
  if (seen.getComputedStyle(up).overflowX !== "visible") return true; return false; };
const beyond = [...page.querySelectorAll("body *:not(.skip)")].filter(one => {
  const box = one.getBoundingClientRect();
  return box.width && (box.right > seen.innerWidth + 0.5 || box.left < -0.5) && !clipped(one); });
const lines = one => one.getBoundingClientRect();
const texts = [...page.querySelectorAll("figure:not(.dots) svg text")].filter(one => lines(one).height);
const scale = one => one.ownerSVGElement.getBoundingClientRect().width / one.ownerSVGElement.viewBox.baseVal.width;
const size = one => parseFloat(seen.getComputedStyle(one).fontSize) * scale(one);
const found = {
  width: page.documentElement.scrollWidth, height: page.documentElement.scrollHeight,
  beyond: beyond.map(one => one.outerHTML.slice(0, 80)),
  sliding: [...page.querySelectorAll(".sheet")].filter(one => one.scrollWidth > one.clientWidth + 1
    && one.checkVisibility()).map(one => one.getAttribute("aria-label")),
  answer: Math.max(...[...page.querySelectorAll(".verdict .plain")].map(one => lines(one).bottom)),
  letters: Math.min(...texts.map(size)), texts: texts.length,
};
page.querySelectorAll("details").forEach(one => { one.open = true; });
found.columns = [...page.querySelectorAll(".keep-3 tr:first-child")].map(row =>
  [...row.children].filter(one => lines(one).width).length);
found.opened = page.documentElement.scrollWidth;
document.body.innerHTML = "<pre>" + btoa(unescape(encodeURIComponent(JSON.stringify(found)))) + "</pre>";
"""


def measured(page: str, folder: Path) -> dict[str, Any]:
    """What a browser makes of a page at the width of a phone: it is shown in a frame, which a script reads."""
    frame = f'<iframe width="{WIDTH}" height="{HEIGHT}" style="border: 0" srcdoc="{html.escape(page)}"></iframe>'
    script = f"const frame = document.querySelector('iframe'); frame.onload = () => {{{MEASURE}}};"
    (folder / "frame.html").write_text(f"<!DOCTYPE html><meta charset=utf-8><body>{frame}<script>{script}</script>")
    command = [str(BROWSER), *FLAGS, f"--user-data-dir={folder / 'profile'}", "--dump-dom"]
    shown = subprocess.run(
        [*command, (folder / "frame.html").as_uri()], check=True, capture_output=True, text=True, timeout=300
    )
    (found,) = re.findall(r"<pre>(\S+)</pre>", shown.stdout)
    read: dict[str, Any] = json.loads(base64.b64decode(found))
    return read


@pytest.mark.skipif(BROWSER is None, reason="no Chromium here")
def test_a_page_fits_a_phone(report: dict[str, Any], drawings: dict[str, Drawing], tmp_path: Path) -> None:
    asked = make_asked()
    asked["evidence"]["samples"][0]["top"][0]["id"] = "candidates/2019/" + "a-name-without-a-blank" * 4 + ".jpeg"
    for name, one in (("known", report), ("asked", asked)):
        (tmp_path / name).mkdir()
        found = measured(render_html(typed(one), drawings), tmp_path / name)
        assert found["beyond"] == []
        assert found["width"] == found["opened"] == WIDTH
        assert found["sliding"] == []
        assert found["answer"] < 2 * HEIGHT  # the answer, how sure, what it rests on, what it does not say
        assert found["height"] < 9.5 * HEIGHT
        assert found["texts"] > 10
        assert found["letters"] > 9
        assert min(found["columns"]) > 3  # the folds show all columns
