"""Print the test files of what was changed since the last commit, for `make fast`: they mirror the product's tree."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
ALWAYS = ("tests/test_architecture.py",)


def mirrored(path: Path) -> list[Path]:
    """The test files of a changed file, from the root: itself, that of its name, those of its folder, or of pages."""
    tests = ROOT / "tests"
    if path.suffix != ".py":
        return [Path("tests/test_pages.py")] if path.suffix == ".md" else []
    if path.parts[0] == "tests":
        return [path] if path.name.startswith("test_") and (ROOT / path).exists() else []
    folder, name = tests / path.parent, path.stem
    own = folder / f"test_{name}.py"
    found = [own] if own.exists() else sorted(folder.glob("test_*.py"))
    return [one.relative_to(ROOT) for one in found]


def changed() -> list[Path]:
    """Files that differ from the last commit, or are new."""
    git = ["git", "-C", str(ROOT)]
    commands = ([*git, "diff", "--name-only", "HEAD"], [*git, "ls-files", "--others", "--exclude-standard"])
    told = [subprocess.run(command, check=True, capture_output=True, text=True).stdout for command in commands]
    return [Path(line) for text in told for line in text.splitlines()]


if __name__ == "__main__":
    print(*dict.fromkeys([*ALWAYS, *(str(test) for path in changed() for test in mirrored(path))]))  # noqa: T201
