"""Ten million samples: roles are drawn within a bounded memory, and whoever leads a run knows shards alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SHARDS, EACH = 200, 50_000
SCRIPT = """
import json, resource, sys, time
import numpy as np, pyarrow as pa
from pipelines.config.sections.data import DataConfig
from pipelines.data.draw.draw import draw
from pipelines.data.scan.losses import Tally
from pipelines.data.scan.scan import Scan, ScannedShard
from pipelines.data.draw.splits import Splits
from pipelines.files import storage

place, shards, each = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
roles = {name: {"from": "pool", "count": 1_000_000} for name in ("target-member", "target-nonmember")}
config = DataConfig.model_validate(
    {"sources": {"pool": {"kind": "shards", "path": place}}, "image_size": 8, "roles": roles}
)
found = []
for shard in range(shards):
    path = f"{place}/scan/pool/{shard:06d}.parquet"
    pixels = np.random.default_rng(shard).bytes(32 * each)
    table = {
        "key": pa.array([f"{shard:06d}{row:06d}" for row in range(each)]),
        "label": pa.nulls(each, pa.int64()),
        "sha256": pa.FixedSizeBinaryArray.from_buffers(pa.binary(32), each, [None, pa.py_buffer(pixels)]),
    }
    storage.write_table(path, pa.table(table))
    found.append(ScannedShard("pool", f"{shard:06d}", path, each))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
started, spent = time.perf_counter(), time.process_time()
splits = draw(config, Scan(f"{place}/scan", tuple(found), {}, Tally(shards * each, (), {})), 0, f"{place}/seed-0")
drawn = {"seconds": time.perf_counter() - started, "cpu": time.process_time() - spent}
drawn |= {"before_mb": before, "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}
drawn |= {"counts": splits.counts(), "rules": len(storage.read_bytes(f"{place}/seed-0/splits/roles.json"))}
print(json.dumps(drawn))
"""
LOADING = """
import json, resource, sys
from pipelines.data.draw.splits import Splits
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
splits = Splits.load(f"{sys.argv[1]}/seed-0")
whole = sum(splits.size(*place, ["target-member"]) for place in splits.sums.shards)
print(json.dumps({"members": whole, "more_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before}))
"""


def said(script: str, *arguments: str) -> dict[str, float]:
    found = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=True)
    told: dict[str, float] = json.loads(found.stdout.splitlines()[-1])
    return told


@pytest.mark.slow
def test_ten_million_samples(tmp_path: Path) -> None:
    drawn = said(SCRIPT, str(tmp_path), str(SHARDS), str(EACH))
    assert drawn["counts"] == {"target-member": 1_000_000, "target-nonmember": 1_000_000}
    assert drawn["rules"] < 20_000  # bytes
    assert drawn["peak_mb"] < 4000  # of one process that does the work of all tasks, the database's 2 GB included
    loaded = said(LOADING, str(tmp_path))
    assert loaded["members"] == 1_000_000
    assert loaded["more_mb"] < 50
