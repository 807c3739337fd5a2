"""Time and memory of a lot and a claim on many small images, killed and resumed on the way.

``python -m docs.studies.lots_scale RESULT.json FOLDER [IMAGES]`` writes 1,000,000 noisy JPEGs of 32 x 32 pixels in
shards of 10,000 below FOLDER, draws a lot of them, and asks a small untrained encoder about all, with two views of
each. The draw and the claim are each killed once, at a third of their parts, and started again. Nothing may be drawn or
asked twice.
"""

from __future__ import annotations

import io
import json
import os
import resource
import signal
import subprocess
import sys
import tarfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from docs.studies.shared import ROOT
from mi_core.encoders import build_backbone
from pipelines.files.digest import digest

SHARD = 10_000


def write_shard(path: Path, number: int) -> None:
    """A tar of small JPEGs, each a smooth picture of its own."""
    rng = np.random.default_rng(number)
    with tarfile.open(path, "w") as tar:
        for row in range(SHARD):
            blocks = rng.integers(0, 256, (4, 4, 3), dtype=np.uint8)
            buffer = io.BytesIO()
            Image.fromarray(blocks).resize((32, 32), Image.Resampling.BILINEAR).save(buffer, "JPEG", quality=85)
            info = tarfile.TarInfo(f"{number:04d}{row:05d}.jpg")
            info.size = buffer.tell()
            buffer.seek(0)
            tar.addfile(info, buffer)


def timed(arguments: list[str], folder: Path, kill_at: int | None = None) -> dict[str, Any]:
    """Run a command, killed with -9 when a folder has so many files; seconds and the driver's peak memory."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "pipelines.cli", *arguments]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if kill_at is not None:
        while process.poll() is None and count(folder) < kill_at:
            time.sleep(0.5)
        os.kill(process.pid, signal.SIGKILL)
    said = process.communicate()[0]
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**10
    told = {"seconds": round(time.perf_counter() - began), "peak_mb_of_any_driver_so_far": round(peak)}
    return told | {"code": process.returncode, "parts": count(folder), "said": said[-2000:]}


def count(folder: Path) -> int:
    return sum(1 for path in folder.rglob("*") if path.is_file()) if folder.exists() else 0


def stamps(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def main(result: str, place: str, images: int = 1_000_000) -> None:
    folder, shards = Path(place), images // SHARD
    (folder / "shards").mkdir(parents=True, exist_ok=True)
    paths = [folder / "shards" / f"s-{number:04d}.tar" for number in range(shards)]
    with ProcessPoolExecutor(2) as pool:
        missing = [number for number, path in enumerate(paths) if not path.exists()]
        list(pool.map(write_shard, [paths[number] for number in missing], missing))
    torch.manual_seed(0)
    weights = folder / "weights.pt"
    torch.save(build_backbone("resnet8-narrow", 3, 32).state_dict(), weights)
    lot, told = folder / "lot", dict[str, Any](images=images, shards=shards)
    vault = lot / "vault" / "release-001"
    draw = ["lot", str(folder / "shards"), "--out", str(lot)]
    ask = ["claim", str(lot), "--encoder", "checkpoint:resnet8-narrow", "--weights", str(weights), "--size", "32"]
    ask += ["--views", "2"]

    def keep(name: str, found: dict[str, Any]) -> None:
        told[name] = found
        print(name, found, flush=True)  # noqa: T201
        Path(result).write_text(json.dumps(told, indent=1) + "\n")

    keep("lot, killed while it reads", timed(draw, vault / "images", shards // 3))
    read = stamps(vault / "images")
    keep("lot, killed while it writes", timed(draw, vault / "done", shards // 3))
    told["parts read twice"] = sum(stamps(vault / "images")[path] != stamp for path, stamp in read.items())
    coins, written = digest(json.loads((vault / "draw.json").read_text())), stamps(vault / "done")
    keep("lot, to its end", timed(draw, vault / "done"))
    told["drawn twice"] = coins != digest(json.loads((vault / "draw.json").read_text()))
    told["parts written twice"] = sum(stamps(vault / "done")[path] != stamp for path, stamp in written.items())
    claims = lot / "vault" / "claims"
    keep("claim, killed", timed(ask, claims, shards // 3))
    answers = {path: stamp for path, stamp in stamps(claims).items() if "answers" in path}
    keep("claim, to its end", timed(ask, claims))
    told["parts asked twice"] = sum(stamps(claims)[path] != stamp for path, stamp in answers.items())
    (statement,) = (lot / "claims").glob("*/statement.json")
    keep("verify", timed(["verify", str(statement)], claims))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
