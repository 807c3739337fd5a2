"""What every store has to do with a key, whatever letters are in it."""

from __future__ import annotations

from pipelines.files import storage
from pipelines.files.lock import lock
from pipelines.files.many import remove_files
from pipelines.files.walk import walk

ODD = ("a b+c%20d=é", "a%2Fb", "%", "%zz", "[x]", "a{1}", "q?r", "h#i", "t~'\"!*()", "x&y;z:@,$^`|", "b\\s", "e\u0301")
"""Names with letters that addresses, patterns and shells read otherwise."""


def check_key(store: str, name: str) -> None:
    """Make, write, list, read, walk, remove and lock objects of a name below a folder of that name."""
    folder = f"{store}/odd {name}"
    path = f"{folder}/{name}.bin"
    assert storage.create(path, b"1")
    assert not storage.create(path, b"2")
    storage.write_atomic(path, b"3")
    assert storage.list_files(folder) == [path]
    assert list(storage.sizes(folder).items()) == [(path, 1)]
    assert storage.read_bytes(path) == b"3"
    assert [(one.path, one.files) for one in walk(folder, lambda *_: True)] == [(folder, (f"{name}.bin",))]
    remove_files([path])
    assert not storage.exists(path)
    with lock(folder):
        assert storage.exists(f"{folder}/.lock")
    assert not storage.exists(f"{folder}/.lock")
