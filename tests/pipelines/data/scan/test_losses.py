"""Nothing is lost in silence: what was in the shards is used, or listed and counted, whatever befell them."""

from __future__ import annotations

import bz2
import gzip
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipelines.config.sections.data import DataConfig
from pipelines.data.scan import shards
from pipelines.data.scan.losses import Rejection
from pipelines.data.scan.scan import Scan, scan
from pipelines.errors import UserError
from pipelines.files import storage
from tests.pipelines.tars import shard_bytes
from tests.raising import refused

COUNT = 24  # samples of a whole shard
PIECE = 2048  # bytes of a sample in it: image and class with their headers
WHOLE = shard_bytes(range(COUNT))
OF_OTHERS = [shard_bytes(range(start, start + COUNT)) for start in range(COUNT, 6 * COUNT, COUNT)]


def zeroed(data: bytes, start: int, size: int = 512) -> bytes:
    return data[:start] + bytes(size) + data[start + size :]


def garbage(size: int) -> bytes:
    return (b"<html>503 Slow Down</html>" * size)[:size]


def scanned(folder: Path, *, max_rejected: float = 1.0, **settings: Any) -> Scan:
    source = {"kind": "shards", "path": str(folder), **settings}
    roles = {"target-member": {"from": "pool", "count": 1}}
    return scan(DataConfig(sources={"pool": source}, image_size=8, roles=roles, max_rejected=max_rejected))


def written(folder: Path, damaged: dict[str, bytes], *, whole: int = 5, ending: str = "tar") -> Path:
    folder.mkdir(exist_ok=True)
    for number, data in enumerate(OF_OTHERS[:whole]):
        (folder / f"w{number}.{ending}").write_bytes(data)
    for name, data in damaged.items():
        (folder / f"{name}.{ending}").write_bytes(data)
    return folder


def whole_shards(found: Scan) -> dict[str, Rejection]:
    return {bad.shard: bad for bad in found.rejected if not bad.key}


@dataclass(frozen=True)
class Case:
    """A damage, the samples that stay usable, and how far the estimate may be off."""

    damage: Callable[[bytes], bytes]
    usable: int
    basis: str
    off: int = 0


CASES = {
    "zero length": Case(lambda data: b"", 0, "other shards"),
    "garbage": Case(lambda data: garbage(300), 0, "other shards"),
    "garbage of full size": Case(lambda data: garbage(len(data)), 0, "other shards", off=5),
    "zeros": Case(lambda data: bytes(len(data)), 0, "other shards", off=5),
    "an empty tar": Case(lambda data: bytes(10240), 0, "other shards"),
    "cut at a member": Case(lambda data: data[: 12 * PIECE], 12, "other shards"),
    "cut inside a sample": Case(lambda data: data[: 12 * PIECE + 1024], 12, "other shards"),
    "cut inside a member": Case(lambda data: data[: 12 * PIECE + 600], 12, "other shards"),
    "a zeroed header": Case(lambda data: zeroed(data, 10 * PIECE), 10, "bytes", off=1),
    "a garbled header": Case(
        lambda data: data[: 16 * PIECE] + b"x" * 512 + data[16 * PIECE + 512 :], 16, "bytes", off=4
    ),
    "a zeroed first header": Case(lambda data: zeroed(data, 0), 0, "other shards", off=5),
}


