"""Parquet files of images: the same images as tars, row group by row group, and a clear line for each bad row."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.config.sections.data import DataConfig
from pipelines.config.sections.sources import ColumnsConfig, SourceConfig
from pipelines.data.draw.draw import draw
from pipelines.data.draw.images import load_images
from pipelines.data.read.key_lists import keys_in
from pipelines.data.read.parquet_columns import Columns
from pipelines.data.read.samples import Problem, Sample
from pipelines.data.read.sources import Source
from pipelines.data.scan import shards
from pipelines.data.scan.scan import scan
from pipelines.errors import UserError
from pipelines.files import storage
from tests.pipelines.hub import hub_of
from tests.pipelines.tars import image_bytes, tar_bytes
from tests.raising import refused

COUNT, GROUP = 30, 7  # rows of a file, and of a row group
IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def row_of(number: int, seed: int | None = None) -> dict[str, Any]:
    image = image_bytes(number if seed is None else seed)
    return {"image": {"bytes": image, "path": f"{number}.png"}, "label": number % 3, "key": f"s{number:04d}"}


def written(path: Path, rows: Sequence[dict[str, Any]], **types: pa.DataType) -> str:
    """A file with row groups of `GROUP` rows."""
    table = pa.Table.from_pylist(list(rows))
    for name, kind in types.items():
        table = table.set_column(table.column_names.index(name), name, pa.array([row[name] for row in rows], kind))
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=GROUP)
    return str(path)


def config_of(path: str, kind: str = "parquet", source: dict[str, Any] | None = None, **settings: Any) -> DataConfig:
    roles = {name: {"from": "pool", "count": 20} for name in ("target-member", "target-nonmember")}
    sources = {"pool": {"kind": kind, "path": path, **(source or {})}}
    return DataConfig.model_validate({"sources": sources, "image_size": 8, "roles": roles, **settings})


def bad_rows(path: str, **source: Any) -> list[tuple[str, str, int]]:
    found = scan(config_of(path, source=source, max_rejected=1))
    return [(bad.key, bad.reason, bad.lost) for bad in found.rejected]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Two files, of five row groups each."""
    for number in range(2):
        rows = [row_of(row) for row in range(COUNT * number, COUNT * (number + 1))]
        written(tmp_path / "pq" / f"train-{number}.parquet", rows)
    return tmp_path / "pq"


@pytest.mark.parametrize("form", ["struct", "binary", "large", "named"])
def test_the_same_images_as_tars_give_the_same_roles_and_pixels(form: str, tmp_path: Path) -> None:
    seeds = [*range(50), 3, 11, *range(52, 60)]  # two exact copies
    rows = [{**row_of(number, seed), "caption": f"photo {number}"} for number, seed in enumerate(seeds)]
    members = []
    for row in rows:
        key, label, caption = row["key"], b"%d" % row["label"], row["caption"].encode()
        members += [(f"{key}.png", row["image"]["bytes"]), (f"{key}.cls", label), (f"{key}.txt", caption)]
    for part in range(2):
        storage.write_atomic(f"{tmp_path}/tars/{part}.tar", tar_bytes(members[90 * part : 90 * (part + 1)]))
    source: dict[str, Any] = {}
    if form != "struct":
        rows = [{**row, "image": row["image"]["bytes"]} for row in rows]
    if form == "named":
        names = {"image": "photo", "label": "kind", "caption": "said", "key": "place"}
        rows = [{names.get(name, name): value for name, value in row.items()} | {"key": "none"} for row in rows]
        source = {"columns": names}
    kinds = {"image": pa.large_binary()} if form == "large" else {}
    written(tmp_path / "pq" / "0.parquet", rows[:31], **kinds)
    written(tmp_path / "pq" / "1.parquet", rows[31:], **kinds)
    settings: dict[str, Any] = {"near_duplicates": {"distance": 8}}
    one = config_of(f"{tmp_path}/tars", "shards", **settings)
    two = config_of(f"{tmp_path}/pq", source=source, **settings)
    for seed in (0, 1):
        tars, parquet = (draw(config, scan(config), seed) for config in (one, two))
        columns = ["source", "key", "label", "sha256", "role", "part"]
        assert parquet.table.select(columns).equals(tars.table.select(columns))
        assert (parquet.duplicates_removed, parquet.near_removed) == (tars.duplicates_removed, tars.near_removed)
        assert tars.duplicates_removed == 2
        assert parquet.counts() == tars.counts()
        assert [parquet.role_digest(role) for role in one.roles] == [tars.role_digest(role) for role in one.roles]
    loaded = [load_images(config, splits, list(one.roles)) for config, splits in ((one, tars), (two, parquet))]
    np.testing.assert_array_equal(loaded[0].images, loaded[1].images)
    assert loaded[0].captions == loaded[1].captions
    assert loaded[0].captions[0].startswith("photo ")


