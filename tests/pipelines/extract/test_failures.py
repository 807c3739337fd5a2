"""What happens when the world fails: damaged data of every kind, a full disk, a shard that goes away."""

from __future__ import annotations

import errno
import io
import os
import shutil
import subprocess
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from mi_core.checks import ConfigError, NumericError
from mi_core.features.embedding import LpNorm
from pipelines.audit import run as audit
from pipelines.config.run_config import RunConfig
from pipelines.data.draw.splits import Splits
from pipelines.errors import UserError, fault_of_user
from pipelines.extract.actor.attempts import Unpaid
from pipelines.plan.load import parse
from pipelines.run.folder import RunFolder
from pipelines.run.registration import registered_nonce
from tests.pipelines import staged
from tests.pipelines.columns import columns
from tests.pipelines.extract.test_run import assert_same, chunk_files, config_with, extraction, parquet_contents
from tests.pipelines.tars import image_bytes, shard_bytes

pytestmark = pytest.mark.ray

ROLES = ("target-member", "target-nonmember", "known-member", "known-nonmember")


def run_on(data: str, count: int, **sections: Any) -> RunConfig:
    """A fresh encoder queried with images of shards."""
    return parse(
        {
            "name": "failures",
            "data": {
                "sources": {"pool": {"kind": "shards", "path": data}},
                "image_size": 8,
                "max_rejected": 0.7,
                "roles": {role: {"from": "pool", "count": count} for role in ROLES},
            },
            "encoders": {"target": {"load": "checkpoint:conv4", "fresh": True}},
            "queries": {"chunk": 8, "outputs": ["backbone"]},
            "attacks": [{"attack": "lpla", "target": "target", "reference": "known"}],
            "resources": {"encoder_actors": 1, "actor_cpus": 0.5},
            **sections,
        },
        "failures.yaml",
    )


