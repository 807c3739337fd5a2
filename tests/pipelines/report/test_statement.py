"""A finished run is stated, and its statement holds; a run that does not hold what its report is of is not stated."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from typer.testing import CliRunner

from mi_core.report.contents import schema
from pipelines.cli.app import app
from pipelines.data.draw.splits import Splits
from pipelines.errors import UserError
from pipelines.files import storage
from pipelines.report.bindings import folder_digest
from pipelines.report.statement import HOLDS, NOTE, OPEN, ORDER, state, write
from tests.conftest import small_config
from tests.pipelines.report.made import made_run
from tests.pipelines.report.stating import A, called, checked, edited, faults, flipped, reregistered
from tests.raising import refused

pytestmark = pytest.mark.ray

BACKBONE = {"queries": {"views": 4, "outputs": ["backbone"]}, "attacks": [{"attack": "lpla", "reference": "known"}]}


def test_a_finished_run_is_stated_and_the_statement_holds(
    stated_run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    content = json.loads((stated_run / "statement.json").read_text())
    jsonschema.validate(content, schema("statement"))
    report = json.loads((stated_run / "report.json").read_text())
    predicate = content["predicate"]
    assert predicate["verdict"]["delta_auc"] == report["validity"]["delta_auc"]
    assert predicate["roles"][0]["roles"] == report["data"]["roles"]
    assert content["subject"][0]["annotations"]["fingerprint"] == report["encoders"]["target"]["fingerprint"]
    lines = (stated_run / "registration.jsonl").read_text().splitlines()
    assert predicate["registrations"] == [json.loads(line) for line in lines]
    assert state(str(stated_run)) == content
    assert called(monkeypatch, "verify", stated_run / "statement.json", stated_run) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [re.split(r"[ :]+", line)[:2] for line in lines] == [[HOLDS, about] for about in ORDER[:-2]] + [
        [NOTE, about] for about in ORDER[-2:]
    ]
    assert "not who stated it" in lines[-1]
    assert called(monkeypatch, "statement", stated_run, "--out", tmp_path / "s.json") == 0
    assert (tmp_path / "s.json").read_bytes() == (stated_run / "statement.json").read_bytes()
    card, digest = (tmp_path / "s.md").read_text(), hashlib.sha256((tmp_path / "s.json").read_bytes()).hexdigest()
    assert card.startswith("## Membership audit\n\n**No evidence") and f"SHA-256 `{digest}`" in card
    assert content["subject"][0]["annotations"]["fingerprint"] in card and "What it does not say: " in card


def test_digests_are_those_of_other_tools(made: Path) -> None:
    """sha256sum of a subject; in-toto's dirHash by the command line that its specification shows."""
    for subject in json.loads((made / "statement.json").read_text())["subject"]:
        told = subprocess.run(["sha256sum", made / subject["name"]], capture_output=True, text=True, check=True)
        assert told.stdout.split()[0] == subject["digest"]["sha256"]
    command = "find . -type f | cut -c3- | LC_ALL=C sort | xargs -r sha256sum | sha256sum | cut -f1 -d' '"
    told = subprocess.run(command, shell=True, cwd=made / "scan/digits", capture_output=True, text=True, check=True)
    assert folder_digest(f"{made}/scan/digits") == told.stdout.strip()


def test_weights_that_never_were_the_reported_ones_are_not_stated(copied: Path) -> None:
    """Who swaps weights before the statement is written has no statement with matching digests either."""
    target, shadow = (copied / f"seed-0/encoders/{name}/epoch-0003.safetensors" for name in ("target", "shadow"))
    target.write_bytes(shadow.read_bytes())
    refused(UserError, r"weights: seed-0/encoders/target, epoch 3: its weights do not have", state, str(copied))


def test_an_encoder_that_is_not_the_reported_one_is_not_stated(copied: Path) -> None:
    """Weights and their record were swapped, so that they fit each other."""
    target, shadow = (copied / f"seed-1/encoders/{name}" for name in ("target", "shadow"))
    shutil.rmtree(target)
    shutil.copytree(shadow, target)
    refused(UserError, r"report: the statement's encoders is not as report.json has it", state, str(copied))


def test_a_verdict_that_the_scores_do_not_give_is_not_stated(tmp_path: Path) -> None:
    """Report and rule fit each other: only the scores tell."""
    honest = made_run(tmp_path / "honest")
    forged = made_run(tmp_path / "forged", leak=True)
    report = json.loads((forged / "report.json").read_text())
    edited(honest / "report.json", "validity", lambda _: report["validity"])
    edited(honest / "report.json", "attacks", lambda _: report["attacks"])
    refused(UserError, "verdict: the scores and encoders in the run give another verdict.verdict, ", state, str(honest))


def test_the_p_value_by_lot_is_of_the_scores(tmp_path: Path) -> None:
    """The attack's result claims .0001 in either run."""
    for leak in (False, True):
        told = json.loads((made_run(tmp_path / str(leak), leak=leak) / "report.json").read_text())["validity"]
        assert told["by"] == "lot" and (told["p_value"] < 0.01) is leak and (told["verdict"] == "leak") is leak


def test_roles_that_were_not_registered_are_not_stated(copied: Path) -> None:
    reregistered(copied, lambda line: {"roles": {}} if line["event"] == "roles" else {})
    refused(UserError, "registration: the last registered roles are not those", state, str(copied))


