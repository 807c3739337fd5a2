"""Addresses of shards: patterns, folders and braces; and names that keep equal ones apart."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from pipelines.config.paths import expand_braces
from pipelines.config.sections.data import DataConfig
from pipelines.config.sections.sources import SourceConfig
from pipelines.data.read.shard_paths import expand
from pipelines.data.read.sources import Source
from pipelines.data.scan.scan import scan
from pipelines.errors import UserError
from pipelines.files import storage
from tests.pipelines.tars import shard_bytes, tar_bytes
from tests.raising import refused


def test_patterns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("t-008.tar", "t-009.tar", "t-010.tar", "u.tar", "readme.md"):
        (tmp_path / name).write_bytes(tar_bytes([("a.png", b"x")]))
    monkeypatch.chdir(tmp_path)
    names = lambda pattern: [path.removeprefix(f"{tmp_path}/") for path in expand(pattern)]  # noqa: E731
    assert names("t-{008..010}.tar") == ["t-008.tar", "t-009.tar", "t-010.tar"]
    assert names("t-*.tar") == ["t-008.tar", "t-009.tar", "t-010.tar"]
    assert names("{u,t-009}.tar") == ["u.tar", "t-009.tar"]
    assert names(".") == ["t-008.tar", "t-009.tar", "t-010.tar", "u.tar"]
    assert names(f"{tmp_path}/u.tar") == ["u.tar"]
    refused(UserError, r"t-011.tar does not exist", expand, "t-{009..011}.tar")
    refused(UserError, "v-.* matches no file", expand, "v-*.tar")
    (tmp_path / "sub").mkdir()
    refused(UserError, "sub holds no .tar file", expand, "sub")


def test_many_named_shards_take_one_listing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(40):
        (tmp_path / f"t-{number:03d}.tar").write_bytes(b"")
    pattern = f"{tmp_path}/t-{{000..039}}.tar"
    with monkeypatch.context() as patched:
        patched.setattr("pipelines.files.storage.exists", lambda path: pytest.fail(f"asked about {path}"))
        patched.setattr("pipelines.files.storage.is_folder", lambda path: pytest.fail(f"asked about {path}"))
        assert expand(pattern) == [f"{tmp_path}/t-{number:03d}.tar" for number in range(40)]
    (tmp_path / "t-020.tar").unlink()
    refused(UserError, r"t-020.tar does not exist", expand, pattern)


ODD = ["a b+c%20d=é.tar", "a%2Fb.tar", "[x].tar", "a{1}.tar", "a{1,2}.tar", "q?*.tar", "h#i.tar", "x&y.tar"]


def test_every_name_can_be_given(place: str) -> None:
    """By itself, by its folder, by a glob, and with its signs in brackets."""
    for name in ODD:
        storage.write_atomic(f"{place}/a [b] c%20d/{name}", shard_bytes([1]))
    folder = "a [[]b] c%20d"
    paths = [f"{place}/a [b] c%20d/{name}" for name in ODD]
    assert expand(f"{place}/a [b] c%20d") == expand(f"{place}/{folder}/*.tar") == sorted(paths)
    for name, path in zip(ODD, paths, strict=True):
        pattern = f"{place}/{folder}/" + re.sub(r"[\[{*?]", "[\\g<0>]", name)
        assert expand(pattern) == [path]
        assert Source(SourceConfig(kind="shards", path=pattern)).items()
    for name in ODD[:4]:
        assert expand(f"{place}/a [b] c%20d/{name}") == [f"{place}/a [b] c%20d/{name}"]
    items = Source(SourceConfig(kind="shards", path=f"{place}/a [b] c%20d")).items()
    assert len(items) == len(ODD)
    for item in items:
        assert [found.key for found in Source(SourceConfig(kind="shards", path=place)).scan(item)] == ["s0001"]
    with pytest.raises(UserError, match=r"does not exist; give tars.*; an address is read as it stands: "):
        expand(f"{place}/a%20[b].tar".replace("[b]", "b"))


def test_a_name_that_is_not_utf8_is_one_line(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"\xe9.tar")).write_bytes(shard_bytes([1]))
    with pytest.raises(UserError, match=r"\\udce9.tar: its name is not UTF-8"):
        scan(
            DataConfig(
                sources={"a": SourceConfig(kind="shards", path=str(tmp_path))}, image_size=8, roles={"r": {"from": "a"}}
            )
        )


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("x", ["x"]),
        ("{1..3}", ["1", "2", "3"]),
        ("{8..10}", ["8", "9", "10"]),
        ("{08..10}", ["08", "09", "10"]),
        ("{a,b}-{0..1}", ["a-0", "a-1", "b-0", "b-1"]),
        ("a{1}{}", ["a{1}{}"]),
        ("[{]a,b}-{0..1}", ["[{]a,b}-0", "[{]a,b}-1"]),
    ],
)
def test_braces(pattern: str, expected: list[str]) -> None:
    assert expand_braces(pattern) == expected


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("x/{3..1}.tar", "counts down; write {1..3}"),
        ("x/{0..99999999}.tar", "names more than 1,000,000 files; give a folder"),
        ("{0..9999}/{0..9999}.tar", "names more than 1,000,000 files"),
    ],
)
def test_braces_that_cannot_be_meant(pattern: str, text: str) -> None:
    refused(UserError, text, expand_braces, pattern)


def test_equal_names_in_two_folders_get_names_apart(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.tar").write_bytes(shard_bytes([1]))
    items = Source(SourceConfig(kind="shards", path=str(tmp_path / "{a,b}" / "x.tar"))).items()
    assert len({item.name for item in items}) == 2