def test_a_row_group_is_an_item(files: Path) -> None:
    items = Source(config_of(str(files)).sources["pool"]).items()
    assert [item.name for item in items[:6]] == [*(f"train-0-{group:05d}" for group in range(5)), "train-1-00000"]
    assert [item.count for item in items] == [7, 7, 7, 7, 2] * 2
    few = scan(config_of(str(files), shards=4, roles={"candidate": {"from": "pool", "fraction": 0.5}}))
    assert few.read == {"pool": (4, 10)}
    assert len(few.shards) == 4


def test_rows_without_a_key_are_named_by_file_and_row(tmp_path: Path) -> None:
    rows = [{"img": row_of(number)["image"], "label": number} for number in range(COUNT)]
    path = written(tmp_path / "a.parquet", rows)
    keys = [f"a/{number:07d}" for number in range(COUNT)]
    first = scan(config_of(path))
    assert [key for shard in first.shards for key in pq.read_table(shard.path)["key"].to_pylist()] == keys
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=11)  # the same rows in other groups
    again = scan(config_of(path))
    assert [key for shard in again.shards for key in pq.read_table(shard.path)["key"].to_pylist()] == keys
    named = scan(config_of(path, source={"columns": {"key": "img.path"}}))
    assert pq.read_table(named.shards[0].path)["key"].to_pylist()[:2] == ["0.png", "1.png"]


def test_only_wanted_rows_are_given_and_reading_stops_after_them(files: Path) -> None:
    source = Source(config_of(str(files)).sources["pool"])
    item = source.items()[1]
    assert [sample.key for sample in source.read(item, {"s0012", "s0008"})] == ["s0008", "s0012"]
    assert [sample.key for sample in source.read(item)] == [f"s{number:04d}" for number in range(7, 14)]


def test_other_columns_are_the_json_beside_an_image(tmp_path: Path) -> None:
    rows = [
        {**row_of(number), "smiling": number % 2 == 0, "face": {"age": number}, "vector": [0.1]} for number in range(5)
    ]
    config = config_of(written(tmp_path / "a.parquet", rows))
    (item,) = Source(config.sources["pool"]).items()
    samples = [found for found in Source(config.sources["pool"]).scan(item) if isinstance(found, Sample)]
    assert [json.loads(sample.others["json"]) for sample in samples] == [
        {"smiling": number % 2 == 0, "face": {"age": number}} for number in range(5)
    ]
    attributes = {"smiling": {"from": "json:smiling", "values": ["false", "true"]}}
    found = scan(config.model_copy(update={"attributes": config_of("x", attributes=attributes).attributes}))
    assert pq.read_table(found.shards[0].path)["attribute.smiling"].to_pylist() == [1, 0, 1, 0, 1]


def test_a_negative_or_missing_class_is_none(tmp_path: Path) -> None:
    rows = [{**row_of(number), "label": label} for number, label in enumerate([2, -1, None])]
    found = scan(config_of(written(tmp_path / "a.parquet", rows)))
    assert pq.read_table(found.shards[0].path)["label"].to_pylist() == [2, None, None]


