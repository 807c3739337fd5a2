"""Who may import whom: parsed from the source, so that a rule is broken loudly and by line."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOUNDATION = {"checks", "compilation", "hashing", "memory", "records", "mlp", "philox", "streams"}
# What a folder or module of mi_core may import besides the foundation and itself.
MI_CORE = {
    "checks": set(),
    "compilation": set(),
    "philox": set(),
    "hashing": set(),
    "memory": set(),
    "records": set(),
    "mlp": set(),
    "streams": set(),
    "image_files": set(),
    "images": {"image_files"},
    "augmentations": set(),
    "encoders": set(),
    "objectives": {"encoders", "gradient_reversal"},
    "defenses": {"encoders", "gradient_reversal", "optimizers"},
    "gradient_reversal": set(),
    "features": set(),
    "attacks": {"features"},
    "metrics": set(),
    "adversarial": {"features"},
    "attribute_inference": {"metrics"},
    "validity": {"image_files", "metrics"},
    "near_duplicates": set(),
    "coverage": {"metrics", "validity"},
    "report": {"metrics", "validity"},
    "pretraining": {"augmentations", "encoders", "objectives", "optimizers", "training_data"},
    "extraction": {"adversarial", "augmentations", "encoders", "features"},
    "optimizers": set(),
    "training_data": {"objectives"},
    "sanity": {"augmentations", "encoders", "metrics"},
    "captions": set(),
    "costs": set(),
    "attack_benchmark": {"attacks", "features"},
    "label_only_benchmark": {"adversarial", "encoders"},
    "extraction_benchmark": {"augmentations", "encoders", "extraction", "image_files", "images"},
    "benchmark": {"augmentations", "encoders", "objectives", "optimizers", "pretraining", "training_data"},
}
# A stage imports stages to its left only.
STAGES = [
    "folders",
    "sources",
    "attributes",
    "scan",
    "columns",
    "duplicates",
    "data_config",
    "splits",
    "captions",
    "loading",
    "spelling",
    "encoder_config",
    "preprocessing",
    "encoders",
    "endpoints",
    "readers",
    "attack_config",
    "layers",
    "attempts",
    "shard_jobs",
    "ledger",
    "recognition",
    "adopt",
    "streaming",
    "training",
    "defending",
    "pretrain",
    "tasks",
    "rules",
    "telemetry",
    "chunks",
    "preflight",
    "throughput",
    "decoding",
    "extract",
    "outline",
    "source_samples",
    "calibration",
    "training_calibration",
    "stage_costs",
    "utility",
    "attribute_inference",
    "defenses",
    "fields",
    "tune_config",
    "demands",
    "config_checks",
    "config",
    "knowledge",
    "sweep",
    "config_file",
    "blind",
    "evidence",
    "attack",
    "figure_data",
    "validity",
    "trials",
    "tune",
    "results",
    "caveats",
    "report",
    "compare",
    "catalogue",
    "pages",
    "listing",
    "estimate",
    "estimate_view",
    "spending",
    "audit",
    "selftest",
    "cli",
]
BANNED_IN_MI_CORE = {"ray", "yaml", "argparse", "typer", "pydantic", "jsonschema"}
BANNED_NAMES = {"utils", "helpers", "common", "misc"}


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, dotted module) of every import but those for types and of scripts; `from a import b` gives a and a.b."""
    tree = ast.parse(path.read_text())
    typing_only = {
        node
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and ast.unparse(block.test) in ("TYPE_CHECKING", "__name__ == '__main__'")
        for node in ast.walk(block)
    }
    for node in ast.walk(tree):
        if node in typing_only:
            continue
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.lineno, node.module
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def where(path: Path, line: int) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


@pytest.mark.parametrize("path", sources("mi_core"), ids=lambda path: str(path.relative_to(ROOT)))
def test_mi_core_imports(path: Path) -> None:
    part = path.relative_to(ROOT / "mi_core").parts[0].removesuffix(".py")
    if part == "__init__":
        allowed: set[str] = set()
    else:
        assert part in MI_CORE, f"{path}: add {part} to the rules"
        allowed = MI_CORE[part] | {part} | (FOUNDATION if part not in FOUNDATION else FOUNDATION - {part})
    for line, module in imports(path):
        top = module.split(".")[0]
        assert top not in BANNED_IN_MI_CORE | {"pipelines"}, f"{where(path, line)}: mi_core must not import {top}"
        if top == "mi_core" and "." in module:
            inner = module.split(".")[1]
            assert inner in allowed, f"{where(path, line)}: {part} may import {sorted(allowed)}, not {inner}"


@pytest.mark.parametrize("path", sources("pipelines"), ids=lambda path: path.name)
def test_stages_import_leftwards(path: Path) -> None:
    stage = path.stem
    if stage not in STAGES or path.parent.name != "pipelines":
        return
    right = STAGES[STAGES.index(stage) + 1 :]
    for line, module in imports(path):
        for later in right:
            assert module != f"pipelines.{later}", f"{where(path, line)}: {stage} must not import the later {later}"


@pytest.mark.parametrize("package", ["mi_core", "pipelines"])
def test_no_cupboard_names_and_no_long_files(package: str) -> None:
    for path in sources(package):
        assert not BANNED_NAMES & set(path.relative_to(ROOT).with_suffix("").parts), f"{path}: say what is in it"
        lines = len(path.read_text().splitlines())
        assert lines <= 400, f"{path.relative_to(ROOT)} has {lines} lines; split it where a reader would"


def test_the_rules_can_fail(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text("from __future__ import annotations\nfrom mi_core import encoders\nimport ray.data\n")
    assert (2, "mi_core.encoders") in set(imports(bad))
    assert (3, "ray.data") in set(imports(bad))


@pytest.mark.parametrize("module", ["pipelines.cli", "pipelines.listing", "pipelines.readers", "pipelines.scan"])
def test_light_processes_leave_pytorch_alone(module: str) -> None:
    code = f"import sys, {module}; print(sorted({{'torch', 'ray', 'sklearn'}} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
