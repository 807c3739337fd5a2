"""Which tests `make fast` runs for a change."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.changed import ROOT, mirrored


@pytest.mark.parametrize(
    ("path", "tests"),
    [
        ("mi_core/attacks/lpla.py", ["tests/mi_core/attacks/test_lpla.py"]),
        ("tests/mi_core/attacks/test_lpla.py", ["tests/mi_core/attacks/test_lpla.py"]),
        ("tests/pipelines/staged.py", []),
        ("tests/mi_core/attacks/test_gone.py", []),
        ("README.md", ["tests/test_pages.py"]),
        ("mkdocs.yml", []),
    ],
)
def test_a_file_has_the_mirrored_its_name(path: str, tests: list[str]) -> None:
    assert [str(test) for test in mirrored(Path(path))] == tests


def test_most_modules_have_mirrored_their_name_or_folder() -> None:
    modules = [path.relative_to(ROOT) for top in ("mi_core", "pipelines") for path in (ROOT / top).rglob("*.py")]
    without = [path for path in modules if not mirrored(path)]
    assert len(without) < len(modules) / 10, without
