"""Every form in which programs have images gives the same files and keys; anything else is named."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, IterableDataset

from mi_core.auditing.images import encoded, items_of
from mi_core.auditing.reading import read
from mi_core.checks import ConfigError
from mi_core.images import Decoder, decode, encode_png
from tests.raising import refused


class Restless:
    """Mirrors every other time at random, as torchvision's transforms in a data set for training do."""

    def __init__(self, images: np.ndarray) -> None:
        self.images, self.random = images, np.random.default_rng(0)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, row: int) -> tuple[np.ndarray, int]:
        return (self.images[row, :, ::-1] if self.random.random() < 0.5 else self.images[row]), 0


PIXELS = np.random.default_rng(0).integers(0, 256, (6, 5, 7, 3), dtype=np.uint8)


class Torchlike:
    """A data set of (image, label)."""

    def __len__(self) -> int:
        return len(PIXELS)

    def __getitem__(self, row: int) -> tuple[Image.Image, int]:
        return Image.fromarray(PIXELS[row]), row


class Hublike(Torchlike):
    """A data set of dictionaries."""

    def __getitem__(self, row: int) -> Any:
        return {"label": row, "image": Image.fromarray(PIXELS[row])}


class Streamed(IterableDataset[Any]):
    """A data set that can only be gone through."""

    def __iter__(self) -> Iterator[Any]:
        return iter({"png": Image.fromarray(one)} for one in PIXELS)


FORMS = {
    "array": PIXELS,
    "DataLoader": DataLoader(Torchlike(), batch_size=4, collate_fn=list),  # type: ignore[arg-type]
    "DataLoader over a stream": DataLoader(Streamed(), batch_size=4, collate_fn=list),
    "iterable data set": Streamed(),
    "slice of a Hub data set": {"label": [0] * 6, "image": [Image.fromarray(one) for one in PIXELS]},
    "doubles a hair outside": (PIXELS / 255) * 1.0000002,
    "int64": PIXELS.astype(np.int64),
    "bfloat16": torch.from_numpy(PIXELS.transpose(0, 3, 1, 2) / np.float32(255)).bfloat16(),
    "with alpha": np.concatenate([PIXELS, PIXELS[..., :1]], axis=3),
    "channels first": PIXELS.transpose(0, 3, 1, 2),
    "floats": (PIXELS / 255).astype(np.float32),
    "tensor": torch.from_numpy(PIXELS.transpose(0, 3, 1, 2).copy()),
    "float tensor that trains": torch.from_numpy(PIXELS.transpose(0, 3, 1, 2) / np.float32(255)).requires_grad_(),
    "list of arrays": list(PIXELS),
    "PIL": [Image.fromarray(one) for one in PIXELS],
    "bytes": [encode_png(one) for one in PIXELS],
    "torch data set": Torchlike(),
    "Hub data set": Hublike(),
    "Hub rows undecoded": [{"image": {"bytes": encode_png(one), "path": "x.png"}} for one in PIXELS],
}


@pytest.mark.parametrize("form", FORMS)
def test_forms(form: str) -> None:
    items = items_of(FORMS[form], "candidates")
    assert [item.key for item in items] == ["0", "1", "2", "3", "4", "5"]
    for item, expected in zip(items, PIXELS, strict=True):
        assert np.array_equal(np.asarray(Image.open(io.BytesIO(item.data())).convert("RGB")), expected)


def test_grey_images() -> None:
    for batch in (PIXELS[..., 0], PIXELS[..., :1], PIXELS[:, None, :, :, 0]):
        got = np.stack([decode(item.data(), Decoder(5, 1)) for item in items_of(batch, "controls")])
        assert np.array_equal(got, np.stack([decode(encode_png(one), Decoder(5, 1)) for one in PIXELS[..., 0]]))


def test_a_folder_and_its_files(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    for name in ("b/one.png", "a.png", "bare", ".hidden.png"):
        (tmp_path / name).write_bytes(encode_png(PIXELS[0]))
    (tmp_path / "notes.txt").write_text("no image")
    assert [item.key for item in items_of(str(tmp_path), "candidates")] == ["a.png", "b/one.png", "bare"]
    files = [tmp_path / "a.png", str(tmp_path / "b/one.png")]
    assert [item.data() for item in items_of(files, "candidates")] == [encode_png(PIXELS[0])] * 2
    refused(ConfigError, r"candidates lists .*a\.png twice", items_of, [files[0], files[0]], "candidates")


def failing() -> Iterator[Any]:
    yield from PIXELS[:2]
    raise RuntimeError("decode failed")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("no/such/folder", "controls = 'no/such/folder' does not exist"),
        (7, "controls is a int; give a folder"),
        ([], "controls is empty"),
        (b"bytes", "controls is a single bytes"),
        ({"train": Torchlike(), "test": Torchlike()}, "controls is a dictionary of train, test; give one of its parts"),
        ("s3://bucket/x", "controls = 's3://bucket/x' is an address, .* the command encoder-audit audit does"),
        ("some/*.png", r"is a pattern; give the list of files: sorted\(glob"),
        ("a.tar", r"is a shard; give a data set that reads it, such as webdataset"),
        ("a.parquet", r"is a shard; .* datasets.Dataset.from_parquet"),
        (__file__, "is a single file; give a list of files"),
        (iter([]), "controls yields nothing"),
        (failing(), r"controls\[2\]: RuntimeError: decode failed"),
        (np.zeros((4, 2)), r"controls has the shape \(4, 2\)"),
    ],
)
def test_what_is_no_set_of_images(given: Any, message: str) -> None:
    refused(ConfigError, message, items_of, given, "controls")


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (np.full((4, 4), 300), r"one is int64 from 300 to 300; give uint8, or float in \[0, 1\]"),
        (np.full((4, 4), np.nan), "give uint8, or float"),
        (np.zeros((5, 4, 5), dtype=np.uint8), r"one has the shape \(5, 4, 5\)"),
        ({"label": 1}, "one has the fields label"),
        (None, "one is a NoneType"),
    ],
)
def test_what_is_no_image(image: Any, message: str) -> None:
    refused(ConfigError, message, encoded, image, "one")


