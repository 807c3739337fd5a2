"""Sources: what is listed, in which order, with which labels; and what damage becomes."""

from __future__ import annotations

import gzip
import io
import json
import struct
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import EpsImagePlugin, Image
from pydantic import ValidationError
from torchvision.datasets import STL10

from mi_core.images import Decoder, decode
from pipelines.config.sections.sources import SourceConfig
from pipelines.data.read.samples import Problem, Sample
from pipelines.data.read.sources import Source
from pipelines.errors import UserError
from tests.pipelines.tars import image_bytes, shard_bytes, tar_bytes
from tests.raising import refused

CUT = 9 * 2048 + 1100  # of a shard of small images: in the header of the class of the tenth sample


def scanned(source: SourceConfig) -> tuple[list[Sample], list[Problem]]:
    found = [entry for item in Source(source).items() for entry in Source(source).scan(item)]
    return [e for e in found if isinstance(e, Sample)], [e for e in found if isinstance(e, Problem)]


def test_digits_are_scikit_learn_s() -> None:
    from sklearn.datasets import load_digits

    digits = load_digits()
    source = SourceConfig(kind="digits")
    samples, problems = scanned(source)
    assert not problems
    assert len(samples) == 1797 == sum(item.count or 0 for item in Source(source).items())
    assert [sample.label for sample in samples] == digits.target.tolist()
    for row in (0, 1023, 1024, 1796):
        pixels = decode(samples[row].image, Decoder(8, 1))[0]
        np.testing.assert_array_equal(pixels, np.round(digits.images[row] * 255 / 16))


def test_an_image_folder_has_classes_by_folder(tmp_path: Path) -> None:
    for number, name in enumerate(("dog/b.PNG", "cat/a.png", "cat/deep/c.jpeg", "top.png", "cat/notes.txt")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(image_bytes(number))
    samples, _ = scanned(SourceConfig(kind="imagefolder", path=str(tmp_path)))
    assert {sample.key: sample.label for sample in samples} == {
        "cat/a.png": 0,
        "cat/deep/c.jpeg": 0,
        "dog/b.PNG": 1,
        "top.png": None,
    }
    assert samples[0].image == image_bytes(1)
    refused(UserError, "is no folder", Source(SourceConfig(kind="imagefolder", path=str(tmp_path / "none"))).items)
    (tmp_path / "empty").mkdir()
    refused(UserError, "holds no image", Source(SourceConfig(kind="imagefolder", path=str(tmp_path / "empty"))).items)


def idx_files(folder: Path, count: int = 5) -> np.ndarray:
    """MNIST's files as its authors describe them, with other digits in."""
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True)
    images = np.random.default_rng(0).integers(0, 256, (count, 28, 28), dtype=np.uint8)
    labels = np.arange(count, dtype=np.uint8)
    for name, magic, array in (("images-idx3", 0x803, images), ("labels-idx1", 0x801, labels)):
        header = struct.pack(">I", magic) + b"".join(struct.pack(">I", size) for size in array.shape)
        for part in ("train", "t10k"):
            (raw / f"{part}-{name}-ubyte").write_bytes(header + array.tobytes())
            (raw / f"{part}-{name}-ubyte.gz").write_bytes(gzip.compress(header + array.tobytes()))
    return images


def test_torchvision_data_sets_are_read_from_their_files(tmp_path: Path) -> None:
    images = idx_files(tmp_path)
    samples, _ = scanned(SourceConfig(kind="torchvision:MNIST", path=str(tmp_path), options={"train": False}))
    assert [sample.label for sample in samples] == [0, 1, 2, 3, 4]
    for sample, pixels in zip(samples, images, strict=True):
        np.testing.assert_array_equal(decode(sample.image, Decoder(28, 1))[0], pixels)


def test_torchvision_mistakes(tmp_path: Path) -> None:
    refused(ValidationError, "no data set 'MNISTT', allowed:.*CIFAR10", SourceConfig, kind="torchvision:MNISTT")
    with pytest.raises(UserError, match="torchvision:MNIST: .*unexpected keyword"):
        Source(SourceConfig(kind="torchvision:MNIST", path=str(tmp_path), options={"colour": 1})).items()


