"""Import keeps bytes and loses nothing unlisted; inspect counts what is there."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.config.sections.data import DataConfig
from pipelines.config.sections.sources import SourceConfig
from pipelines.data.read.samples import Sample
from pipelines.data.read.sources import Source
from pipelines.data.scan import shards
from pipelines.data.scan.scan import scan
from pipelines.errors import UserError
from pipelines.files import storage
from tests.pipelines.report.stating import called
from tests.pipelines.tars import image_bytes, shard_bytes, tar_bytes
from tests.raising import refused


def read_back(out: Path) -> dict[str, Sample]:
    source = SourceConfig(kind="shards", path=str(out))
    return {
        entry.key: entry
        for item in Source(source).items()
        for entry in Source(source).scan(item)
        if isinstance(entry, Sample)
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for seed, name in enumerate(("cat/a.b.png", "cat/c.jpg", "dog/c.jpg", "dog/c.png")):
        path = tmp_path / "images" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(image_bytes(seed, "JPEG" if name.endswith("jpg") else "PNG"))
    return tmp_path / "images"


def test_an_image_folder_keeps_bytes_classes_and_names(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    manifest = shards.import_shards(shards.source_of(str(folder)), str(out))
    found = read_back(out)
    origins = {key: json.loads(sample.others["json"])["origin"] for key, sample in found.items()}
    assert set(origins.values()) == {"cat/a.b.png", "cat/c.jpg", "dog/c.jpg", "dog/c.png"}
    assert all("." not in key for key in found)
    for key, sample in found.items():
        assert sample.image == (folder / origins[key]).read_bytes()
        assert sample.label == (0 if origins[key].startswith("cat") else 1)
    assert manifest["samples"] == 4
    assert manifest["formats"] == {"png": 2, "jpg": 2}
    assert storage.read_json(f"{out}/manifest.json") == manifest


def test_webdataset_reads_what_is_written(folder: Path, tmp_path: Path) -> None:
    import webdataset

    out = tmp_path / "out"
    shards.import_shards(shards.source_of(str(folder)), str(out))
    mine = read_back(out)
    peer = list(webdataset.WebDataset(f"{out}/shard-000000.tar", shardshuffle=False))
    assert [sample["__key__"] for sample in peer] == list(mine)
    for sample in peer:
        assert sample["cls"] == b"%d" % mine[sample["__key__"]].label


def test_shards_are_rewritten_whole_and_cut_to_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "MOST_SAMPLES", 8)
    members = [("a.png", image_bytes(1)), ("a.txt", b"a caption"), ("a.json", b'{"x": 1}')]
    (tmp_path / "in-0.tar").write_bytes(shard_bytes(range(20)))
    (tmp_path / "in-1.tar").write_bytes(tar_bytes(members))
    manifest = shards.import_shards(shards.source_of(str(tmp_path / "in-{0..1}.tar")), str(tmp_path / "out"))
    assert [entry["samples"] for entry in manifest["shards"]] == [8, 8, 5]
    found = read_back(tmp_path / "out")
    assert found["a"].others == {"txt": b"a caption", "json": b'{"x": 1}'}
    assert [found[f"s{seed:04d}"].image for seed in range(20)] == [image_bytes(seed) for seed in range(20)]


def test_the_image_that_was_chosen_is_written_and_no_other(tmp_path: Path) -> None:
    members = [(f"a.{name}", image_bytes(seed, "JPEG")) for seed, name in enumerate(("jpg", "input.jpg", "mask.jpg"))]
    (tmp_path / "in.tar").write_bytes(tar_bytes([*members, ("a.txt", b"a caption")]))
    chosen = SourceConfig(kind="shards", path=str(tmp_path / "in.tar"), image="input.jpg")
    assert shards.import_shards(chosen, str(tmp_path / "out"))["samples"] == 1
    written = Source(SourceConfig(kind="shards", path=str(tmp_path / "out")))
    (found,) = [entry for item in written.items() for entry in written.scan(item)]
    assert isinstance(found, Sample)
    assert found.image == members[1][1]
    assert found.others == {"txt": b"a caption"}


def test_every_format_that_is_read_is_read_back_from_shards(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    kinds = ("MPO", "AVIF", "JPEG2000", "TIFF", "PPM")
    for seed, kind in enumerate(kinds):
        (tmp_path / "images" / f"{kind}.jpe").write_bytes(image_bytes(seed, kind))
    manifest = shards.import_shards(shards.source_of(str(tmp_path / "images")), str(tmp_path / "out"))
    assert manifest["formats"] == {"avif": 1, "jp2": 1, "jpg": 1, "ppm": 1, "tif": 1}
    assert sorted(read_back(tmp_path / "out")) == sorted(kinds)


def test_finished_shards_are_not_overwritten_but_a_broken_off_import_is(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    source = shards.source_of(str(folder))
    out.mkdir()
    (out / "shard-000007.tar").write_bytes(b"left by an import that was killed")
    shards.import_shards(source, str(out))
    assert [path.name for path in sorted(out.iterdir())] == ["manifest.json", "shard-000000.tar"]
    refused(UserError, "out is not empty", shards.import_shards, source, str(out))


def test_inspect_counts(folder: Path, tmp_path: Path) -> None:
    (folder / "cat" / "again.png").write_bytes((folder / "dog" / "c.png").read_bytes())
    (folder / "cat" / "bad.jpg").write_bytes(b"\xff\xd8")
    found = shards.inspect(shards.source_of(str(folder)))
    assert (found.tally.shards, found.samples) == ({"": 1}, 5)
    assert found.formats == {"PNG RGB": 3, "JPEG RGB": 2}
    assert found.labels == {0: 3, 1: 2}
    assert found.sides == (8, 8)
    assert [bad.key for bad in found.problems] == ["cat/bad.jpg"]
    assert found.duplicates == [("part-00000/cat/again.png", "part-00000/dog/c.png")]


def test_inspect_and_a_run_agree_on_what_is_usable(tmp_path: Path) -> None:
    """On keys that several shards have, and on keys that stand twice in one."""
    for name, seeds in (("a", range(4)), ("b", range(2, 6))):
        (tmp_path / f"{name}.tar").write_bytes(shard_bytes(seeds) if name == "a" else shard_bytes([*seeds, 5]))
    source = shards.source_of(str(tmp_path))
    found = shards.inspect(source)
    read = scan(DataConfig(sources={"pool": source}, image_size=8, roles={"r": {"from": "pool"}}, max_rejected=1))
    assert found.samples == read.tally.used == 6
    assert {(bad.shard, bad.key, bad.reason) for bad in found.problems} == {
        (bad.shard, bad.key, bad.reason) for bad in read.rejected
    }
    apart = shards.source_of(str(tmp_path), options={"shard_in_key": True})
    assert shards.inspect(apart).samples == 8


@pytest.mark.parametrize("name", ["empty.tar", "text.tar", "cut.parquet", "null.parquet"])
def test_nothing_usable_is_exit_code_2(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    if name == "null.parquet":
        table = {
            "image": pa.array([{"bytes": None, "path": "x.png"}], pa.struct({"bytes": pa.binary(), "path": "str"}))
        }
        pq.write_table(pa.table(table), path)
    else:
        path.write_bytes({"empty.tar": b"", "text.tar": tar_bytes([("a.txt", b"x")]), "cut.parquet": b"PAR1"}[name])
    assert called(monkeypatch, "shards", "inspect", path) == 2
    told = capsys.readouterr()
    assert told.err == f"encoder-audit: {path} holds no usable sample\n"
    assert "usable samples" in told.out


def test_what_a_word_on_the_command_line_means(folder: Path, tmp_path: Path) -> None:
    assert shards.source_of("digits").kind == "digits"
    assert shards.source_of(str(folder)).kind == "imagefolder"
    made = shards.source_of("torchvision:FakeData", options={"size": 2})
    assert shards.import_shards(made, str(tmp_path / "fake"))["samples"] == 2
    refused(UserError, "nothing.tar does not exist", shards.source_of, str(tmp_path / "nothing.tar"))
    (tmp_path / "dots.tar").write_bytes(tar_bytes([(f"photo.{number}.png", image_bytes(number)) for number in (1, 2)]))
    dots = shards.source_of(str(tmp_path / "dots.tar"), options={"key": "last-dot"})
    assert shards.inspect(dots).samples == 2
    with pytest.raises(UserError, match="^--option key = 'middle': allowed is first-dot or last-dot$"):
        shards.source_of(str(tmp_path / "dots.tar"), options={"key": "middle"})
    refused(UserError, "torchvision has no data set 'Nothing'", shards.source_of, "torchvision:Nothing")