def raw_tar(members: list[tuple[bytes, bytes]]) -> bytes:
    """A tar with names of any bytes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name, content in members:
            info = tarfile.TarInfo(name.decode("utf-8", "surrogateescape"))
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def png_claiming(width: int, height: int) -> bytes:
    """A small PNG file whose header claims many pixels, and whose data would unpack to that many."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return len(content).to_bytes(4) + kind + content + zlib.crc32(kind + content).to_bytes(4)

    header = width.to_bytes(4) + height.to_bytes(4) + bytes([8, 0, 0, 0, 0])
    packed = zlib.compress(bytes(width + 1) * min(height, 2000), 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")


def test_every_kind_of_bad_input_is_listed_and_the_rest_is_queried(local_ray: None, tmp_path: Path) -> None:
    bad = {
        b"../../evil.png": image_bytes(100),
        b"not\xffutf8.png": image_bytes(101),
        b"huge.png": png_claiming(60_000, 60_000),
        b"bomb.png": png_claiming(9_000, 12_000),
        b"text.txt": b"no image",
        b"cut.png": image_bytes(102)[:60],
        b"empty.png": b"",
    }
    good = [(b"good%02d.png" % number, image_bytes(number)) for number in range(30)]
    repeated = [(b"good00.png", image_bytes(103))]  # members out of order: its key came before
    data = tmp_path / "data"
    data.mkdir()
    (data / "a.tar").write_bytes(raw_tar([*good[:10], *bad.items(), *repeated, *good[10:]]))
    (data / "empty.tar").write_bytes(b"")
    (data / "cut.tar").write_bytes(shard_bytes(range(200, 220))[:-11_000])
    config = run_on(str(data / "*.tar"), 7)
    folder = tmp_path / "run"
    config = config.with_queries(nonce=registered_nonce(staged.query(config, folder)))
    rejected = {(one.shard, one.key): one.reason for one in Splits.load(str(folder / "seed-0")).rejected}
    told = {
        ("a", "../../evil"): "leads out",
        ("a", "not\\udcffutf8"): "not UTF-8",
        ("a", "huge"): "pixels",
        ("a", "bomb"): "pixels",
        ("a", "text"): "no image",
        ("a", "cut"): "",
        ("a", "empty"): "empty",
        ("a", "good00"): "twice",
        ("empty", ""): "empty",
        ("cut", ""): "about 18 samples lost, estimated from the undamaged shards",
        ("cut", "s0219"): "damaged after this sample",
    }
    assert set(rejected) == set(told)
    for place, word in told.items():
        assert word in rejected[place], rejected[place]
    assert len(columns(config, RunFolder(str(folder)).seed(0), "target", 0, "backbone", [LpNorm()], ROLES).ids) == 28
    assert not list(tmp_path.parent.glob("evil*"))
    assert {path.name for path in tmp_path.iterdir()} == {"data", "run"}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own that is soon full."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = shutil.which("mount")
    if mount is None or os.geteuid() != 0:
        pytest.skip("needs root to mount a file system")
    done = subprocess.run(
        [mount, "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(place)], check=False, capture_output=True
    )
    if done.returncode:
        pytest.skip(f"mounting is not permitted: {done.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.slow
def test_a_full_disk_is_one_line_and_what_was_committed_is_kept(
    trained_run: Path, finished_run: Path, small_disk: Path
) -> None:
    folder = small_disk / "run"
    shutil.copytree(trained_run, folder)
    config = config_with(queries={"views": 4, "chunk": 8})
    filler = small_disk / "filler"
    filler.write_bytes(bytes(shutil.disk_usage(small_disk).free - 400 * 1024))
    with pytest.raises((UserError, OSError)) as caught:  # a worker's, or the driver's own
        extraction(folder, config)
    assert "No space left on device; what was committed is kept" in str(fault_of_user(caught.value))
    committed = chunk_files(folder)
    assert committed
    for path in committed:
        pq.read_table(path)  # whole, or not there
    assert not list(folder.rglob(".tmp-*"))
    filler.unlink()
    extraction(folder, config)
    reference = folder.parent / "reference"
    shutil.copytree(trained_run, reference)
    extraction(reference, config)
    assert_same(parquet_contents(folder), parquet_contents(reference))


@pytest.mark.slow
def test_a_shard_that_goes_away_ends_the_run_and_coming_back_it_goes_on(local_ray: None, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for name in ("a", "b"):
        start = 100 * (name == "b")
        (data / f"{name}.tar").write_bytes(shard_bytes(range(start, start + 30)))
    config = run_on(str(data / "{a,b}.tar"), 15)
    folder = tmp_path / "run"
    audit.run(config, str(folder), last="pretrain")
    (data / "b.tar").rename(tmp_path / "b.tar")
    with pytest.raises(UserError, match=r"b\.tar"):
        audit.run(config, str(folder), last="extract")
    (data / "b.tar").write_bytes((tmp_path / "b.tar").read_bytes()[:9000])
    with pytest.raises(UserError, match=r"pool, shard b: damaged at byte"):
        audit.run(config, str(folder), last="extract")
    shutil.copy(tmp_path / "b.tar", data / "b.tar")
    audit.run(config, str(folder), last="extract")
    config = config.with_queries(nonce=registered_nonce(RunFolder(str(folder))))
    found = columns(config, RunFolder(str(folder)).seed(0), "target", 0, "backbone", [LpNorm()], ROLES)
    assert len(set(found.ids.tolist())) == 60


@pytest.mark.parametrize(
    "fault",
    [
        UserError("a file is no image"),
        Unpaid("the budget is spent"),
        ConfigError("views = 1"),
        NumericError("image 3 is not finite"),
        OSError(errno.ENOSPC, "No space left on device", "/data/run"),
    ],
    ids=lambda fault: type(fault).__name__,
)
def test_a_fault_of_a_task_is_told_without_its_traceback(local_ray: None, fault: Exception) -> None:
    """Ray raises a class of its own, whose text is the traceback, with codes of colours."""
    import ray

    @ray.remote(num_cpus=0)
    def fail() -> None:
        raise fault

    with pytest.raises(type(fault)) as caught:
        ray.get(fail.remote())
    told = fault_of_user(caught.value)
    assert told == fault_of_user(fault) and told is not None
    assert "Traceback" not in told and "\x1b" not in told and "line " not in told
