"""Photos in a list: by bytes, pixels, likeness, digests and names, and nothing that is not there."""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from typer.testing import CliRunner

from pipelines.cli.app import app
from pipelines.data.lookup import BYTES, NAME, NEAR, PIXELS, look_up
from pipelines.errors import UserError
from tests.raising import refused


def photo(seed: int) -> Image.Image:
    coarse = np.random.default_rng(seed).integers(0, 256, (9, 9, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((96, 96), Image.Resampling.BICUBIC)


def saved(image: Image.Image, kind: str, **settings: int) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **settings)
    return buffer.getvalue()


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Four photos, one of them below a folder, and a damaged one."""
    (tmp_path / "photos/of me").mkdir(parents=True)
    for number, name in enumerate(("a.jpg", "b.jpg", "c.jpg", "of me/d.jpg")):
        (tmp_path / "photos" / name).write_bytes(saved(photo(number), "JPEG", quality=92))
    (tmp_path / "photos/cut.jpg").write_bytes(b"\xff\xd8\xff\xe0cut")
    return tmp_path / "photos"


def test_a_folder_is_compared_by_bytes_pixels_and_likeness(photos: Path, tmp_path: Path) -> None:
    listed = tmp_path / "list"
    listed.mkdir()
    a, b, c = ((photos / f"{name}.jpg").read_bytes() for name in "abc")
    small = Image.open(io.BytesIO(c)).resize((64, 64))
    files = {"1.jpg": a, "2.png": saved(Image.open(io.BytesIO(b)), "PNG"), "3.jpg": saved(small, "JPEG", quality=60)}
    for name, data in (
        files.items() | {f"other-{seed}.jpg": saved(photo(seed), "JPEG") for seed in range(9, 40)}.items()
    ):
        (listed / name).write_bytes(data)
    (listed / "bad.jpg").write_bytes(b"\xff\xd8\xff\xe0")
    found = look_up(str(photos), str(listed))
    assert found.found == {"a.jpg": (BYTES, "1.jpg"), "b.jpg": (PIXELS, "2.png"), "c.jpg": (NEAR, "3.jpg")}
    assert (len(found.photos), found.entries, found.unread_entries) == (5, 35, 1)
    assert list(found.unread) == ["cut.jpg"]
    assert "with 35 entries, of which 1 cannot be read" in str(found)


@pytest.mark.parametrize("name", ["sha256", "md5", "sha1", "url", "mine"])
@pytest.mark.parametrize("ending", ["csv", "parquet", "txt"])
def test_a_file_is_compared_by_digests_or_names(photos: Path, tmp_path: Path, ending: str, name: str) -> None:
    if name in ("url", "mine"):
        entries = [f"https://example.org/{number}.jpg" for number in range(50)] + ["https://x.org/p/d.jpg?w=1", ""]
        expected = {"of me/d.jpg": (NAME, "https://x.org/p/d.jpg?w=1")}
    else:
        entries = [hashlib.new(name, bytes([number])).hexdigest() for number in range(50)]
        entries.append(hashlib.new(name, (photos / "a.jpg").read_bytes()).hexdigest().upper())
        expected = {"a.jpg": (BYTES, entries[-1])}
    where = tmp_path / f"list.{ending}"
    if ending == "parquet":
        pq.write_table(pa.table({"width": range(len(entries)), name: entries}), where)
    else:
        where.write_text("\n".join([name, *entries] if ending == "csv" else entries))
    found = look_up(str(photos), str(where), name if name == "mine" else None)
    assert (dict(found.found), found.entries) == (expected, 51)


def test_what_is_no_list_is_one_line(photos: Path, tmp_path: Path) -> None:
    for name, text, said in (
        ("a.csv", "name\nx\n", "no column sha256 or md5.*, but .*name.*: give --column"),
        ("a.txt", "cat\n", "'cat' is no SHA-256, SHA-1, MD5 or address"),
        ("b.txt", "", "'' is no SHA-256"),
        ("a.parquet", "name", "cannot be read as a list"),
        ("there/is.csv", None, "does not exist"),
        ("a.pdf", "", "is no list of keys; give one of .txt"),
    ):
        if text is not None:
            (tmp_path / name).write_text(text)
        refused(UserError, said, look_up, str(photos), str(tmp_path / name))


def test_the_command_prints_and_writes_what_was_found(photos: Path, tmp_path: Path) -> None:
    told = CliRunner().invoke(app, ["lookup", str(photos), "--list", str(photos), "--json", f"{tmp_path}/found.json"])
    assert told.exit_code == 0
    assert "a.jpg: the same file, a.jpg" in told.output and "Listed does not say used" in told.output
    assert json.loads((tmp_path / "found.json").read_text())["found"]["of me/d.jpg"] == [BYTES, "of me/d.jpg"]
