"""Folders of images: what is read, what is lost, and that nothing in them is passed over in silence."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from PIL import EpsImagePlugin, Image
from pydicom.data import get_testdata_file

from pipelines.config.sections.data import DataConfig
from pipelines.config.sections.sources import SourceConfig
from pipelines.data.draw.draw import draw
from pipelines.data.draw.splits import Splits
from pipelines.data.read.samples import IMAGES
from pipelines.data.read.sources import Source
from pipelines.data.scan.scan import Scan, scan
from pipelines.errors import UserError
from pipelines.plan.load import parse
from pipelines.report.finished import FinishedRun
from pipelines.report.run import unread_samples
from pipelines.run.folder import RunFolder
from tests.conftest import small_config
from tests.pipelines.tars import image_bytes


def scanned(sources: dict[str, SourceConfig], max_rejected: float) -> Scan:
    """Everything that some sources hold; every sample plays one role."""
    roles = {"everything": {"from": next(iter(sources)), "fraction": 1}}
    return scan(DataConfig(sources=sources, image_size=8, roles=roles, max_rejected=max_rejected))


def keys_of(found: Scan) -> list[str]:
    return [key for shard in found.shards for key in pq.read_table(shard.path)["key"].to_pylist()]


def test_a_phone_s_folder_is_read_and_what_is_not_is_listed(tmp_path: Path) -> None:
    """A suffix that is an image's makes a file an image; a file without one is looked into; the rest is told."""
    photos = tmp_path / "photos"
    photos.mkdir()
    heic = b"\0\0\0\x1cftypheic" + bytes(40)
    files = {
        "a.jpe": image_bytes(1, "JPEG"),
        "b.JFIF": image_bytes(2, "JPEG"),
        "c.avif": image_bytes(3, "AVIF"),
        "IMG_0004": image_bytes(4, "WEBP"),
        "e.heic": heic,
        "IMG_0006": heic,
        "g.dng": b"raw",
        **dict.fromkeys(("1.2.840.7", "IM0008"), Path(str(get_testdata_file("CT_small.dcm"))).read_bytes()),
        "h.svs": b"II*\0",
        "a.cr2": b"raw, and a.jpe is read",
        "README": b"P2P notes",
        "README.txt": b"text",
        "Thumbs.db": b"",
        "a.json": b"{}",
        "b.json": b"{}",
        "moving.gif": saved_frames(2),
        "still.gif": saved_frames(1),
    }
    for name, data in files.items():
        (photos / name).write_bytes(data)
    (photos / "gone.jpg").symlink_to("nothing")
    (photos / "up").symlink_to(photos)
    os.mkfifo(photos / "pipe.png")
    os.mkfifo(photos / "pipe")
    source = SourceConfig(kind="imagefolder", path=str(photos))
    found = scanned({"phone": source}, 0.6)
    assert sorted(keys_of(found)) == ["IMG_0004", "a.jpe", "b.JFIF", "c.avif", "moving.gif", "still.gif"]
    assert {(bad.source, bad.key): bad.lost * (not bad.noted) for bad in found.rejected if bad.key != IMAGES} == {
        ("phone", "e.heic"): 1,
        ("phone", "IMG_0006"): 1,
        ("phone", "g.dng"): 1,
        **{("phone", name): 1 for name in ("1.2.840.7", "IM0008", "h.svs")},
        ("phone", "gone.jpg"): 1,
        ("phone", "pipe.png"): 1,
        ("phone", "*.cr2"): 0,
        ("phone", "*"): 0,
        ("phone", "*.txt"): 0,
        ("phone", "*.db"): 0,
        ("phone", "*.json"): 0,
        ("phone", "up"): 0,
        ("phone", "pipe"): 0,
    }
    assert all((bad.shard or bad.key == IMAGES) and bad.reason for bad in found.rejected)
    assert all(any(word in bad.reason for bad in found.rejected) for word in ("one window", "into tiles"))
    assert str(found.tally).startswith("8 of 14 samples are unusable")
    (said,) = found.tally.notes()
    for word in (
        "1 image: only the first of several frames or pages used",
        "*.json: 2 files skipped: no image by their suffix",
        "*: 1 file skipped: no image by its content",
        "*.db: 1 file skipped: no image by its suffix; *.json",
        "*.txt: 1 file skipped: no image by its suffix; ",
        "*.cr2: 1 file skipped: the image of the same name is read instead",
        "up: a link to a folder that it stands in; not read",
    ):
        assert word in said
    with pytest.raises(UserError, match=r"8 of 14 samples are unusable.*phone/.*/e.heic"):
        scanned({"phone": source}, 0.4)


