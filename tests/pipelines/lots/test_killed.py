"""Lots and claims whose process is killed: they go on where they stopped, and nothing is drawn or asked twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from mi_core.encoders import build_backbone
from pipelines.files import storage
from pipelines.lots.verify import verify_claim
from tests.pipelines.lots.test_lots import members, tar_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
SHARDS, EACH = 8, 60


def run(arguments: list[str | Path], folder: Path | None = None, files: int = 0) -> str:
    """Run a command; with a folder it is killed with -9 when so many files are in it."""
    command = [sys.executable, "-m", "pipelines.cli", *map(str, arguments)]
    environment = {**os.environ, "RAY_ADDRESS": "local"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    while folder is not None and process.poll() is None:
        if len(stamps(folder)) >= files:
            os.kill(process.pid, signal.SIGKILL)
        time.sleep(0.02)
    said = process.communicate()[0]
    assert process.returncode == (0 if folder is None else -signal.SIGKILL), said
    return said


def stamps(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*.*") if not path.name.startswith(".")}


def test_a_lot_and_a_claim_of_many_shards_survive_being_killed(tmp_path: Path) -> None:
    for number in range(SHARDS):
        tar_of(tmp_path / "shards" / f"s-{number}.tar", range(EACH * number, EACH * (number + 1)))
    place = tmp_path / "lot"
    vault = place / "vault" / "release-001"
    draw: list[str | Path] = ["lot", tmp_path / "shards", "--out", place]
    run(draw, vault / "images", 2)
    read = stamps(vault / "images")
    assert not (vault / "header.json").exists()
    run(draw, vault / "done", 2)
    coins, done = (vault / "draw.json").read_bytes(), stamps(vault / "done")
    assert read.items() <= stamps(vault / "images").items()
    run(draw)
    assert (vault / "draw.json").read_bytes() == coins
    assert done.items() <= stamps(vault / "done").items()
    kept = {f"s-{number}.tar": members(tmp_path / "shards" / f"s-{number}.tar") for number in range(SHARDS)}
    for name, whole in kept.items():
        shown, back = members(place / "published" / name), members(vault / "held-back" / name)
        assert shown | back == whole and not shown.keys() & back.keys()
    torch.manual_seed(0)
    torch.save(build_backbone("resnet8-narrow", 3, 32).state_dict(), tmp_path / "weights.pt")
    ask: list[str | Path] = ["claim", place, "--encoder", "checkpoint:resnet8-narrow", "--weights"]
    ask += [tmp_path / "weights.pt", "--size", "8"]
    claims = place / "vault" / "claims"
    run(ask, claims, 4)
    answers = {path: stamp for path, stamp in stamps(claims).items() if "answers" in path}
    assert 0 < len(answers) < SHARDS
    assert "NOT SHOWN" in run(ask)
    assert answers.items() <= stamps(claims).items()
    (statement,) = (place / "claims").glob("*/statement.json")
    assert storage.read_json(str(statement))["result"]["asked"] == SHARDS * EACH
    assert all(check.outcome != "FAILS" for check in verify_claim(str(statement)))