def test_bad_rows_are_listed_one_by_one(tmp_path: Path) -> None:
    rows = [row_of(number) for number in range(14)]
    rows[2]["image"] = {"bytes": None, "path": "elsewhere.png"}
    rows[3]["image"] = None
    rows[4]["image"] = {"bytes": image_bytes(4, "JPEG", size=64)[:200], "path": None}
    rows[5]["key"] = None
    rows[6]["key"] = "s0000"
    rows[8]["key"] = "../up"
    rows[9]["key"] = "s0001"  # of the first row group
    rows[10]["image"] = {"bytes": b"<html>", "path": None}
    path = written(tmp_path / "a.parquet", rows, image=IMAGE)
    found = bad_rows(path)
    by_key = {key: reason for key, reason, lost in found if lost == 1}
    assert len(by_key) == len(found) == 8
    nulls = "its image bytes (column image.bytes) are null"
    assert by_key["s0003"] == nulls
    assert by_key["s0002"] == f"{nulls}, though image.path names a file: write the bytes of the files into the column"
    assert by_key["s0004"].startswith("undecodable: ")
    assert by_key["a/0000005"] == "its key (column key) is null or empty"
    assert by_key["s0000"] == "the row group has this key twice"
    assert by_key["../up"] == "its name leads out of its folder"
    assert by_key["s0001"].startswith("shard a-00000 already has this key; if it is another image, set shard_in_key")
    assert by_key["s0010"].startswith("undecodable: ")
    with pytest.raises(UserError, match=r"8 of 14 samples are unusable, more than data.max_rejected = 1.00%: ") as told:
        scan(config_of(path))
    assert "\n" not in str(told.value)


