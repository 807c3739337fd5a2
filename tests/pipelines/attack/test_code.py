"""An attack that no package brings: named by its class in a config, run where its file lies."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import ray
import yaml

from pipelines.config.reading.schema import schema
from pipelines.errors import UserError
from pipelines.plan.load import load, parse
from tests.conftest import small_config
from tests.pages import blocks
from tests.pipelines import staged

pytestmark = pytest.mark.ray

ROOT = Path(__file__).parents[3]
PAGE = list(blocks("docs/own-attack.md"))
CODE, CONFIG = (next(one.text for one in PAGE if one.language == language) for language in ("python", "yaml"))


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module with the page's attack, under a name of its own: Python keeps what it has imported."""
    name = f"attack_of_{re.sub('[^a-z0-9]', '_', tmp_path.name)}"
    (tmp_path / f"{name}.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def entry(module: str, name: str = "LowCosine", **settings: Any) -> dict[str, Any]:
    return {"attack": f"python:{module}:{name}", "trust_code": True, **settings}


def audit(folder: Path, *options: str, code: int = 0) -> str:
    """What the command says, started in a folder; Python has no other place to find the attack in."""
    command = [sys.executable, "-m", "pipelines.cli", "audit", "small.yaml", "--out", "out", *options]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    told = done.stdout + done.stderr
    assert done.returncode == code, told
    return " ".join(told.split())


def test_the_page_s_attack_runs_on_workers_and_its_code_is_registered(
    trained_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "my_attack.py").write_text(CODE)
    raw = small_config(attacks=yaml.safe_load(CONFIG)["attacks"])
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(raw))
    staged.query(parse(raw, "small.yaml"), staged.prepare(raw, trained_run, tmp_path / "out"))
    audit(tmp_path, "--address", ray.get_runtime_context().gcs_address)
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert {one["attack"] for one in report["attacks"]} == {"encodermi-t", "low-cosine"}
    assert report["methods"]["low-cosine"]["source"] == "this page"
    lines = [json.loads(line) for line in (tmp_path / "out" / "registration.jsonl").read_text().splitlines()]
    plan = next(line for line in lines[: [line["event"] for line in lines].index("start")] if line["event"] == "plan")
    (registered,) = {one["code_sha256"] for one in plan["attacks"] if one["attack"] == "low-cosine"}
    (tmp_path / "my_attack.py").write_text(CODE.replace("axis=1)", "axis=1) + 1"))
    assert "holds a run of another config; changed: attacks" in audit(tmp_path, code=2)
    assert registered in (tmp_path / "out" / "config.yaml").read_text()


def test_defaults_are_filled_in_and_the_resolved_config_is_the_same(module: str, tmp_path: Path) -> None:
    raw = small_config(attacks=[{"attack": "encodermi-t"}, entry(module)], sweep={"attacks.*.share": [0.2, 0.3]})
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(raw))
    config = load(str(tmp_path / "small.yaml"), ())
    assert [point["attacks.1.share"] for point in config.sweep["attacks.*.share"]] == [0.2, 0.3]
    plain = config.model_dump(mode="json", by_alias=True)
    assert plain["attacks"][1] | {"attack": "low-cosine", "share": 0.1} == plain["attacks"][1]
    assert parse(plain, "again").attacks == config.attacks
    for given in (raw["attacks"], plain["attacks"], [entry(module) | {"attack": ["lpla", f"python:{module}:X"]}]):
        jsonschema.validate({"attacks": given}, schema())


MORE = """
from mi_core.attacks.lpla import LpLA


class Lacking(LowCosine.__base__):
    name = "lacking"


class Path(LowCosine):
    name = "../up"


@dataclass(frozen=True)
class Counting:
    count: int = 1


class Clash(LowCosine):
    Parameters = Counting
"""


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("LowCosine", {"trust_code": False}, "runs code; set trust_code: true beside it if you trust it"),
        ("LowCosine", {"trust_code": "yes"}, "runs code; set trust_code: true"),
        ("LowCosine", {"shar": 0.1}, "attacks.0: unknown setting 'shar', allowed: share"),
        ("LowCosine", {"share": "much"}, "attacks.0: share = 'much': allowed is a number"),
        ("LowCosine", {"reference": "audited"}, "low-cosine cannot be fitted on 'audited'"),
        ("LowCosineParameters", {}, "is no subclass of mi_core.attacks.base.Attack"),
        ("Absent", {}, "has no attribute 'Absent'; the module must be importable on every node"),
        ("LpLA", {}, "its name 'lpla' is taken; rename it"),
        ("Lacking", {}, "lacks threat_model, source, reference, Parameters, _fit, _score, needs"),
        ("Path", {}, "its name = '../up': allowed are letters, digits"),
        ("Clash", {}, "its parameter count has the name of a setting of every attack; rename it"),
    ],
)
def test_a_mistake_is_one_line(module: str, tmp_path: Path, name: str, settings: dict[str, Any], words: str) -> None:
    (tmp_path / f"{module}.py").write_text(CODE + MORE)
    with pytest.raises(UserError, match=re.escape(words)):
        parse(small_config(attacks=[entry(module, name) | settings]), "x")


def test_untrusted_code_is_not_run_however_it_is_named(module: str) -> None:
    for given in (
        {"attack": f"python:{module}:LowCosine"},
        {"attack": "low-cosine", "code": f"python:{module}:LowCosine"},
    ):
        for more in ({}, {"sweep": {"attacks.*.share": [0.1, 0.2]}}, {"defenses": [{"defense": "output-noise"}]}):
            with pytest.raises(UserError, match="trust_code"):
                parse(small_config(attacks=[given], **more), "x")
    assert module not in sys.modules


def test_code_goes_by_its_own_name_which_two_classes_do_not_share(module: str, tmp_path: Path) -> None:
    given = {**entry(module), "code": f"python:{module}:LowCosine", "attack": "lpla"}
    with pytest.raises(UserError, match="attack = 'lpla', but python:.* calls itself 'low-cosine'"):
        parse(small_config(attacks=[given]), "x")
    sys.modules.pop(module)
    (tmp_path / f"{module}.py").write_text(f"{CODE}\n\nclass Twin(LowCosine):\n    pass\n")
    with pytest.raises(UserError, match="attacks.1: two classes call themselves 'low-cosine'; rename one"):
        parse(small_config(attacks=[entry(module, "LowCosine"), entry(module, "Twin")]), "x")
