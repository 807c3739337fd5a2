"""Who may import whom: parsed from the source, so that a rule is broken loudly and by line."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# A room of pipelines imports itself and the rooms before it.
ROOMS = (
    *("errors", "console", "files", "config", "plan", "run", "data", "encoders", "pretrain", "extract"),
    *("attack", "tune", "report", "lots", "estimate", "audit", "jobs", "cli"),
)
DOORS = {stage: stage for stage in ("pretrain", "extract", "attack", "tune", "report", "audit")} | {"cli": ""}
"""Rooms that ``python -m`` enters, and the command that each stands for."""
FOUNDATION = {*("checks", "folds", "hashing", "records", "mlp", "philox", "provenance", "runtime", "streams")}
# What a folder or module of mi_core may import besides the foundation and itself.
MI_CORE = {
    "checks": set(),
    "runtime": set(),
    "philox": set(),
    "folds": set(),
    "hashing": set(),
    "records": set(),
    "mlp": set(),
    "streams": set(),
    "plugins": set(),
    "provenance": {"plugins"},
    "registration": set(),
    "image_files": set(),
    "images": {"image_files"},
    "augmentations": set(),
    "encoders": {"plugins"},
    "adoption": {"encoders"},
    "objectives": {"encoders"},
    "training": {"augmentations", "encoders", "objectives"},
    "defenses": {"encoders", "objectives", "plugins", "training"},
    "features": {"augmentations", "objectives", "plugins"},
    "metrics": set(),
    "attacks": {"features", "metrics", "objectives", "plugins"},
    "testing": {"attacks", "encoders", "features", "metrics"},
    "querying": {"augmentations", "encoders", "features", "metrics", "objectives"},
    "validity": {"defenses", "image_files", "metrics"},
    "report": {"metrics", "validity"},
    "auditing": {
        *("adoption", "attacks", "augmentations", "encoders", "features", "image_files", "images", "metrics"),
        *("querying", "registration", "report", "training", "validity"),
    },
    "lots": {"captions", "image_files", "images", "metrics", "report", "validity"},
    "captions": set(),
    "costs": set(),
}
# What a drawer may import of its folder besides itself: other drawers, and files of the root; "" is the root.
DRAWERS = {
    "pipelines.config": {"sections": {"mistakes", "paths", "roles"}, "": {"sections"}},
    "pipelines.data": {
        "read": set(),
        "scan": {"read", "columns", "database"},
        "draw": {"read", "scan", "columns", "database"},
    },
    "pipelines.extract": {"division": set(), "actor": {"division", "bank"}, "": {"division", "actor"}},
    "mi_core.validity": {"sets": set(), "": {"sets"}},
    "mi_core.report": {"model": set(), "words": {"contents", "model"}, "": {"model", "words", "figures"}},
}
BANNED_IN_MI_CORE = {"ray", "argparse", "typer", "pydantic"}
BANNED_NAMES = {"utils", "helpers", "common", "misc"}
LIGHT = (
    *("pipelines.cli.app", "pipelines.cli.listing", "pipelines.report.index"),
    *("pipelines.extract.division.readers", "pipelines.data.scan.scan"),
)
# The size of the house. A figure may only be lowered: what comes in is paid for by what goes.
BUDGET = {  # allowed, and how far below it a count may lie before the budget is lowered
    "product lines": (61_678, 300),
    "lines of code": (39_234, 300),
    "files": (368, 5),
    "test lines": (46_339, 500),
    "words": (36_368, 500),
}
PAGES = ("docs", "configs", "cluster", "pipelines")


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, dotted module) of every import, in functions and for types too; `from a import b` gives a and a.b."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.lineno, node.module
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def dotted(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def where(path: Path, line: int) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


def room(module: str) -> str:
    return module.split(".")[1]


def circle(graph: Mapping[str, Sequence[str]]) -> list[str]:
    """A circle in a graph, or nothing."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


@pytest.mark.parametrize("path", sources("mi_core"), ids=lambda path: str(path.relative_to(ROOT)))
def test_mi_core_imports(path: Path) -> None:
    part = path.relative_to(ROOT / "mi_core").parts[0].removesuffix(".py")
    if part == "__init__":
        allowed = {"auditing"}
    else:
        assert part in MI_CORE, f"{path}: add {part} to the rules"
        allowed = MI_CORE[part] | {part} | (FOUNDATION if part not in FOUNDATION else FOUNDATION - {part})
    for line, module in imports(path):
        top = module.split(".")[0]
        assert top not in BANNED_IN_MI_CORE | {"pipelines"}, f"{where(path, line)}: mi_core must not import {top}"
        if top == "mi_core" and "." in module:
            inner = module.split(".")[1]
            assert inner in allowed, f"{where(path, line)}: {part} may import {sorted(allowed)}, not {inner}"


