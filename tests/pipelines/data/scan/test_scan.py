"""A scan is kept shard by shard: what was read is not read again, what changed is."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from mi_core import image_files
from mi_core.image_files import lacking, readable
from pipelines.config.sections.data import DataConfig
from pipelines.data.draw.draw import draw
from pipelines.data.read.sources import Source
from pipelines.data.scan import scan as scanning
from pipelines.data.scan.scan import LISTED, Scan, scan, scan_item, usable
from pipelines.errors import Unavailable, UserError, unavailable_in
from pipelines.files import storage, stores
from tests.conftest import S3_BUSY
from tests.pipelines.tars import image_bytes, shard_bytes, tar_bytes

SHARDS = 6


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """A folder of six shards of five images."""
    folder = tmp_path / "shards"
    folder.mkdir()
    for number in range(SHARDS):
        (folder / f"{number:03d}.tar").write_bytes(shard_bytes(range(5 * number, 5 * number + 5)))
    return folder


def config_of(shards: Path, **settings: Any) -> DataConfig:
    """A source ``pool`` and two roles."""
    roles = {name: {"from": "pool", "count": 5} for name in ("target-member", "target-nonmember")}
    sources = {"pool": {"kind": "shards", "path": str(shards)}}
    return DataConfig.model_validate({"sources": sources, "image_size": 8, "roles": roles, **settings})


def scanned(config: DataConfig, folder: Path) -> tuple[Scan, list[str]]:
    """A scan kept in a folder, and the shards that it read."""
    read: list[str] = []

    def counted(
        function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], *, title: str, memory: int = 0
    ) -> list[Any]:
        if function is scan_item:
            read.extend(work.item.name for work, *_ in arguments)
        return [function(*given) for given in arguments]

    return scan(config, str(folder), counted), read


def samples(found: Scan) -> pa.Table:
    """All that a scan kept."""
    return pa.concat_tables(pq.read_table(shard.path) for shard in found.shards)


def test_what_was_read_is_not_read_again(shards: Path, tmp_path: Path) -> None:
    config = config_of(shards, near_duplicates={}, max_rejected=1)
    (shards / "003.tar").write_bytes(b"no tar")
    first, read = scanned(config, tmp_path / "scan")
    assert read == [f"{number:03d}" for number in range(SHARDS)]
    again, read = scanned(config, tmp_path / "scan")
    assert read == ["003"]  # damage may have been a fault of the network
    fresh = scan(config)
    assert samples(again).equals(samples(first))
    assert samples(again).equals(samples(fresh))
    assert again.tally == first.tally == fresh.tally


def test_a_shard_without_receipt_or_written_again_is_read(shards: Path, tmp_path: Path) -> None:
    config = config_of(shards)
    scanned(config, tmp_path / "scan")
    (receipt,) = (tmp_path / "scan" / "pool").glob("002-*.json")
    receipt.unlink()
    (shards / "004.tar").write_bytes(shard_bytes(range(100, 103)))
    found, read = scanned(config, tmp_path / "scan")
    assert read == ["002", "004"]
    assert samples(found).equals(samples(scan(config)))
    assert found.usable == {"pool": 28}


def test_a_shard_is_read_anew_once_a_format_that_it_lacked_can_be_read(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was drawn from it before stands: the samples found now are kept beside."""
    picture = io.BytesIO()
    Image.new("RGB", (8, 8)).save(picture, "WEBP")
    broken = [(f"b{number}.png", b"") for number in range(LISTED)]
    (shards / "002.tar").write_bytes(tar_bytes([*broken, ("x.webp", picture.getvalue()), ("y.png", image_bytes(0))]))
    config = config_of(shards, max_rejected=1)
    there = readable()
    for module in (image_files, scanning):
        monkeypatch.setattr(module, "readable", lambda: tuple(name for name in there if name != "WEBP"))
    first, _ = scanned(config, tmp_path / "scan")
    assert scanned(config, tmp_path / "scan")[1] == []
    monkeypatch.undo()
    second, read = scanned(config, tmp_path / "scan")
    assert read == ["002"]
    assert [shard.rows for shard in first.shards] == [5, 5, 1, 5, 5, 5]
    assert [shard.rows for shard in second.shards] == [5, 5, 2, 5, 5, 5]
    assert samples(first).num_rows == 26  # at their place
    third, read = scanned(config, tmp_path / "scan")
    assert (read, third) == ([], second)