def cut(path: Path) -> None:
    """Leave the first half of a file."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def test_a_cut_report_is_no_finished_run(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    progress = storage.read_json_or(f"{copied}/progress.json", {"beat": 0, "stages": ["report"]})
    storage.write_json(f"{copied}/progress.json", progress | {"state": "done", "stage": "report"})
    cut(copied / "report.json")
    for command in (("status", copied), ("report", copied, "--open")):
        with pytest.raises(UserError, match=r"report\.json is damaged"):
            CliRunner().invoke(app, [str(word) for word in command], catch_exceptions=False)


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (lambda run: (run / "report.json").unlink(), "holds no report.json; write it with encoder-audit report"),
        (lambda run: (run / "report.json").write_text("{"), "report.json is no JSON"),
        (lambda run: (run / "report.json").write_text("{}"), "report.json has no schema_version"),
        (lambda run: edited(run / "report.json", "config_sha256", lambda _: A), "is of another config"),
        (lambda run: edited(run / "report.json", "attacks", lambda _: []), "has no primary attack"),
        (lambda run: edited(run / "report.json", "validity.verdict", lambda _: "undecided"), "verdict: the statement"),
        (lambda run: (run / "seed-0/encoders/target/encoder.json").write_text("{}"), "is damaged"),
        (lambda run: (run / "seed-0/splits/shards.parquet").write_bytes(b"no"), "is damaged"),
        (lambda run: cut(sorted((run / "seed-1/attacks").rglob("*.parquet"))[-1]), ".parquet is damaged"),
        (
            lambda run: (run / "statement.json").unlink() or (run / "statement.json").mkdir(),
            "is a folder; give the name",
        ),
    ],
)
def test_a_run_that_cannot_be_stated_is_one_line(
    spoil: Callable[[Path], Any],
    text: str,
    copied: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    spoil(copied)
    assert called(monkeypatch, "statement", copied) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert text in line


def test_encoders_without_weights_say_so(tmp_path: Path) -> None:
    """An API's kept answers and a function's digest are subjects; what cannot be checked is said."""
    shadow = small_config()["encoders"]["target"] | {"train_on": "shadow-member"}
    views = {"augmentation": shadow["augmentation"]}
    api = {"endpoint": {"url": "http://127.0.0.1:9/embed", "outputs": ["backbone"]}}
    for name, encoder in {"api": api, "code": {"load": "python:json:loads", "trust_code": True}}.items():
        run = made_run(tmp_path / name, encoders={"target": encoder | views, "shadow": shadow}, **BACKBONE)
        write(str(run))
        checks = checked(run)
        assert not faults(checks)
        (line,) = [check for check in checks if check.outcome == OPEN]
        assert line.text.startswith("target, seed 0, cannot be checked offline: it is ")
        content = json.loads((run / "statement.json").read_text())
        (subject,) = content["subject"]
        assert subject["annotations"]["kind"] == {"api": "answers", "code": "code"}[name]
        jsonschema.validate(content, schema("statement"))
        if name == "api":
            with flipped(run / subject["name"], 9, 0):
                assert faults(checked(run)) == [f"weights: {subject['name']} has other bytes than stated"]


def test_a_defended_encoder_is_its_weights_and_its_defense(tmp_path: Path) -> None:
    encoders = small_config()["encoders"]
    run = made_run(tmp_path / "run", encoders=encoders, defenses=[{"defense": "output-noise", "label": "noise"}])
    write(str(run))
    assert not faults(checked(run))
    path = run / "seed-0/encoders/target+noise/defense.safetensors"
    with flipped(path, path.stat().st_size - 1, 3):
        assert faults(checked(run)) == [f"weights: {path.relative_to(run)} has other bytes than stated"]
        refused(UserError, r"target\+noise, epoch 3: its weights do not have the fingerprint", state, str(run))


def test_seeds_that_share_their_splits_name_them_once(copied: Path) -> None:
    """A seed that has the splits of another one points there."""
    shutil.rmtree(copied / "seed-1/splits")
    Splits.load(f"{copied}/seed-0").lend(f"{copied}/seed-1")
    reregistered(copied, lambda line: _lent(line) if line["event"] == "roles" else {})
    write(str(copied))
    assert not faults(checked(copied))
    with flipped(copied / "seed-0/splits/shards.parquet", 5, 1):
        assert faults(checked(copied)) == ["roles: seed-0/splits/shards.parquet has other bytes than stated"]


def _lent(line: dict[str, Any]) -> dict[str, Any]:
    return {"roles": {"0": line["roles"]["0"], "1": line["roles"]["0"]}}


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs ssh-keygen")
def test_ssh_keygen_signs_a_statement_as_the_page_says(made: Path, tmp_path: Path) -> None:
    key, file = tmp_path / "key", tmp_path / "statement.json"
    shutil.copy(made / "statement.json", file)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    subprocess.run(["ssh-keygen", "-q", "-Y", "sign", "-f", key, "-n", "encoder-audit", file], check=True)
    (tmp_path / "allowed_signers").write_text(f"who {key.with_suffix('.pub').read_text()}")
    names = ["-f", tmp_path / "allowed_signers", "-I", "who", "-n", "encoder-audit", "-s", f"{file}.sig"]
    command = ["ssh-keygen", "-Y", "verify", *names]
    assert subprocess.run(command, input=file.read_bytes(), check=False, capture_output=True).returncode == 0
    other = file.read_bytes().replace(b"leak", b"lean")
    assert subprocess.run(command, input=other, check=False, capture_output=True).returncode != 0
