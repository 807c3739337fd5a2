"""The commands of the pages, really typed: in a folder with a reader's images and config, in the order of the page.

Words that stand for something of the reader's are replaced; all else is as it stands on the page. `test_pages` holds
every command of every page against what would run it; these ones run.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import open_clip
import pytest
import torch
from safetensors.torch import save_file
from sklearn.datasets import load_digits

from mi_core.encoders import build_backbone
from mi_core.images import encode_png
from tests.pages import ROOT, blocks, commands

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

MINE, LAST = "runs/mine", "runs/last"
CONFIG = """
extends: quickstart
name: mine
encoders: {target: {epochs: 2}}
attacks: [{attack: [encodermi-t, lpla], target: target, reference: known}]
"""
NEEDED = {
    "quickstart": "tests.test_results runs it",
    "init": "it asks",
    "submit": "a cluster",
    "tune": "minutes; tests.pipelines.tune.test_run runs it",
    "forget": "an encoder before and after; tests.pipelines.report.test_forget runs it",
    "selftest": "minutes; tests.pipelines.audit.test_selftest runs it",
}
"""Commands by what they need that is not here, or the test that runs them."""
PAGES: dict[str, dict[str, str]] = {
    "docs/commands.md": {
        "CONFIG": "mine.yaml",
        "RUN": MINE,
        "IMAGES": "photos",
        "LOT": "lot",
        "KIND:NAME": "checkpoint:conv4",
        "STATEMENT": "runs/mine/statement.json",
        "SOURCE": "photos",
        "OUT": "shards",
        "PATH": "shards",
        "FOLDER|s3://...": "runs",
        "section.field=value": "queries.views=10",
    },
    "docs/gate.md": {},
    "docs/statement.md": {},
    "docs/lots.md": {"VALUE": "0f" * 32, "open_clip:ViT-B-32": "checkpoint:conv4"},
    "docs/running.md": {"runs/clip": MINE},
    "docs/cost.md": {},
    "docs/tutorial-clip.md": {},
}
"""Pages, and what their words stand for here."""
FURTHER = {"claim": ["--objective", "simclr", "--size", "32"]}
"""What a command takes besides for this encoder."""


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with photos, a file of weights, a config and its run, and another run."""
    place = tmp_path_factory.mktemp("reader")
    for row, image in enumerate(load_digits().images[:240]):
        album = place / ("photos" if row < 120 else "others") / f"album-{row // 15:02d}"
        album.mkdir(parents=True, exist_ok=True)
        pixels = np.kron(image * 15.9375, np.ones((4, 4))).astype("uint8")
        (album / f"{row:03d}.png").write_bytes(encode_png(pixels))
    (place / "mine.yaml").write_text(CONFIG)
    torch.save(build_backbone("conv4", 3, 32).state_dict(), place / "model.pt")
    clip = open_clip.create_model("ViT-S-32-alt").state_dict()
    save_file({name: weight.contiguous() for name, weight in clip.items()}, place / "open_clip_model.safetensors")
    (place / "configs").symlink_to(ROOT / "configs")
    for run, seed in ((MINE, 0), (LAST, 1)):
        type_command(place, ["audit", "mine.yaml", "--out", run, f"seeds=[{seed}]"])
    yield place


def type_command(place: Path, words: Sequence[str]) -> str:
    """What a command prints."""
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    environment["PYTHONPATH"] = str(ROOT)
    command = [sys.executable, "-m", "pipelines.cli", *words]
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, check=False, timeout=900)
    told = done.stdout + done.stderr
    ends = {0, 3, 4} if "--fail-on" in words else {0}  # of a gate
    assert done.returncode in ends, f"{' '.join(words)}\n{told[-2000:]}"
    assert "Traceback" not in told, told[-2000:]
    return told


def page_commands(page: str) -> list[list[str]]:
    """The commands of a page that can run here, in its order."""
    found = []
    for block in blocks(page):
        for program, *words in commands(block.text, block.language) if block.language in ("sh", "console") else ():
            if program != "encoder-audit" or words[0] in NEEDED or any(word.startswith("s3://") for word in words):
                continue
            stand = PAGES[page] | {"FILE": "model.pt" if words[0] == "claim" else f"{words[0]}.out"}
            stand |= {"NAME": {"attacks": "lpla", "defenses": "output-noise"}.get(words[1], "")} if words[1:] else {}
            shown = [stand.get(word, word) for word in words if word != "--open"]  # a browser
            if shown.count(MINE) == 2:  # two runs are compared
                shown[shown.index(MINE, shown.index(MINE) + 1)] = LAST
            found.append(shown + FURTHER.get(words[0], []))
    return found


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_run(page: str, reader: Path) -> None:
    for words in page_commands(page):
        type_command(reader, words)