def test_torchvision_s_folders_start_no_ghostscript(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They open files by themselves, by name; PostScript called .jpg is a listed rejection."""
    (tmp_path / "images" / "a").mkdir(parents=True)
    (tmp_path / "images" / "a" / "good.png").write_bytes(image_bytes(1))
    (tmp_path / "images" / "a" / "script.jpg").write_bytes(image_bytes(2, "EPS"))
    (tmp_path / "gs").write_text(f"#!/bin/sh\ntouch {tmp_path}/started\nexit 1\n")
    (tmp_path / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)
    samples, problems = scanned(SourceConfig(kind="torchvision:ImageFolder", path=str(tmp_path / "images")))
    assert [sample.label for sample in samples] == [0]
    assert [(one.key, "Ghostscript" in one.reason) for one in problems] == [("0000001", True)]
    assert not (tmp_path / "started").exists()


def test_unlabelled_images_of_stl10_have_no_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torchvision calls it -1, which kNN and classifiers would take for a class."""
    (tmp_path / "stl10_binary").mkdir()
    (tmp_path / "stl10_binary" / "unlabeled_X.bin").write_bytes(bytes(2 * 3 * 96 * 96))
    monkeypatch.setattr(STL10, "_check_integrity", lambda self: True)
    samples, problems = scanned(
        SourceConfig(kind="torchvision:STL10", path=str(tmp_path), options={"split": "unlabeled"})
    )
    assert [sample.label for sample in samples] == [None, None]
    assert not problems


def test_shards_are_grouped_by_key(tmp_path: Path) -> None:
    members = [
        ("./a/x.jpg", image_bytes(1)),
        ("./a/x.cls", b"7"),
        ("./a/x.json", b"{}"),
        ("y.seg.png", image_bytes(2)),
        (".hidden", b"?"),
    ]
    (tmp_path / "one.tar").write_bytes(tar_bytes(members))
    source = SourceConfig(kind="shards", path=str(tmp_path / "one.tar"))
    samples, problems = scanned(source)
    assert [(s.key, s.label, dict(s.others)) for s in samples] == [("a/x", 7, {"json": b"{}"}), ("y", None, {})]
    assert not problems


def test_of_two_images_of_a_sample_the_one_that_every_machine_reads_is_taken(tmp_path: Path) -> None:
    members = [("a.heic", b"?"), ("a.avif", b"?"), ("a.jpg", image_bytes(1)), ("a.png", b"?"), ("b.heic", b"b")]
    (tmp_path / "one.tar").write_bytes(tar_bytes(members))
    samples, problems = scanned(SourceConfig(kind="shards", path=str(tmp_path / "one.tar")))
    assert [sample.image for sample in samples] == [image_bytes(1), b"b"]
    assert [problem.key for problem in problems] == ["a.avif", "a.heic", "a.png"]


def test_what_is_wrong_in_a_shard_is_told(tmp_path: Path) -> None:
    members = [
        ("a.png", image_bytes(1)),
        ("b.txt", b"no image"),
        ("c.png", image_bytes(2)),
        ("c.cls", b"cat"),
        ("d.png", image_bytes(3)),
        ("a.png", image_bytes(4)),
    ]
    (tmp_path / "one.tar").write_bytes(tar_bytes(members))
    samples, problems = scanned(SourceConfig(kind="shards", path=str(tmp_path / "one.tar")))
    assert [sample.key for sample in samples] == ["a", "d"]
    assert samples[0].image == image_bytes(1)
    assert [(p.key, p.reason.split(";")[0]) for p in problems] == [
        ("b", "no image"),
        ("c", "its class b'cat' is no number"),
        ("a", "the shard has this key twice"),
    ]


def shard_of(tmp_path: Path, members: list[tuple[str, bytes]], **settings: Any) -> SourceConfig:
    (tmp_path / "one.tar").write_bytes(tar_bytes(members))
    return SourceConfig(kind="shards", path=str(tmp_path / "one.tar"), **settings)


PHOTOS = [(f"photo.2019.{number:02d}.jpg", image_bytes(number)) for number in range(1, 5)]


def test_dots_in_names_of_photos_shadow_none_in_silence(tmp_path: Path) -> None:
    samples, problems = scanned(shard_of(tmp_path, PHOTOS))
    assert [(sample.key, sample.image) for sample in samples] == [("photo", PHOTOS[0][1])]
    assert [problem.key for problem in problems] == [name for name, _ in PHOTOS[1:]]
    assert all("a second image of photo" in problem.reason for problem in problems)
    assert all("first dot (WebDataset's rule)" in problem.reason for problem in problems)
    assert all("set key: last-dot on the source" in problem.reason for problem in problems)
    samples, problems = scanned(shard_of(tmp_path, PHOTOS, key="last-dot"))
    assert [(f"{sample.key}.jpg", sample.image) for sample in samples] == PHOTOS
    assert not problems


def test_parts_of_a_sample_that_are_images_are_named_by_the_image(tmp_path: Path) -> None:
    members = [("x.depth.png", image_bytes(1)), ("x.JPG", image_bytes(2, "JPEG")), ("y.depth.png", image_bytes(3))]
    samples, problems = scanned(shard_of(tmp_path, members, image="jpg"))
    assert [(sample.key, sample.image, list(sample.others)) for sample in samples] == [
        ("x", members[1][1], ["depth.png"])
    ]
    assert [(problem.key, problem.reason) for problem in problems] == [("y", "no image jpg; it holds depth.png")]
    samples, problems = scanned(shard_of(tmp_path, members))
    assert "set image: depth.png on the source" in problems[0].reason
    assert [problem.key for problem in problems] == ["x.JPG"]


def test_a_key_that_stands_twice_in_a_row_keeps_the_first(tmp_path: Path) -> None:
    members = [("a.png", image_bytes(1)), ("a.cls", b"1"), ("a.png", image_bytes(2)), ("a.cls", b"2")]
    samples, problems = scanned(shard_of(tmp_path, [*members, ("a.png", image_bytes(3)), ("b.png", image_bytes(4))]))
    assert [(sample.key, sample.label) for sample in samples] == [("a", 1), ("b", None)]
    assert samples[0].image == image_bytes(1)
    assert [problem.reason for problem in problems] == ["the shard has this key twice"] * 2


@pytest.mark.parametrize("first", ["png", "cls"])
def test_files_of_a_sample_that_stand_apart_are_told_with_the_remedy(first: str, tmp_path: Path) -> None:
    """No file goes to another image; a sample whose image comes first is used without the others."""
    members = {
        name: [(f"{row}.{name}", image_bytes(row) if name == "png" else b"1") for row in range(3)]
        for name in ("png", "cls")
    }
    second = "cls" if first == "png" else "png"
    samples, problems = scanned(shard_of(tmp_path, [*members[first], *members[second]]))
    assert [sample.key for sample in samples] == (["0", "1", "2"] if first == "png" else [])
    assert [one.key for one in problems if one.reason.endswith("write it anew with tar --sort=name")] == ["0", "1", "2"]


def test_gnu_tars_hard_links_are_listed_with_the_remedy(tmp_path: Path) -> None:
    """GNU tar writes them by itself, for files with the same inode."""
    (tmp_path / "a.jpg").write_bytes(image_bytes(1))
    (tmp_path / "b.jpg").hardlink_to(tmp_path / "a.jpg")
    (tmp_path / "c.jpg").symlink_to("a.jpg")
    (tmp_path / ".d.jpg").write_bytes(image_bytes(2))
    (tmp_path / "._a.jpg").write_bytes(b"of macOS")
    names = ["a.jpg", "._a.jpg", "b.jpg", "c.jpg", ".d.jpg"]
    subprocess.run(["tar", "-cf", "one.tar", *names], cwd=tmp_path, check=True)
    source = SourceConfig(kind="shards", path=str(tmp_path / "one.tar"))
    samples, problems = scanned(source)
    assert [sample.key for sample in samples] == ["a"]
    told = {problem.key: problem.reason for problem in problems}
    assert set(told) == {"b", "c", ".d.jpg"}
    assert "b.jpg is a hard link to a.jpg" in told["b"]
    assert "write the tar with --hard-dereference" in told["b"]
    assert "c.jpg is a symbolic link to a.jpg" in told["c"]
    assert "a hidden file" in told[".d.jpg"]
    subprocess.run(["tar", "-chf", "one.tar", "--hard-dereference", *names[:4]], cwd=tmp_path, check=True)
    samples, problems = scanned(source)
    assert ([sample.key for sample in samples], problems) == (["a", "b", "c"], [])


def test_settings_of_shards_leave_no_trace_where_they_are_not_set() -> None:
    """What hashes a source is the same as before it had them, so runs of before go on."""
    plain = {"kind": "shards", "path": "x.tar", "options": {}}
    assert SourceConfig(**plain).model_dump(mode="json") == plain
    assert list(SourceConfig(**plain).model_dump(mode="json")) == ["kind", "path", "options"]
    chosen = {**plain, "key": "last-dot", "image": "jpg", "end_marker": "optional"}
    assert SourceConfig(**chosen).model_dump(mode="json") == chosen
    assert SourceConfig(**json.loads(SourceConfig(**chosen).model_dump_json())) == SourceConfig(**chosen)
    with pytest.raises(ValidationError, match="shard_in_key is for shards and parquet, not for digits"):
        SourceConfig(kind="digits", shard_in_key=True)
    refused(ValidationError, "key is for shards, not for digits", SourceConfig, kind="digits", key="last-dot")
    refused(ValidationError, "'first-dot' or 'last-dot'", SourceConfig, **{**plain, "key": "second-dot"})


def test_reading_wanted_samples_stops_early_and_tells_loss(tmp_path: Path) -> None:
    (tmp_path / "cut.tar").write_bytes(shard_bytes(range(20))[:CUT])
    source = SourceConfig(kind="shards", path=str(tmp_path / "cut.tar"))
    (item,) = Source(source).items()
    found = list(Source(source).read(item, {"s0001", "s0003"}))
    assert [sample.key for sample in found] == ["s0001", "s0003"]
    refused(OSError, "damaged at byte", list, Source(source).read(item, {"s0001", "s0019"}))


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"kind": "shard"}, "kind = 'shard', allowed: digits, noise, imagefolder, shards, parquet, torchvision:<Name>"),
        ({"kind": "shards"}, "path is missing"),
        ({"kind": "digits", "options": {"a": 1}}, "options are for torchvision"),
        ({"kind": "noise", "options": {}}, "options of noise: count is missing"),
        ({"kind": "noise", "options": {"count": 0, "size": 8}}, "options.count = 0"),
        (
            {"kind": "noise", "options": {"count": 5, "size": 8, "distribution": "pink"}},
            "options.distribution = 'pink', allowed: gaussian, uniform",
        ),
        ({"kind": "noise", "options": {"count": 5, "size": 8, "seed": 1}}, "unknown setting 'seed', allowed: count"),
    ],
)
def test_mistakes(settings: dict[str, object], text: str) -> None:
    refused(ValueError, text, SourceConfig, **settings)


def test_noise_is_seeded_and_uniform_or_not() -> None:
    source = SourceConfig(kind="noise", options={"count": 1100, "size": 16})
    items = Source(source).items()
    assert [item.count for item in items] == [1024, 76]
    samples = list(Source(source).read(items[1]))
    assert len(samples) == 76
    again = list(Source(source).read(items[1], {samples[5].key}))
    assert again[0].image == samples[5].image
    pixels = np.stack([np.asarray(Image.open(io.BytesIO(sample.image))) for sample in samples]).astype(float)
    assert pixels.shape == (76, 16, 16, 3)
    assert abs(pixels.mean() - 127.5) < 1
    assert abs(pixels.std() - 256 / np.sqrt(12)) < 1
    assert abs(np.corrcoef(pixels[:, :, :-1].ravel(), pixels[:, :, 1:].ravel())[0, 1]) < 0.02  # neighbours tell nothing
    bell = SourceConfig(kind="noise", options={"count": 50, "size": 16, "distribution": "gaussian"})
    pixels = np.stack(
        [np.asarray(Image.open(io.BytesIO(one.image))) for one in Source(bell).read(Source(bell).items()[0])]
    )
    assert abs(pixels.std() - 62) < 3  # 64, cut at 0 and 255