def test_every_file_of_pipelines_is_in_a_room() -> None:
    found = {path.relative_to(ROOT / "pipelines").parts[0].removesuffix(".py") for path in sources("pipelines")}
    assert found == {*ROOMS, "__init__"}


@pytest.mark.parametrize("path", sources("pipelines"), ids=lambda path: str(path.relative_to(ROOT / "pipelines")))
def test_rooms_import_themselves_and_those_before(path: Path) -> None:
    if path.name == "__main__.py" or path.parent.name == "pipelines":
        return
    own = path.relative_to(ROOT / "pipelines").parts[0]
    for line, module in imports(path):
        if module.startswith("pipelines.") and room(module) in ROOMS:
            later = ROOMS.index(room(module)) > ROOMS.index(own)
            assert not later, f"{where(path, line)}: {own} must not import the later {room(module)}"


@pytest.mark.parametrize("folder", DRAWERS)
def test_drawers_are_imported_one_way(folder: str) -> None:
    root = ROOT / folder.replace(".", "/")
    drawers = {path.name for path in root.iterdir() if (path / "__init__.py").exists()}
    files = {path.stem for path in root.glob("*.py")} - {"__init__"}
    for path in sources(folder.replace(".", "/")):
        own = path.relative_to(root).parts[0] if path.parent != root else ""
        if own not in DRAWERS[folder]:
            continue
        allowed = DRAWERS[folder][own] | (files if not own else {own})
        for line, module in imports(path):
            inner = module.removeprefix(f"{folder}.").split(".")[0] if module.startswith(f"{folder}.") else ""
            assert inner not in (drawers | files) - allowed, f"{where(path, line)}: {own or folder} imports {inner}"


def test_doors_are_two_lines_and_nobody_imports_one() -> None:
    doors = {path.parent.name: path for path in sources("pipelines") if path.name == "__main__.py"}
    assert doors.keys() == DOORS.keys()
    for name, command in DOORS.items():
        _, first, second = ast.parse(doors[name].read_text()).body
        assert ast.unparse(first) == "from pipelines.cli.process import run"
        assert ast.unparse(second) == (f"run({command!r})" if command else "run()")
    every = [module for package in ("mi_core", "pipelines") for path in sources(package) for _, module in imports(path)]
    assert not [module for module in every if module.endswith("__main__")]


@pytest.mark.parametrize("package", ["mi_core", "pipelines"])
def test_no_circle_of_files(package: str) -> None:
    """Every import counts: those for types and those inside functions too."""
    known = {dotted(path): path for path in sources(package)}
    graph = {name: [module for _, module in imports(path) if module in known] for name, path in known.items()}
    plain = {name: [to for to in found if to != name and not _own_package(name, to)] for name, found in graph.items()}
    assert circle(plain) == []


def _own_package(name: str, to: str) -> bool:
    """Importing ``a.b.c`` names ``a.b`` as well, whose file does not import what is asked of ``a.b.c``."""
    return name.startswith(f"{to}.")


def test_a_config_is_made_in_one_place() -> None:
    """What makes a run without `build` skips the checks of what fits what."""
    makers = {
        path.relative_to(ROOT).as_posix()
        for path in sources("pipelines")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("RunConfig", "RunConfig.model_validate")
    }
    assert makers == {"pipelines/plan/checks.py", "pipelines/pretrain/lanes.py"}  # the second makes one of Ray's


def test_plans_import_no_ray_and_no_torch() -> None:
    """So that a test of a rule takes milliseconds, and `check` starts nothing."""
    for path in sources("pipelines/plan"):
        for line, module in imports(path):
            assert module.split(".")[0] not in ("ray", "torch"), f"{where(path, line)}: plan must not import {module}"


def test_attacks_see_features_alone() -> None:
    """The threat model is an import rule: who attacks reads features, and neither encoders nor their training."""
    for path in sources("pipelines/attack"):
        for line, module in imports(path):
            for banned in ("pipelines.encoders", "pipelines.pretrain", "mi_core.adoption", "mi_core.training"):
                assert not module.startswith(banned), f"{where(path, line)}: attacks must not import {banned}"
            if module.startswith("pipelines.extract."):
                assert module.startswith("pipelines.extract.features"), f"{where(path, line)}: {module}"