def test_many_shards_list_fewer_samples_each(shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is listed of a source is bounded; what is counted stays."""
    for name in ("001", "004"):
        broken = [(f"{name}-{number}.png", b"") for number in range(4)]
        (shards / f"{name}.tar").write_bytes(tar_bytes([*broken, (f"{name}.png", image_bytes(int(name)))]))
    whole, _ = scanned(config_of(shards, max_rejected=1), tmp_path / "whole")
    assert [bad.lost for bad in whole.rejected] == [1] * 8
    for most, listed in ((2 * SHARDS, [1, 1, 2, 1, 1, 2]), (1, [1, 3, 1, 3])):
        monkeypatch.setattr(scanning, "LISTED_OF_SOURCE", most)
        found, _ = scanned(config_of(shards, max_rejected=1), tmp_path / f"scan-{most}")
        assert [bad.lost for bad in found.rejected] == listed
        assert (found.tally.lost, found.tally.used) == (whole.tally.lost, whole.tally.used)
        assert [(bad.shard, bad.key) for bad in found.rejected if bad.lost == 1] == [
            (name, f"{name}-{number}") for name in ("001", "004") for number in range(listed.count(1) // 2)
        ]


def test_problems_tell_which_formats_are_lacking() -> None:
    reason = "undecodable: HEIF is read by another package: pip install pillow-heif"
    assert lacking([reason, "undecodable: the file is empty"]) == ("HEIF",)


def test_a_key_counts_once_in_a_source(shards: Path, tmp_path: Path) -> None:
    """The first shard keeps it; the same key in another source is another sample."""
    (shards / "004.tar").write_bytes(shard_bytes(range(3, 8)))  # 3, 4 of shard 0 and 5 to 7 of shard 1
    other = tmp_path / "other"
    other.mkdir()
    (other / "000.tar").write_bytes(shard_bytes(range(5)))
    sources = {name: {"kind": "shards", "path": str(path)} for name, path in (("pool", shards), ("other", other))}
    roles = {"target-member": {"from": "pool", "count": 5}, "target-nonmember": {"from": "other", "count": 1}}
    config = DataConfig.model_validate({"sources": sources, "image_size": 8, "roles": roles, "max_rejected": 1})
    found, _ = scanned(config, tmp_path / "scan")
    assert found.usable == {"pool": 25, "other": 5}
    assert found.tally.used == 30
    assert [(bad.shard, bad.reason) for bad in found.rejected] == [
        ("004", f"shard {earlier} already has this key; if it is another image, set shard_in_key: true on the source")
        for earlier in ("000", "000", "001", "001", "001")
    ]


def test_shards_with_the_same_keys_are_kept_apart_on_request(shards: Path, tmp_path: Path) -> None:
    (shards / "004.tar").write_bytes(shard_bytes(range(3, 8)))
    plain = config_of(shards).model_dump()
    plain["sources"]["pool"]["shard_in_key"] = True
    found, _ = scanned(DataConfig.model_validate(plain), tmp_path / "scan")
    assert (found.usable, found.rejected) == ({"pool": 30}, ())
    keys = samples(found)["key"].to_pylist()
    assert keys[:2] == ["000/s0000", "000/s0001"]
    assert {"000/s0003", "004/s0003"} <= set(keys)
    assert len(set(keys)) == 30
    source = DataConfig.model_validate(plain).sources["pool"]
    item = Source(source).items()[4]
    assert [one.key for one in Source(source).read(item, {"004/s0005", "s0005"})] == ["004/s0005"]


def test_a_store_that_does_not_answer_is_no_damaged_shard(
    s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scan ends, one line says so, and the next one reads all; an object that is damaged is one in any case."""
    for number in range(2):
        storage.write_atomic(f"{s3}/busy-scan/{number}.tar", shard_bytes(range(5 * number, 5 * number + 5)))
    config = config_of(Path("x"), sources={"pool": {"kind": "shards", "path": f"{s3}/busy-scan"}}, max_rejected=1)
    item = Source(config.sources["pool"]).items()[1]
    monkeypatch.setattr(stores, "ATTEMPTS", 2)
    monkeypatch.setenv("AWS_CLIENT", "another")  # so that a new client is made
    try:
        S3_BUSY.extend([None] * 40)
        with pytest.raises(Unavailable, match=r"busy-scan/1.tar: unreadable.*503.*;.* run the same command again"):
            list(usable(config.sources["pool"], item, config.decoder()))
    finally:
        S3_BUSY.clear()
    assert scan(config, str(tmp_path / "scan")).usable == {"pool": 10}
    storage.write_atomic(f"{s3}/busy-scan/1.tar", shard_bytes(range(5))[:700])
    assert scan(config, str(tmp_path / "scan")).usable == {"pool": 5}


def test_what_does_not_answer_is_found_behind_what_ray_wraps_around_it() -> None:
    import ray

    for error in (Unavailable("busy"), UserError("wrong")):
        wrapped = ray.exceptions.RayTaskError("scan_item", "traceback", error)
        assert (unavailable_in(wrapped) == "busy") == isinstance(error, Unavailable)


def test_hashes_need_no_text(shards: Path) -> None:
    """Text of 64 characters overflows Arrow's 32-bit offsets at 33.5 million samples."""
    config = config_of(shards)
    found = scan(config)
    assert samples(found).schema.field("sha256").type == pa.binary(32)
    drawn = draw(config, found, 0)
    assert drawn.shard("pool", "000").schema.field("sha256").type == pa.binary(32)
    assert drawn.table.schema.field("sha256").type == pa.binary(32)
    for name in ("source", "item", "key"):
        assert drawn.table.schema.field(name).type == pa.large_string()


KILLED = """
import sys, time
from pathlib import Path
from pipelines.data.scan.scan import scan
from tests.pipelines.data.scan.test_scan import config_of

def slow(function, arguments, *, title, memory=0):
    found = []
    for given in arguments:
        found.append(function(*given))
        time.sleep(0.5)
    return found

scan(config_of(Path(sys.argv[1])), sys.argv[2], slow)
"""


def test_a_killed_scan_goes_on(shards: Path, tmp_path: Path) -> None:
    place = tmp_path / "scan"
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(shards), str(place)])
    while len(list(place.glob("pool/*.json"))) < 2 and process.poll() is None:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    done = len(list(place.glob("pool/*.json")))
    assert 2 <= done < SHARDS
    found, read = scanned(config_of(shards), place)
    assert len(read) == SHARDS - done
    assert samples(found).equals(samples(scan(config_of(shards))))
