"""The strict tar reader: whole members before any damage, and an error for every kind of damage."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path

import pytest

from pipelines.config.sections.data import DataConfig
from pipelines.data.draw.draw import draw
from pipelines.data.read.tars import TarError, read_members
from pipelines.data.scan.scan import scan
from pipelines.files import storage
from tests.pipelines.tars import shard_bytes, tar_bytes

MEMBERS = [(f"m{number:02d}.txt", bytes([number]) * (100 + 300 * number)) for number in range(10)]
WHOLE = tar_bytes(MEMBERS)


def collected(data: bytes) -> tuple[list[tuple[str, bytes]], TarError | None]:
    found: list[tuple[str, bytes]] = []
    try:
        for member in read_members(io.BytesIO(data)):
            assert not member.problem
            found.append((member.name, member.content))
    except TarError as error:
        return found, error
    return found, None


def offsets(data: bytes) -> list[int]:
    """Where the headers stand."""
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return [member.offset for member in archive.getmembers()]


def test_a_whole_tar_is_read_as_the_standard_library_reads_it() -> None:
    assert collected(WHOLE) == (MEMBERS, None)


def test_formats_with_long_names_and_folders() -> None:
    for form in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=form) as archive:
            folder = tarfile.TarInfo("folder")
            folder.type = tarfile.DIRTYPE
            archive.addfile(folder)
            info = tarfile.TarInfo("folder/" + "x" * 150 + ".txt")
            info.size = 3
            archive.addfile(info, io.BytesIO(b"abc"))
        assert collected(buffer.getvalue()) == ([("folder/" + "x" * 150 + ".txt", b"abc")], None)


@pytest.mark.parametrize("member", [0, 1, 5, 9])
def test_a_zeroed_header_never_ends_the_tar_silently(member: int) -> None:
    data = bytearray(WHOLE)
    start = offsets(WHOLE)[member]
    data[start : start + 512] = bytes(512)
    found, error = collected(bytes(data))
    assert found == MEMBERS[:member]
    assert 0 < error.left <= len(WHOLE) - start
    assert (error.read, error.cut) == (start if member else 0, member == 0)


def test_cut_anywhere_whole_members_come_and_the_cut_is_told() -> None:
    starts = offsets(WHOLE)
    for cut in range(1, len(WHOLE), 97):
        found, error = collected(WHOLE[:cut])
        ends = [start + 512 + len(content) for start, (_, content) in zip(starts, MEMBERS, strict=True)]
        whole = sum(end <= cut for end in ends)
        assert found == MEMBERS[: len(found)]
        assert whole - 1 <= len(found) <= whole
        end_marker = starts[-1] + 512 + -(-len(MEMBERS[-1][1]) // 512) * 512 + 512  # its first zero block
        assert (error is None) == (cut >= end_marker), cut


def test_a_missing_end_marker_loses_nothing() -> None:
    end = offsets(WHOLE)[-1] + 512 + -(-len(MEMBERS[-1][1]) // 512) * 512
    found, error = collected(WHOLE[:end])
    assert found == MEMBERS
    assert (error.read, error.left, error.cut) == (end, 0, True)
    assert "end marker is missing" in str(error)


def test_a_tar_without_end_marker_may_be_whole() -> None:
    end = offsets(WHOLE)[-1] + 512 + -(-len(MEMBERS[-1][1]) // 512) * 512
    found = [(member.name, member.content) for member in read_members(io.BytesIO(WHOLE[:end]), end_marker=False)]
    assert found == MEMBERS
    with pytest.raises(TarError, match="is cut short|unexpected end"):
        list(read_members(io.BytesIO(WHOLE[: end - 700]), end_marker=False))
    with pytest.raises(TarError, match="the file is empty"):
        list(read_members(io.BytesIO(b""), end_marker=False))


def test_links_and_special_files_come_with_the_reason() -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, kind in (("h.jpg", tarfile.LNKTYPE), ("s.jpg", tarfile.SYMTYPE), ("p.jpg", tarfile.FIFOTYPE)):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "a.jpg"
            archive.addfile(info)
    hard, soft, pipe = read_members(io.BytesIO(buffer.getvalue()))
    assert (hard.name, hard.content) == ("h.jpg", b"")
    assert "hard link to a.jpg" in hard.problem
    assert "--hard-dereference" in hard.problem
    assert "symbolic link to a.jpg" in soft.problem
    assert "special entry" in pipe.problem


def test_a_member_too_large_for_memory_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.data.read.tars.LARGEST_MEMBER", 2000)
    found = list(read_members(io.BytesIO(WHOLE)))
    assert [member.name for member in found] == [name for name, _ in MEMBERS]
    assert [bool(member.problem) for member in found] == [len(content) > 2000 for _, content in MEMBERS]


def test_joined_tars_are_told() -> None:
    found, error = collected(WHOLE + tar_bytes([("later.txt", b"x")]))
    assert found == MEMBERS
    assert "tars joined together" in str(error)
    assert (error.left, error.cut) == (len(WHOLE) + 513 - error.read, False)


@pytest.mark.parametrize(
    ("data", "text"),
    [(b"", "empty"), (bytes(10240), "no file in it"), (b"text, no tar at all" * 100, "damaged at byte 0")],
)
def test_what_is_no_tar(data: bytes, text: str) -> None:
    found, error = collected(data)
    assert found == []
    assert error is not None
    assert text in str(error)


@pytest.mark.parametrize("ending", ["tar.gz", "tgz"])
@pytest.mark.parametrize("pieces", [1, 7])
def test_gzipped_tars_give_the_roles_and_pixels_of_plain_ones(ending: str, pieces: int, tmp_path: Path) -> None:
    """Also where a packer such as bgzip or pigz wrote several gzip streams one after the other."""
    for number in range(3):
        data = shard_bytes(range(20 * number, 20 * number + 20))
        size = -(-len(data) // pieces)
        packed = b"".join(gzip.compress(data[start : start + size]) for start in range(0, len(data), size))
        storage.write_atomic(f"{tmp_path}/plain/{number}.tar", data)
        storage.write_atomic(f"{tmp_path}/packed/{number}.{ending}", packed)
    tables = []
    for path in (f"{tmp_path}/plain", f"{tmp_path}/packed", f"{tmp_path}/packed/{{0..2}}.{ending}"):
        sources = {"pool": {"kind": "shards", "path": path}}
        roles = {name: {"from": "pool", "count": 20} for name in ("target-member", "target-nonmember")}
        config = DataConfig.model_validate({"sources": sources, "image_size": 8, "roles": roles})
        tables.append(draw(config, scan(config), 0).table.drop_columns("item"))
    assert tables[0].equals(tables[1])
    assert tables[0].equals(tables[2])