def test_categories_are_read_as_the_values_that_they_stand_for(tmp_path: Path) -> None:
    """As pandas and polars write columns whose values repeat."""
    images = [image_bytes(number % 3) for number in range(9)]
    columns = {
        "image": pa.array(images, pa.binary()).dictionary_encode(),
        "label": pa.array([number % 3 for number in range(9)]).dictionary_encode(),
        "key": pa.array([f"s{number}" for number in range(9)]).dictionary_encode(),
        "city": pa.array(["Berne", "Lyons", "Turin"] * 3).dictionary_encode(),
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet", row_group_size=4)
    source = Source(SourceConfig(kind="parquet", path=str(tmp_path / "a.parquet")))
    found = [one for item in source.items() for one in source.read(item)]
    assert [(one.key, one.image, one.label) for one in found] == [(f"s{n}", images[n], n % 3) for n in range(9)]
    assert [json.loads(one.others["json"])["city"] for one in found] == ["Berne", "Lyons", "Turin"] * 3


@pytest.mark.parametrize(
    ("column", "line"),
    [
        ({"images": pa.array([[{"bytes": b"x", "path": "a"}]], pa.list_(IMAGE))}, "images holds lists of images:"),
        ({"photos": pa.array([[b"x"]], pa.large_list(pa.binary()))}, "photos holds lists of images: write one row for"),
        ({"row": pa.array([{"of": {"data": b"x"}}])}, "row.of.data is binary: set columns.image to it"),
        ({"image": pa.array(["aGVsbG8="])}, "image holds texts, such as addresses or base64: write the bytes of the"),
        ({"image": pa.array([[[1, 2], [3, 4]]])}, "image holds lists, such as pixels: write the bytes of an image"),
        ({"image": pa.array([{"path": "a.png"}])}, "an image column is binary, or a struct with a binary field bytes"),
    ],
)
def test_what_stands_in_place_of_images_is_told_with_the_remedy(
    column: dict[str, Any], line: str, tmp_path: Path
) -> None:
    pq.write_table(pa.table({"size": [1], **column, "text": ["x"]}), tmp_path / "a.parquet")
    with pytest.raises(UserError, match=r"a.parquet: no column holds images, among 'size, ") as told:
        scan(config_of(str(tmp_path / "a.parquet")))
    assert line in str(told.value)


@pytest.mark.parametrize("twice", ["image", "label", "key", "size"])
def test_a_column_that_stands_twice_is_one_line(twice: str, tmp_path: Path) -> None:
    names = ["image", "label", "key", "size"]
    columns = [pa.array([image_bytes(1)]), pa.array([1]), pa.array(["a"]), pa.array([2])]
    both = pa.Table.from_arrays([*columns, columns[names.index(twice)]], names=[*names, twice])
    pq.write_table(both, tmp_path / "a.parquet")
    with pytest.raises(UserError, match=f"a.parquet: column '?{twice}'? stands there twice; rename one of them"):
        scan(config_of(str(tmp_path / "a.parquet")))
    if twice == "key":
        refused(UserError, "a.parquet: column key stands there twice", list, keys_in(str(tmp_path / "a.parquet")))


def test_a_text_that_is_not_utf8_costs_its_row_alone(tmp_path: Path) -> None:
    rows = [row_of(number) for number in range(3)]
    texts = pa.Array.from_buffers(pa.string(), 3, pa.array([b"a", b"\xff\xfe", b"c"]).buffers())
    table = pa.Table.from_pylist(rows)
    pq.write_table(table.set_column(2, "key", texts), tmp_path / "a.parquet")
    assert bad_rows(str(tmp_path / "a.parquet")) == [("a/0000001", "a text of it is not UTF-8", 1)]


def test_a_file_with_another_column_loses_its_rows_and_says_why(files: Path) -> None:
    written(files / "train-2.parquet", [{"photo_url": f"{number}.jpg", "key": str(number)} for number in range(9)])
    found = bad_rows(str(files))
    assert [(key, lost) for key, _, lost in found] == [("", 7), ("", 2)]
    assert found[0][1] == (
        "train-2.parquet: no column holds images, among 'photo_url, key'; an image column is binary, or a struct with "
        "a binary field bytes; 7 samples lost, as the footer of its file says"
    )


@pytest.mark.parametrize(
    ("columns", "line"),
    [
        ({"image": "photo"}, "no column 'photo', allowed: 'image, label, key'"),
        ({"image": "label"}, "columns.image = label: it holds 'int64', no bytes"),
        ({"label": "key"}, "columns.label = key: it holds 'string', not a whole number"),
        ({"caption": "label"}, "columns.caption = label: it holds 'int64', not a text"),
        ({"key": "image.bytes"}, "columns.key = image.bytes: it holds 'binary', not a text or a whole number"),
    ],
)
def test_a_wrong_column_is_one_line_before_anything_is_read(columns: dict[str, str], line: str, files: Path) -> None:
    with pytest.raises(UserError, match="train-0.parquet: ") as told:
        scan(config_of(str(files), source={"columns": columns}))
    assert line in str(told.value)
    assert "\n" not in str(told.value)


def test_columns_are_found_by_name_and_type() -> None:
    def of(**kinds: pa.DataType) -> Columns:
        return Columns.from_schema(pa.schema(list(kinds.items())), ColumnsConfig())

    text, number, data = pa.string(), pa.int64(), pa.binary()
    cifar = of(img=IMAGE, fine_label=number, coarse_label=number)
    assert (cifar.image, cifar.label, cifar.beside) == ("img.bytes", None, ("fine_label", "coarse_label"))
    hub = of(mask=IMAGE, image=IMAGE, label=number, text=text)
    assert (hub.image, hub.label, hub.caption, hub.key) == ("image.bytes", "label", "text", None)
    webdataset = of(__key__=text, jpg=data, cls=number, url=text)
    assert (webdataset.image, webdataset.label, webdataset.key) == ("jpg", "cls", "__key__")
    assert of(photo=data, label=text).label is None  # a text is no class
    refused(ValueError, r"several columns hold bytes: left, right; set columns\.image", of, left=data, right=IMAGE)


def test_a_file_that_is_cut_is_counted_by_its_bytes(files: Path) -> None:
    whole = (files / "train-1.parquet").read_bytes()
    (files / "train-1.parquet").write_bytes(whole[: len(whole) - 50])
    found = scan(config_of(str(files), max_rejected=1))
    assert found.tally.used == COUNT
    (bad,) = found.rejected
    assert bad.reason.startswith("unreadable: ")
    assert abs(bad.lost - COUNT) <= 3
    assert bad.estimated


def test_a_damaged_row_group_costs_its_rows_alone(files: Path) -> None:
    footer = pq.read_metadata(files / "train-0.parquet")
    first = footer.row_group(1).column(0).data_page_offset
    data = bytearray((files / "train-0.parquet").read_bytes())
    data[first : first + 40] = bytes(40)
    (files / "train-0.parquet").write_bytes(bytes(data))
    found = scan(config_of(str(files), max_rejected=1))
    (bad,) = found.rejected
    assert (bad.shard, bad.lost, bad.estimated) == ("train-0-00001", 7, False)
    assert found.tally.used == 2 * COUNT - 7


def test_no_parquet_file_and_no_row(tmp_path: Path) -> None:
    refused(UserError, r"holds no \.parquet file", Source(config_of(str(tmp_path)).sources["pool"]).items)
    refused(UserError, "give Parquet files", Source(config_of(f"{tmp_path}/x-*.parquet").sources["pool"]).items)
    pq.write_table(pa.schema([("image", pa.binary())]).empty_table(), tmp_path / "a.parquet")
    refused(UserError, "holds no row", Source(config_of(str(tmp_path)).sources["pool"]).items)


def test_an_object_store_and_the_hub_are_read_as_a_disk(
    files: Path, s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in files.iterdir():
        storage.write_atomic(f"{s3}/{tmp_path.name}/{path.name}", path.read_bytes())
    here = draw(config_of(str(files)), scan(config_of(str(files))), 0).table
    with hub_of(files, monkeypatch) as hub:
        for place in (f"{s3}/{tmp_path.name}/train-*.parquet", hub, f"{hub}/train-{{0..1}}.parquet"):
            config = config_of(place)
            assert draw(config, scan(config), 0).table.equals(here)


def test_a_hub_out_of_reach_is_one_line(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub.utils import _http

    monkeypatch.setattr(_http.time, "sleep", lambda _: None)
    with hub_of(files, monkeypatch) as hub:
        pass
    with pytest.raises(UserError, match="cannot be listed: ") as told:
        Source(config_of(f"{hub}/train-*.parquet").sources["pool"]).items()
    assert "\n" not in str(told.value)


def test_parquet_files_become_shards(files: Path, tmp_path: Path) -> None:
    source = shards.source_of(str(files))
    assert source == SourceConfig(kind="parquet", path=str(files))
    assert shards.source_of(f"{files}/train-0.parquet", options={"label": "label"}).columns.label == "label"
    refused(UserError, "--option", shards.source_of, str(files), options={"size": 3})
    manifest = shards.import_shards(source, f"{tmp_path}/out")
    assert manifest["samples"] == 2 * COUNT
    first = next(
        iter(
            Source(SourceConfig(kind="shards", path=f"{tmp_path}/out")).scan(
                Source(SourceConfig(kind="shards", path=f"{tmp_path}/out")).items()[0]
            )
        )
    )
    assert not isinstance(first, Problem)
    assert (first.key, first.image, first.label) == ("s0000", image_bytes(0), 0)


def test_columns_are_settings_of_parquet_alone() -> None:
    with pytest.raises(ValueError, match="columns is for parquet, not for shards"):
        SourceConfig(kind="shards", path="x", columns={"image": "a"})
    refused(ValueError, "key is for shards, not for parquet", SourceConfig, kind="parquet", path="x", key="last-dot")
    assert "columns" not in SourceConfig(kind="parquet", path="x").model_dump()
    assert SourceConfig(kind="parquet", path="x", columns={"key": "a"}).model_dump()["columns"]["key"] == "a"


def test_memory_depends_on_pages_not_on_the_row_group(tmp_path: Path) -> None:
    noise = [np.random.default_rng(number).bytes(2**16) for number in range(512)]  # 32 MiB in one row group
    pq.write_table(pa.table({"image": noise}), tmp_path / "a.parquet", write_batch_size=16)
    source = Source(config_of(str(tmp_path)).sources["pool"])
    (item,) = source.items()
    before, most = pa.total_allocated_bytes(), 0
    for found, sample in enumerate(source.scan(item)):
        assert isinstance(sample, Sample)
        assert sample.image == noise[found]
        most = max(most, pa.total_allocated_bytes() - before)
    assert most < 12 * 2**20