@pytest.mark.parametrize("package", ["mi_core", "pipelines"])
def test_no_cupboard_names_and_no_long_files(package: str) -> None:
    for path in sources(package):
        assert not BANNED_NAMES & set(path.relative_to(ROOT).with_suffix("").parts), f"{path}: say what is in it"
        lines = len(path.read_text().splitlines())
        assert lines <= 400, f"{path.relative_to(ROOT)} has {lines} lines; split it where a reader would"


def lines_of_code(text: str) -> int:
    """Lines that are neither blank, nor a comment, nor a docstring."""
    documented: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(getattr(first.value, "value", None), str):
                documented |= set(range(first.lineno, (first.end_lineno or 0) + 1))
    written = ((number, line.strip()) for number, line in enumerate(text.splitlines(), 1))
    return sum(bool(line) and not line.startswith("#") and number not in documented for number, line in written)


@cache
def counted() -> dict[str, int]:
    """What the budget counts."""
    product = [path.read_text() for package in ("mi_core", "pipelines") for path in sources(package)]
    pages = [ROOT / "README.md", *(page for folder in PAGES for page in (ROOT / folder).rglob("*.md"))]
    return {
        "product lines": sum(text.count("\n") for text in product),
        "lines of code": sum(map(lines_of_code, product)),
        "files": len(product),
        "test lines": sum(path.read_text().count("\n") for path in sources("tests")),
        "words": sum(len(page.read_text().split()) for page in pages),
    }


@pytest.mark.parametrize("what", BUDGET)
def test_the_house_only_gets_smaller(what: str) -> None:
    """A figure above its budget is a fault; one well below it has not been written down."""
    found, (allowed, slack) = counted()[what], BUDGET[what]
    assert found <= allowed, f"{found} {what}, {allowed} are allowed: take out what nobody misses, do not raise it"
    assert found > allowed - slack, f"{found} {what}: lower the budget of {allowed} to it"


def test_tests_mirror_the_rooms() -> None:
    root = ROOT / "tests" / "pipelines"
    for path in root.rglob("test_*.py"):
        folder = path.parent.relative_to(root)
        assert folder.parts[0] in ROOMS, f"{path}: its folder is no room"
        assert (ROOT / "pipelines" / folder).is_dir(), f"{path}: pipelines has no such drawer"


def test_the_rules_can_fail(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text(
        "from __future__ import annotations\ndef late():\n    from mi_core import encoders\n    import ray.data\n"
    )
    assert (3, "mi_core.encoders") in set(imports(bad))
    assert (4, "ray.data") in set(imports(bad))
    assert set(circle({"a": ["b"], "b": ["c"], "c": ["a"], "d": ["a"]})) == {"a", "b", "c"}


def test_processes_load_what_they_compute_with_and_plans_no_more_of_torch_than_configs() -> None:
    """A second of every process that a run starts; in one process, from what loads least to what loads most."""
    heavy = {"torch", "ray", "sklearn"}
    workers = ("pipelines.extract.actor.worker", "pipelines.pretrain.worker", "pipelines.attack.run")
    plans = tuple(dotted(path) for path in sources("pipelines/plan"))
    steps = (
        (LIGHT, heavy, False),
        (("pipelines.config.run_config",), {"torchvision", "sympy"}, False),
        (plans, heavy, True),
        (workers, {"torchvision", "sklearn", "scipy.stats", "scipy.optimize"}, False),
    )
    code = f"""
import importlib, sys
for names, banned, beyond in {steps!r}:
    before = set(sys.modules) if beyond else set()
    for name in names:
        importlib.import_module(name)
        print(name, sorted(banned & (set(sys.modules) - before)))
"""
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.splitlines() == [
        f"{name} []" for name in (*LIGHT, "pipelines.config.run_config", *plans, *workers)
    ]


def test_every_task_and_actor_says_what_memory_it_takes() -> None:
    """Without it Ray puts as many side by side as a node has CPUs, whatever they hold."""
    for path in sources("pipelines"):
        for call in ast.walk(ast.parse(path.read_text())):
            made = ast.unparse(call.func) if isinstance(call, ast.Call) else ""
            if isinstance(call, ast.Call) and (made == "ray.remote" or made.endswith(".map_batches")):
                assert "memory" in {word.arg for word in call.keywords}, f"{path}:{call.lineno}: say memory="