def saved_frames(count: int) -> bytes:
    buffer = io.BytesIO()
    frames = [Image.open(io.BytesIO(image_bytes(seed))) for seed in range(count)]
    frames[0].save(buffer, "GIF", save_all=True, append_images=frames[1:])
    return buffer.getvalue()


def test_a_folder_of_pictures_that_are_not_read_says_so(tmp_path: Path) -> None:
    for name in ("a.dng", "b.dng", "notes.txt"):
        (tmp_path / name).touch()
    with pytest.raises(UserError, match=r"holds no image.*it holds a.dng: .dng pictures cannot be read; convert it"):
        Source(SourceConfig(kind="imagefolder", path=str(tmp_path))).items()


def test_a_name_that_is_not_utf_8_is_listed(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(image_bytes(1))
    (tmp_path / os.fsdecode(b"caf\xe9.png")).write_bytes(image_bytes(2))
    (tmp_path / os.fsdecode(b"caf\xe9.txt")).touch()
    found = scanned({"pool": SourceConfig(kind="imagefolder", path=str(tmp_path))}, 0.5)
    assert keys_of(found) == ["a.png"]
    told = [(bad.key, bad.lost, bad.noted) for bad in found.rejected if bad.key != IMAGES]
    assert told == [("caf\\udce9.png", 1, False), ("*.txt", 1, True)]


def test_a_folder_of_usual_images_is_read_as_ever(tmp_path: Path) -> None:
    names = [f"{'dog' if number % 3 else 'cat'}/x{number:04d}.{('jpg', 'png')[number % 2]}" for number in range(1100)]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    source = SourceConfig(kind="imagefolder", path=str(tmp_path))
    items = Source(source).items()
    assert [(item.name, item.count) for item in items] == [("part-00000", 1024), ("part-00001", 76)]
    assert [name for item in items for name in item.files] == sorted(names)
    assert [label for item in items for label in item.labels] == [name.startswith("dog") for name in sorted(names)]
    assert Source(source).unread() == ()


def test_postscript_called_jpg_is_listed_and_starts_no_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "good.png").write_bytes(image_bytes(0))
    (tmp_path / "in" / "script.jpg").write_bytes(image_bytes(1, "EPS"))
    (tmp_path / "gs").write_text(f"#!/bin/sh\ntouch {tmp_path}/started\nexit 1\n")
    (tmp_path / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)
    (bad,) = scanned({"pool": SourceConfig(kind="imagefolder", path=str(tmp_path / "in"))}, 0.5).rejected
    assert (bad.source, bad.shard, bad.key, bad.lost) == ("pool", "part-00000", "script.jpg", 1)
    assert bad.reason.startswith("undecodable: no image of a format that is read")
    assert not (tmp_path / "started").exists()


def test_notes_are_kept_with_the_splits_and_are_no_losses_of_the_report(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name, data in (("a.gif", saved_frames(2)), ("b.png", image_bytes(5)), ("c.raw", b""), ("d.txt", b"")):
        (tmp_path / "in" / name).write_bytes(data)
    data = DataConfig(
        sources={"pool": {"kind": "imagefolder", "path": str(tmp_path / "in")}},
        image_size=8,
        roles={"candidate": {"from": "pool"}},
        max_rejected=0.5,
    )
    folder = RunFolder(str(tmp_path / "run"))
    draw(data, scan(data), 0, folder.seed(0).path)
    loaded = Splits.load(folder.seed(0).path)
    assert [(bad.key, bad.noted) for bad in loaded.rejected] == [
        ("c.raw", False),
        ("*.txt", True),
        ("*images", True),  # several frames
    ]
    config = parse(small_config(), "small.yaml")
    assert [bad.key for bad in unread_samples(FinishedRun(config, folder, ()))] == ["c.raw"]