def test_colours_that_png_does_not_have() -> None:
    cmyk = Image.fromarray(PIXELS[0]).convert("CMYK")
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(encoded(cmyk)))), np.asarray(cmyk.convert("RGB")))


def test_pictures_that_cannot_be_read_are_listed(tmp_path: Path) -> None:
    """Unless an image of the same name stands beside them, as cameras write it."""
    for name in ("a.png", "a.cr2", "b.CR2", "notes.txt"):
        (tmp_path / name).write_bytes(encode_png(PIXELS[0]))
    (tmp_path / "gone").symlink_to("nowhere")
    items = items_of(tmp_path, "candidates")
    assert [item.key for item in items] == ["a.png", "b.CR2"]
    assert [item.fault for item in items] == ["", ".cr2 pictures cannot be read; convert it to PNG or JPEG"]
    samples = read({"candidates": items}, Decoder(5), 0, max_rejected=0.5)
    assert [(bad.key, bad.reason) for bad in samples.rejected] == [("b.CR2", items[1].fault)]


def test_links_in_a_circle_are_followed_once(tmp_path: Path) -> None:
    (tmp_path / "album").mkdir()
    (tmp_path / "album/one.png").write_bytes(encode_png(PIXELS[0]))
    (tmp_path / "album/up").symlink_to(tmp_path)
    (tmp_path / "twice").symlink_to(tmp_path / "album")
    assert [item.key for item in items_of(tmp_path, "candidates")] == ["album/one.png", "twice/one.png"]


@pytest.mark.parametrize("suffix", ["jpg", "png"])
def test_an_opened_image_is_turned_upright_as_its_file(suffix: str, tmp_path: Path) -> None:
    file = tmp_path / f"turned.{suffix}"
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter turn
    Image.fromarray(PIXELS[0]).resize((48, 32)).save(file, exif=exif)
    with Image.open(file) as image:
        opened = decode(encoded(image), Decoder(16))
    assert np.array_equal(opened, decode(file.read_bytes(), Decoder(16)))


def test_a_folder_without_images(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no image")
    refused(ConfigError, "candidates = .* holds no image", items_of, tmp_path, "candidates")


def test_a_folder_of_the_datasets_package_and_names_that_are_not_utf_8(tmp_path: Path) -> None:
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub/state.json").write_text("{}")
    refused(ConfigError, "give datasets.load_from_disk", items_of, tmp_path / "hub", "candidates")
    folder = tmp_path / "old"
    folder.mkdir()
    (folder / os.fsdecode(b"b\xe9.png")).write_bytes(encode_png(PIXELS[0]))
    for given in (folder, list(folder.iterdir())):
        (item,) = items_of(given, "candidates")
        assert item.key.encode("utf-8").endswith(rb"b\udce9.png")
        assert item.data() == encode_png(PIXELS[0])


class Faulty(Torchlike):
    """One of its items raises."""

    def __getitem__(self, row: int) -> Any:
        if row == 3:
            raise RuntimeError("decode\nfailed")
        return super().__getitem__(row)


def test_an_item_that_fails_is_one_unusable_image() -> None:
    given = {"candidates": items_of(Faulty(), "candidates"), "controls": items_of(PIXELS[:, ::-1], "controls")}
    samples = read(given, Decoder(5), 0, max_rejected=0.2)
    assert [(bad.key, bad.reason) for bad in samples.rejected] == [("3", "RuntimeError: decode failed")]
    assert samples.remarks["controls"]["cut to the centre"] == 6


def test_a_data_set_that_augments_at_random_is_refused_in_one_line() -> None:
    """Both sides alike, as a user has it who gives the training's data set twice."""
    images = np.random.default_rng(0).integers(0, 256, (120, 16, 16, 3), dtype=np.uint8)
    restless = Restless(images)
    given = {side: items_of(restless, side) for side in ("candidates", "controls")}
    with pytest.raises(ConfigError, match="candidates/[0-9]+ is another image each time .* without its random augment"):
        read(given, Decoder(16), 0)
    steady = {"candidates": items_of(images[:60], "candidates"), "controls": items_of(images[60:], "controls")}
    assert len(read(steady, Decoder(16), 0).items) == 120
