"""Lots of folders and tars: what is published, what is held back, and what is refused."""

from __future__ import annotations

import csv
import hashlib
import io
import tarfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from mi_core.lots.commitment import Header, Unit, blind_of, text_digest
from mi_core.lots.draw import draw
from mi_core.lots.merkle import root_of
from pipelines.cli.app import app
from pipelines.errors import UserError
from pipelines.files import storage
from pipelines.lots.commit import read_albums
from pipelines.lots.publish import publish
from pipelines.lots.vault import Lot

RUNNER = CliRunner()
BEACON = "c0ffee" * 10 + "c0ff"


def picture(number: int, *, side: int = 8) -> bytes:
    """A PNG of its own colours."""
    buffer = io.BytesIO()
    pixels = np.random.default_rng(number).integers(0, 256, (side, side, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def folder_of(place: Path, numbers: Sequence[int], albums: int = 2) -> Path:
    """A folder of pictures in albums."""
    for number in numbers:
        path = place / f"album{number % albums}" / f"p{number:03d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture(number))
    return place


def tar_of(path: Path, numbers: Sequence[int]) -> Path:
    """A tar of pictures, each with a class and a note beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for number in numbers:
            for suffix, data in (("png", picture(number)), ("cls", b"3"), ("txt", f"note {number}".encode())):
                info = tarfile.TarInfo(f"p{number:03d}.{suffix}")
                info.size, info.mtime = len(data), 1_000_000 + number
                tar.addfile(info, io.BytesIO(data))
    return path


def lot(*arguments: str | Path) -> str:
    """Run ``encoder-audit lot``; returns what it printed."""
    result = RUNNER.invoke(app, ["lot", *map(str, arguments)])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


def files_in(place: Path) -> dict[str, bytes]:
    return {str(path.relative_to(place)): path.read_bytes() for path in sorted(place.rglob("*")) if path.is_file()}


def release(place: Path, number: int = 1) -> Path:
    return place / "vault" / f"release-{number:03d}"


def test_every_image_is_published_or_held_back_as_it_was(tmp_path: Path) -> None:
    source = folder_of(tmp_path / "photos", range(60))
    (source / "album0" / "broken.png").write_bytes(picture(0)[:40])
    (source / "notes.txt").write_text("no picture")
    (source / "album1" / "copy.png").write_bytes(picture(4))
    before = files_in(source)
    told = lot(source, "--out", tmp_path / "lot", "--share", "0.25")
    shown, back = files_in(tmp_path / "lot" / "published"), files_in(release(tmp_path / "lot") / "held-back")
    assert files_in(source) == before
    assert shown.keys().isdisjoint(back)
    assert shown | back == {name: data for name, data in before.items() if name != "notes.txt"}
    assert "album0/broken.png" in shown
    assert ("album0/p004.png" in back) == ("album1/copy.png" in back)
    for album in (0, 1):
        pixels = {data for name, data in back.items() if name.startswith(f"album{album}/p")}
        assert len(pixels) in (7, 8)
    header = Header.from_json(storage.read_json(f"{release(tmp_path / 'lot')}/header.json"))
    assert header.commitment in told
    assert header.commitment in (tmp_path / "lot" / "commitments.txt").read_text()
    assert "You drew alone" in told


def test_the_commitment_is_that_of_the_images_and_the_coins_follow_from_it(tmp_path: Path) -> None:
    source = folder_of(tmp_path / "photos", range(40))
    lot("commit", source, "--out", tmp_path / "lot", "--decided-by", "drand round 7")
    assert not (tmp_path / "lot" / "published").exists()
    place = release(tmp_path / "lot")
    header, secret = (storage.read_json(f"{place}/{name}.json") for name in ("header", "secret"))
    units = storage.read_table(f"{place}/units.parquet")
    found = Header.from_json(header)
    leaves = [Unit(sha).leaf(blind_of(secret["key"], n)) for n, sha in enumerate(units["sha256"].to_pylist())]
    assert root_of(leaves).hex() == found.root
    assert text_digest(secret["salt"]) == found.salt_sha256
    assert found.beacon == "drand round 7"
    lot("draw", source, "--out", tmp_path / "lot", "--beacon", BEACON)
    expected = draw(found.design, secret["salt"], BEACON).held_back
    back = {pixels_of(data) for data in files_in(place / "held-back").values()}
    assert back == set(np.array(units["sha256"].to_pylist())[expected])


def pixels_of(data: bytes) -> str:
    image = Image.open(io.BytesIO(data)).convert("RGB")
    return hashlib.sha256(f"{image.width}x{image.height}:".encode() + image.tobytes()).hexdigest()


def test_tars_are_divided_with_all_that_belongs_to_an_image(tmp_path: Path) -> None:
    for number in range(3):
        tar_of(tmp_path / "shards" / f"s-{number}.tar", range(20 * number, 20 * number + 20))
    lot(tmp_path / "shards", "--out", tmp_path / "lot")
    shown, back = tmp_path / "lot" / "published", release(tmp_path / "lot") / "held-back"
    assert sorted(files_in(shown)) == sorted(files_in(back)) == ["s-0.tar", "s-1.tar", "s-2.tar"]
    for name in files_in(shown):
        parts = [members(folder / name) for folder in (shown, back)]
        assert not parts[0].keys() & parts[1].keys()
        assert parts[0] | parts[1] == members(tmp_path / "shards" / name)
        for part in parts:
            keys = [name.partition(".")[0] for name in part]
            assert all(keys.count(key) == 3 for key in keys)
    assert sum(len(members(back / name)) for name in files_in(back)) == 3 * 12


def members(path: Path) -> dict[str, tuple[bytes, float]]:
    with tarfile.open(path) as tar:
        return {one.name: (tar.extractfile(one).read(), one.mtime) for one in tar}  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", ["folder", "tars"])
def test_an_interrupted_draw_goes_on_with_the_same_coins_and_bytes(tmp_path: Path, kind: str) -> None:
    source = tmp_path / "photos"
    folder_of(source, range(40)) if kind == "folder" else tar_of(source / "s.tar", range(40))
    lot(source, "--out", tmp_path / "lot")
    first = files_in(tmp_path / "lot")
    for path in (release(tmp_path / "lot") / "done").iterdir():
        path.unlink()
    sorted((tmp_path / "lot" / "published").rglob("*.*"))[0].unlink()
    lot(source, "--out", tmp_path / "lot")
    assert files_in(tmp_path / "lot") == first


def test_a_later_release_publishes_new_images_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, place = folder_of(tmp_path / "photos", range(30)), tmp_path / "lot"
    lot(source, "--out", place)
    back = files_in(release(place) / "held-back")
    first = files_in(place / "published")
    assert "nothing new" in lot(source, "--out", place)
    assert not release(place, 2).exists()
    folder_of(source, range(30, 50))
    lot(source, "--out", place)
    second, held = files_in(place / "published"), files_in(release(place, 2) / "held-back")
    assert first.items() <= second.items()
    assert not back.keys() & second.keys()
    assert len(second) - len(first) + len(held) == 20
    assert not held.keys() & (back.keys() | first.keys())
    monkeypatch.setattr(storage, "list_files", None)  # releases are found without a list of their images
    assert [one.number for one in Lot(str(place)).releases()] == [1, 2]
    headers = [Header.from_json(storage.read_json(f"{release(place, n)}/header.json")) for n in (1, 2)]
    assert headers[1].previous == headers[0].commitment
    assert len((place / "commitments.txt").read_text().splitlines()) == 2


def failure(call: object) -> str:
    with pytest.raises(UserError) as caught:
        call()  # type: ignore[operator]
    return str(caught.value)


def test_what_would_break_a_lot_is_refused(tmp_path: Path) -> None:
    source, place = folder_of(tmp_path / "photos", range(20)), tmp_path / "lot"
    committing, drawing = ["--out", place, "--decided-by", "round 7"], ["--out", place, "--beacon"]
    assert "is inside of" in failure(lambda: lot(source, "--out", source / "lot"))
    (tmp_path / "notes.txt").write_text("no picture")
    assert "is a single file; give a folder" in failure(lambda: lot(tmp_path / "notes.txt", "--out", place))
    assert "is not drawn" in failure(lambda: Lot(str(place)).new_release().drawing)
    assert "holds no lot" in failure(lambda: lot("draw", source, *drawing, "1"))
    lot("commit", source, *committing)
    made = Lot.at(str(place)).releases()[0]
    assert "give its value with --beacon" in failure(lambda: publish(made.source, made, "", None))  # type: ignore[arg-type]
    assert "--share 0.2, not 0.5" in failure(lambda: lot("commit", source, *committing, "--share", "0.5"))
    assert "--decided-by 'round 7', not 'none'" in failure(lambda: lot(source, "--out", place))
    for value in ("8f3c...", "round 7"):
        assert "is no value" in failure(lambda value=value: lot("draw", source, *drawing, value))
    first, second = source / "album0" / "p002.png", source / "album1" / "p003.png"
    first.write_bytes(picture(99))
    assert "p002.png is not as it was committed" in failure(lambda: lot("draw", source, *drawing, "abc"))
    first.write_bytes(picture(2))
    second.unlink()
    missing = "p003.png was committed and is not there any more"
    assert missing in failure(lambda: lot("draw", source, *drawing, "abc"))
    second.write_bytes(picture(3))
    assert "decided by the beacon" in lot("draw", source, *drawing, "abc")
    assert "drawn with another beacon" in failure(lambda: lot("draw", source, *drawing, "abd"))
    for path in source.rglob("*.png"):  # new pictures under old names: some were published and are drawn again
        path.write_bytes(picture(100 + int(path.stem[1:])))
    folder_of(source, range(20, 60))
    assert "is another image of an earlier release" in failure(lambda: lot(source, "--out", place))


def test_a_damaged_tar_is_refused_before_anything_is_committed(tmp_path: Path) -> None:
    path = tar_of(tmp_path / "shards" / "s.tar", range(20))
    path.write_bytes(path.read_bytes()[:9000])
    assert "mend it" in failure(lambda: lot(path, "--out", tmp_path / "lot"))
    assert not (release(tmp_path / "lot") / "header.json").exists()


def test_albums_may_stand_in_a_table(tmp_path: Path) -> None:
    source, table = folder_of(tmp_path / "photos", range(40), albums=1), tmp_path / "albums.csv"
    rows = [(f"album0/p{number:03d}.png", "mine" if number < 20 else "yours") for number in range(40)]
    for count, words in ((39, "names no album of album0/p039.png"), (40, "")):
        with table.open("w", newline="") as stream:
            csv.writer(stream).writerows([("name", "album"), *rows[:count]])
        if words:
            assert words in failure(lambda: lot(source, "--out", tmp_path / "lot", "--albums", table))
        else:
            lot(source, "--out", tmp_path / "lot", "--albums", table)
    assert Lot.at(str(tmp_path / "lot")).releases()[0].strata == ("mine", "yours")
    for damage, words in (
        ("name,album\na.png", "line 2 of .* has no album"),
        (f'name,album\n"{"x" * 2**18}', "cannot"),
    ):
        table.write_text(damage)
        with pytest.raises(UserError, match=words):
            read_albums(str(table))
    back = files_in(release(tmp_path / "lot") / "held-back")
    assert sum(name < "album0/p020" for name in back) == 4 == sum(name >= "album0/p020" for name in back)


def test_images_that_others_have_already_are_published_and_left_out(tmp_path: Path) -> None:
    source = tmp_path / "photos"
    source.mkdir()
    for number in range(40):
        (source / f"p{number:03d}.png").write_bytes(scene(number))
    others = tmp_path / "web"
    others.mkdir()
    for number in range(10):
        image = Image.open(io.BytesIO(scene(number)))
        image.save(others / f"other-{number}.jpg", quality=80) if number % 2 else image.save(others / f"{number}.png")
    lot(source, "--out", tmp_path / "lot", "--share", "0.5", "--seen-elsewhere", others)
    units = storage.read_table(f"{release(tmp_path / 'lot')}/units.parquet")
    assert len(units) == 30
    back, shown = files_in(release(tmp_path / "lot") / "held-back"), files_in(tmp_path / "lot" / "published")
    assert len(back) == 15 and len(shown) == 25
    assert {f"p{number:03d}.png" for number in range(10)} <= shown.keys()


def scene(number: int) -> bytes:
    """A picture of large blocks, which stays recognisable in a JPEG."""
    blocks = np.random.default_rng(number).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(blocks).resize((64, 64), Image.Resampling.BICUBIC).save(buffer, "PNG")
    return buffer.getvalue()


def test_the_secret_is_new_every_time_and_readable_by_the_owner_alone(tmp_path: Path) -> None:
    source = folder_of(tmp_path / "photos", range(30))
    for number in range(2):
        lot(source, "--out", tmp_path / f"lot{number}")
    secrets = [storage.read_json(f"{release(tmp_path / f'lot{n}')}/secret.json") for n in range(2)]
    assert secrets[0]["salt"] != secrets[1]["salt"] and secrets[0]["key"] != secrets[1]["key"]
    assert len(secrets[0]["salt"]) == 64
    assert (release(tmp_path / "lot0") / "secret.json").stat().st_mode & 0o777 == 0o600