@pytest.mark.parametrize("name", CASES)
def test_used_and_listed_add_up_to_what_was_there(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    found = scanned(written(tmp_path, {"bad": case.damage(WHOLE)}))
    assert found.tally.used == 5 * COUNT + case.usable
    bad = whole_shards(found)["bad"]
    assert bad.basis == case.basis
    assert bad.estimated
    assert f"about {bad.lost} samples lost" in bad.reason
    assert abs(found.tally.used + found.tally.lost - 6 * COUNT) <= case.off


@pytest.mark.parametrize("name", ["zero length", "garbage", "cut at a member"])
def test_lost_shards_count_against_the_bound(name: str, tmp_path: Path) -> None:
    damaged = {f"bad{number}": CASES[name].damage(OF_OTHERS[4 - number]) for number in range(2)}
    folder = written(tmp_path, damaged, whole=3)
    words = r"^about \d+ of 120 samples are unusable \(2 of 5 shards unreadable or short\), more than data.max_rejected"
    with pytest.raises(UserError, match=words) as caught:
        scanned(folder, max_rejected=0.1)
    assert "pool/bad0: " in str(caught.value)
    assert scanned(folder, max_rejected=0.45).tally.shards == {"pool": 5}


@pytest.mark.parametrize("damage", [lambda data: b"", lambda data: data[: 12 * PIECE]], ids=["empty", "cut"])
def test_where_no_shard_is_whole_nothing_tells_the_loss(damage: Callable[[bytes], bytes], tmp_path: Path) -> None:
    folder = written(tmp_path, {f"bad{number}": damage(data) for number, data in enumerate(OF_OTHERS)}, whole=0)
    refused(UserError, "unreadable or short", scanned, folder, max_rejected=0.99)
    assert {bad.basis for bad in whole_shards(scanned(folder)).values()} == {"unknown"}


def test_a_writer_that_leaves_the_end_marker_out_is_named_in_the_config(tmp_path: Path) -> None:
    folder = written(tmp_path, {f"s{number}": data[: COUNT * PIECE] for number, data in enumerate(OF_OTHERS)}, whole=0)
    with pytest.raises(UserError, match="5 of 5 shards .*the end marker is missing.*set end_marker: optional"):
        scanned(folder, max_rejected=0.5)
    found = scanned(folder, max_rejected=0, end_marker="optional")
    assert (found.tally.used, found.rejected) == (5 * COUNT, ())
    (folder / "cut.tar").write_bytes(WHOLE[: 12 * PIECE + 600])  # other damage is told as ever
    assert "cut" in whole_shards(scanned(folder, end_marker="optional"))


def test_a_shard_without_end_marker_that_holds_all_is_listed_and_costs_nothing(tmp_path: Path) -> None:
    found = scanned(written(tmp_path, {"bad": WHOLE[: COUNT * PIECE]}), max_rejected=0)
    assert found.tally.used == 6 * COUNT
    assert whole_shards(found)["bad"].lost == 0


def test_a_tail_of_zeros_is_no_end_marker(tmp_path: Path) -> None:
    """What a download into a file of full size leaves that stops half-way."""
    data = shard_bytes(range(400, 480))
    found = scanned(written(tmp_path, {"bad": zeroed(data, 40 * PIECE, len(data) - 40 * PIECE)}))
    bad = whole_shards(found)["bad"]
    assert "zero bytes; the file may not have been written completely" in bad.reason
    assert (bad.basis, found.tally.used) == ("bytes", 5 * COUNT + 40)
    assert abs(bad.lost - 40) <= 5  # padding is zeros as well


def zstd(data: bytes) -> bytes:
    buffer = pa.BufferOutputStream()
    with pa.CompressedOutputStream(buffer, "zstd") as stream:
        stream.write(data)
    return bytes(buffer.getvalue())


PACKERS = {"tar.gz": gzip.compress, "tgz": gzip.compress, "tar.bz2": bz2.compress, "tar.zst": zstd}


@pytest.mark.parametrize("ending", PACKERS)
def test_compressed_tars_are_read_and_their_loss_is_counted(ending: str, tmp_path: Path) -> None:
    packed = [PACKERS[ending](data) for data in [*OF_OTHERS[:4], WHOLE]]
    for number, data in enumerate(packed):
        (tmp_path / f"{number}.{ending}").write_bytes(data)
    assert (scanned(tmp_path).tally.used, scanned(tmp_path).rejected) == (5 * COUNT, ())
    (tmp_path / f"4.{ending}").write_bytes(packed[4][: len(packed[4]) // 2])
    found = scanned(tmp_path)
    assert found.tally.used + found.tally.lost == 5 * COUNT
    assert "samples lost" in whole_shards(found)[f"4.{ending}"].reason


def test_a_single_damaged_tar_gz_tells_by_its_own_bytes_what_is_lost(tmp_path: Path) -> None:
    data = bytearray(gzip.compress(shard_bytes(range(400)), 1))
    data[len(data) // 2 :] = bytes(b ^ 0x55 for b in data[len(data) // 2 :])
    (tmp_path / "one.tar.gz").write_bytes(bytes(data))
    found = scanned(tmp_path)
    assert abs(found.tally.lost - 200) < 30
    assert abs(found.tally.used + found.tally.lost - 400) < 30
    refused(UserError, r"about \d+ of \d+ samples are unusable \(1 of 1 shards", scanned, tmp_path, max_rejected=0.3)


def test_an_unknown_compression_is_named(tmp_path: Path) -> None:
    import lzma

    (tmp_path / "one.tar.xz").write_bytes(lzma.compress(WHOLE))
    with pytest.raises(UserError, match="compressed with xz, which is not read here; use gzip or zstd"):
        scanned(tmp_path, max_rejected=0.5)


@pytest.fixture
def imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Shards of our own, of uneven size, with their manifest."""
    monkeypatch.setattr(shards, "MOST_SAMPLES", 14)
    (tmp_path / "in.tar").write_bytes(WHOLE)
    shards.import_shards(shards.source_of(str(tmp_path / "in.tar")), str(tmp_path / "out"))
    return tmp_path / "out"


@pytest.mark.parametrize(
    ("damage", "word"),
    [
        (lambda path: path.write_bytes(b""), "the file is empty"),
        (lambda path: path.write_bytes(path.read_bytes()[: 4 * PIECE]), "end marker is missing"),
        (lambda path: path.write_bytes(shard_bytes(range(100, 103))), "it holds 3 of the 10 samples"),
        (lambda path: path.unlink(), "missing, though manifest.json lists it"),
    ],
    ids=["empty", "cut", "short", "gone"],
)
def test_with_a_manifest_the_count_is_exact(damage: Callable[[Path], Any], word: str, imported: Path) -> None:
    damage(imported / "shard-000001.tar")
    for path in (imported, imported / "*.tar"):
        found = scanned(path)
        bad = whole_shards(found)["shard-000001"]
        assert (bad.basis, bad.estimated) == ("manifest", False)
        assert word in bad.reason
        assert found.tally.used + found.tally.lost == COUNT
        assert str(found.tally) == f"{found.tally.lost} of 24 samples are unusable (1 of 2 shards unreadable or short)"
    refused(UserError, r"of 24 samples are unusable \(1 of 2", scanned, imported, max_rejected=0.1)


def test_shards_that_are_not_asked_for_are_not_missed(imported: Path) -> None:
    assert scanned(imported / "shard-000001.tar", max_rejected=0).rejected == ()
    storage.write_json(f"{imported}/manifest.json", {"shards": "of another program"})
    (imported / "shard-000001.tar").unlink()
    assert scanned(imported, max_rejected=0).rejected == ()


def test_import_and_inspect_say_the_same(tmp_path: Path) -> None:
    folder = written(tmp_path / "in", {"bad": b"", "cut": WHOLE[: 12 * PIECE]}, whole=4)
    found, source = scanned(folder), shards.source_of(str(folder))
    told = [(bad.shard, bad.reason, bad.lost, bad.basis) for bad in found.rejected]
    looked = shards.inspect(source)
    assert [(bad.shard, bad.reason, bad.lost, bad.basis) for bad in looked.problems] == told
    assert (
        str(looked.tally)
        == str(found.tally)
        == "about 36 of 144 samples are unusable (2 of 6 shards unreadable or short)"
    )
    with pytest.raises(UserError, match=r"about 36 of 144 samples are unusable \(2 of 6 .*--max-rejected 0.1: bad: "):
        shards.import_shards(source, str(tmp_path / "out"), max_rejected=0.1)
    assert storage.list_files(str(tmp_path / "out")) == []
    manifest = shards.import_shards(source, str(tmp_path / "out"), max_rejected=0.5)
    assert [(bad["shard"], bad["reason"], bad["lost"], bad["basis"]) for bad in manifest["rejected"]] == told
    assert manifest["samples"] == 108


def test_an_object_store_tells_the_same(s3: str, tmp_path: Path) -> None:
    folder = written(tmp_path / "in", {"bad": b"", "cut": WHOLE[: 12 * PIECE], "head": zeroed(WHOLE, 0)}, whole=3)
    for path in folder.iterdir():
        storage.write_atomic(f"{s3}/{tmp_path.name}/{path.name}", path.read_bytes())
    roles = {"target-member": {"from": "pool", "count": 1}}
    sources = {"pool": {"kind": "shards", "path": f"{s3}/{tmp_path.name}/*.tar"}}
    there = scan(DataConfig.model_validate({"sources": sources, "image_size": 8, "roles": roles, "max_rejected": 1}))
    assert there.rejected == scanned(folder).rejected
    assert there.tally == scanned(folder).tally


def test_splits_keep_how_it_was_counted(tmp_path: Path) -> None:
    from pipelines.data.draw.draw import draw
    from pipelines.data.draw.splits import Splits

    folder = written(tmp_path / "in", {"bad": b""}, whole=3)
    roles = {"target-member": {"from": "pool", "count": 5}}
    sources = {"pool": {"kind": "shards", "path": str(folder)}}
    config = DataConfig.model_validate({"sources": sources, "image_size": 8, "roles": roles, "max_rejected": 1})
    draw(config, scan(config), 0, str(tmp_path / "run"))
    assert Splits.load(str(tmp_path / "run")).rejected == scan(config).rejected
    table = storage.read_table(f"{tmp_path}/run/splits/rejected.parquet")
    shutil.rmtree(tmp_path / "run")
    draw(config, scan(config), 0, str(tmp_path / "run"))
    storage.write_table(f"{tmp_path}/run/splits/rejected.parquet", table.drop_columns(["basis"]))  # of an older run
    assert [bad.basis for bad in Splits.load(str(tmp_path / "run")).rejected] == ["counted"]
