"""A statement holds on its run; every change of weights, roles, plan, report or statement is found and named."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mi_core.report.statement import PAYLOAD_TYPE, statement_schema
from pipelines.cli import app as cli
from pipelines.data.splits import Splits
from pipelines.errors import UserError
from pipelines.report.bindings import folder_digest
from pipelines.report.statement import state, write
from pipelines.report.verify import FAILS, HOLDS, NOTE, OPEN, ORDER, Check, verify
from tests.conftest import small_config
from tests.pipelines.report.made import made_run

A = "a" * 64
BACKBONE = {"queries": {"views": 4, "outputs": ["backbone"]}, "attacks": [{"attack": "lpla", "reference": "known"}]}


def faults(checks: list[Check]) -> list[str]:
    return [f"{check.about}: {check.text}" for check in checks if check.outcome == FAILS]


def called(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["encoder-audit", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)


@pytest.fixture(scope="module")
def stated_run(finished_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of a finished run with its statement."""
    run = tmp_path_factory.mktemp("stated") / "run"
    shutil.copytree(finished_run, run)
    write(str(run))
    return run


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two seeds without Ray, with its statement; look, do not touch."""
    run = made_run(tmp_path_factory.mktemp("made") / "run", leak=True, seeds=[0, 1])
    write(str(run))
    return run


@pytest.fixture
def copied(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "run")
    return tmp_path / "run"


def checked(run: Path) -> list[Check]:
    return verify(f"{run}/statement.json", str(run))


def test_a_finished_run_is_stated_and_the_statement_holds(
    stated_run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    content = json.loads((stated_run / "statement.json").read_text())
    jsonschema.validate(content, statement_schema())
    report = json.loads((stated_run / "report.json").read_text())
    predicate = content["predicate"]
    assert predicate["verdict"]["delta_auc"] == report["validity"]["delta_auc"]
    assert predicate["roles"][0]["roles"] == report["data"]["roles"]
    assert content["subject"][0]["annotations"]["fingerprint"] == report["encoders"]["target"]["fingerprint"]
    assert predicate["registrations"] == json.loads((stated_run / "manifest.json").read_text())["registrations"]
    assert state(str(stated_run)) == content
    assert called(monkeypatch, "verify", stated_run / "statement.json", stated_run) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [re.split(r"[ :]+", line)[:2] for line in lines] == [[HOLDS, about] for about in ORDER[:-1]] + [
        [NOTE, "signature"]
    ]
    assert "not who stated it" in lines[-1]
    card = tmp_path / "card.md"
    assert called(monkeypatch, "statement", stated_run, "--out", tmp_path / "s.json", "--card", card) == 0
    assert (tmp_path / "s.json").read_bytes() == (stated_run / "statement.json").read_bytes()
    assert content["subject"][0]["digest"]["sha256"] in card.read_text()


def test_digests_are_those_of_other_tools(made: Path) -> None:
    """sha256sum of a subject; in-toto's dirHash by the command line that its specification shows."""
    content = json.loads((made / "statement.json").read_text())
    for subject in content["subject"]:
        told = subprocess.run(["sha256sum", made / subject["name"]], capture_output=True, text=True, check=True)
        assert told.stdout.split()[0] == subject["digest"]["sha256"]
    command = "find . -type f | cut -c3- | LC_ALL=C sort | xargs -r sha256sum | sha256sum | cut -f1 -d' '"
    told = subprocess.run(command, shell=True, cwd=made / "scan/digits", capture_output=True, text=True, check=True)
    assert folder_digest(f"{made}/scan/digits") == told.stdout.strip()


def weights(run: Path) -> list[Path]:
    return sorted(path for path in run.glob("seed-*/encoders/*/*") if path.is_file())


def roles(run: Path) -> list[Path]:
    return sorted([*run.glob("seed-*/splits/*"), *run.rglob("scan/*/*/part-*.parquet")])


def registered(run: Path) -> range:
    """Where the plans stand in manifest.json."""
    text = (run / "manifest.json").read_text()
    start = text.index('"registrations": [')
    end = text.find('\n  "', start)
    return range(start, end if end > 0 else text.rindex("}"))


@contextmanager
def flipped(path: Path, offset: int, bit: int) -> Iterator[None]:
    before = path.read_bytes()
    after = bytearray(before)
    after[offset] ^= 1 << bit
    path.write_bytes(after)
    try:
        yield
    finally:
        path.write_bytes(before)


@settings(max_examples=80)
@given(st.data())
def test_a_flipped_bit_is_found_and_its_file_named(stated_run: Path, data: st.DataObject) -> None:
    files = {"weights": weights(stated_run), "roles": roles(stated_run)}
    files |= {"registration": [stated_run / "manifest.json"], "report": [stated_run / "report.json"]}
    about = data.draw(st.sampled_from(sorted(files)))
    path = data.draw(st.sampled_from(files[about]))
    places = registered(stated_run) if about == "registration" else range(path.stat().st_size)
    plans = json.loads((stated_run / "manifest.json").read_text())["registrations"]
    with flipped(path, data.draw(st.sampled_from(places)), data.draw(st.integers(0, 7))):
        if about == "registration":  # 1e-05 and 1E-05 are one number
            assume(plans != _plans(path))
        found = faults(checked(stated_run))
    name = path.relative_to(stated_run).as_posix()
    named = [name, *(f"{parent} " for parent in map(str, path.relative_to(stated_run).parents) if "scan" in parent)]
    assert any(fault.startswith(f"{about}: ") and any(one in fault for one in named) for fault in found), found


def _plans(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())["registrations"]
    except (KeyError, TypeError, ValueError):
        return None


def edited(path: Path, place: str, change: Callable[[Any], Any]) -> None:
    """Change a value in a JSON file."""
    content = json.loads(path.read_text())
    *above, last = place.split(".")
    inner = content
    for name in above:
        inner = inner[int(name) if isinstance(inner, list) else name]
    key = int(last) if isinstance(inner, list) else last
    inner[key] = change(inner[key])
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("file", "place", "change", "fault"),
    [
        ("report.json", "validity.delta_auc.n", lambda n: n + 1, "report.json .* validity .*verdict.delta_auc.n"),
        ("report.json", "name", lambda name: f"{name}2", r"parts that differ: name \(run.name\)"),
        ("report.json", "queries.total", lambda n: n + 1, "parts that differ: queries$"),
        ("manifest.json", "registrations.0.output", lambda _: "backbone", "manifest.json: .* registrations.0.output"),
        ("manifest.json", "registrations.0.registered", lambda _: "2020", "registrations.0.registered"),
        ("config.yaml", "", None, "config: config.yaml has other bytes"),
        (
            "seed-1/encoders/target/encoder.json",
            "fingerprints.3",
            lambda _: A,
            "weights: seed-1/encoders/target",
        ),
        ("seed-1/splits/roles.json", "counts.target-member", lambda n: n - 1, "roles: seed-1/splits/roles.json has"),
    ],
)
def test_a_changed_field_is_named(
    file: str, place: str, change: Callable[[Any], Any] | None, fault: str, copied: Path
) -> None:
    if change is None:
        (copied / file).write_text((copied / file).read_text().replace("name: small", "name: large"))
    else:
        edited(copied / file, place, change)
    assert re.search(fault, "\n".join(faults(checked(copied))))


@pytest.mark.parametrize(
    ("place", "change", "fault"),
    [
        ("predicate.verdict.verdict", lambda _: "no-evidence", "the statement says no-evidence, but .* give leak"),
        ("predicate.verdict.delta_auc.ci95.0", lambda _: -0.1, "the statement says leak, but .* give no-evidence"),
        (
            "predicate.verdict.attack_auc.n",
            lambda n: n + 1,
            "statement's verdict.attack_auc.n is not as report.json",
        ),
        (
            "predicate.rule.clauses.0.lower_bounds_above.delta_auc",
            lambda _: -1.0,
            "rule is not the rule of this version",
        ),
        ("predicate.verdict.warning", lambda _: "broken", "verdict.warning is not what encoder.json says"),
        (
            "predicate.roles.0.roles.target-member.n",
            lambda n: n + 1,
            "splits: roles other than stated: target-member.n",
        ),
        ("predicate.roles.1.seed", lambda _: 7, "roles: seed-7/splits cannot be read"),
        ("predicate.roles.1.files.0.name", lambda _: "/etc/hosts", "roles: /etc/hosts is no name of a file in a run"),
        ("predicate.roles.1.files.0.name", lambda _: "seed-1/splits", "roles: seed-1/splits cannot be read"),
        ("predicate.registrations.0.sha256", lambda _: A, "does not have its sha256"),
        ("predicate.primary.attack", lambda _: "lpla", "no registered plan has this primary attack"),
        ("predicate.encoders.0.fingerprints.3", lambda _: A, "encoder.json has other fingerprints than stated"),
        ("predicate.encoders.0.files.1.digest.sha256", lambda _: A, "has other bytes than stated"),
        ("predicate.encoders", lambda every: every[:-1], "statement's encoders is not as report.json"),
        ("predicate.encoders.0.kind", lambda _: "code", "the statement's kind of seed-0/encoders/"),
        ("predicate.encoders.1.name", lambda _: "other", "weights: encoder.json cannot be read"),
        ("predicate.report.parts.name", lambda _: A, "the statement's name is not as report.json"),
        ("subject.0.digest.sha256", lambda _: A, "the statement's subject is not the encoder"),
        ("subject.1.annotations.seed", lambda _: 5, "the statement's subject is not the encoder"),
    ],
)
def test_an_edited_statement_does_not_hold(
    place: str, change: Callable[[Any], Any], fault: str, made: Path, tmp_path: Path
) -> None:
    content = json.loads((made / "statement.json").read_text())
    if place == "predicate.verdict.warning":
        content["predicate"]["verdict"]["warning"] = ""
    (tmp_path / "statement.json").write_text(json.dumps(content))
    edited(tmp_path / "statement.json", place, change)
    found = faults(verify(str(tmp_path / "statement.json"), str(made)))
    assert re.search(fault, "\n".join(found)), found


def test_a_missing_file_is_named(copied: Path) -> None:
    (copied / "seed-0/encoders/shadow/epoch-0003.safetensors").unlink()
    assert faults(checked(copied)) == ["weights: seed-0/encoders/shadow/epoch-0003.safetensors is missing"]
    (copied / "report.json").unlink()
    assert "report: report.json cannot be read (FileNotFoundError" in "\n".join(faults(checked(copied)))


def test_weights_that_never_were_the_reported_ones_are_not_stated(copied: Path) -> None:
    """Who swaps weights before the statement is written has no statement with matching digests either."""
    target, shadow = (copied / f"seed-0/encoders/{name}/epoch-0003.safetensors" for name in ("target", "shadow"))
    target.write_bytes(shadow.read_bytes())
    with pytest.raises(UserError, match=r"weights: seed-0/encoders/target, epoch 3: its weights do not have"):
        state(str(copied))


def test_an_encoder_that_is_not_the_reported_one_is_not_stated(copied: Path) -> None:
    """Weights and their record were swapped, so that they fit each other."""
    target, shadow = (copied / f"seed-1/encoders/{name}" for name in ("target", "shadow"))
    shutil.rmtree(target)
    shutil.copytree(shadow, target)
    with pytest.raises(UserError, match=r"report: the statement's encoders is not as report.json has it"):
        state(str(copied))


def test_roles_that_were_not_registered_are_not_stated(copied: Path) -> None:
    edited(copied / "manifest.json", "registrations", lambda plans: [plans[0] | {"roles": {}}])
    with pytest.raises(UserError, match="registration: the plan registered"):
        state(str(copied))


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


def test_wrong_input_is_one_line_with_code_2(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other = made_run(tmp_path / "other", name="other", queries={"views": 5})
    (tmp_path / "text.json").write_text("no JSON")
    (tmp_path / "bytes.json").write_bytes(bytes(range(256)))
    cases = [
        (made / "nothing.json", made, "nothing.json is no file"),
        (tmp_path / "text.json", made, "cannot be read as JSON"),
        (tmp_path / "bytes.json", made, "cannot be read as JSON"),
        (
            made / "report.json",
            made,
            "is no statement of encoder-audit: its _type is not https://in-toto.io/Statement/v1",
        ),
        (made / "statement.json", tmp_path, "holds no run; give the --out of one"),
        (made / "statement.json", other, "is not the run of"),
    ]
    for file, run, text in cases:
        assert called(monkeypatch, "verify", file, run) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert text in line
    assert called(monkeypatch, "statement", tmp_path / "none") == 2


def test_what_fails_ends_with_code_1(
    copied: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    edited(copied / "statement.json", "predicate.verdict.verdict", lambda _: "no-evidence")
    assert called(monkeypatch, "verify", copied / "statement.json", copied) == 1
    assert "FAILS  verdict: the statement says no-evidence" in capsys.readouterr().out


def test_an_envelope_is_read_and_its_signatures_left_to_others(made: Path, tmp_path: Path) -> None:
    payload = base64.b64encode((made / "statement.json").read_bytes()).decode()
    envelope = {"payloadType": PAYLOAD_TYPE, "payload": payload, "signatures": [{"sig": "AA=="}]}
    (tmp_path / "signed.json").write_text(json.dumps(envelope))
    *checks, signature = verify(str(tmp_path / "signed.json"), str(made))
    assert not faults(checks)
    assert (signature.outcome, signature.text.split(",")[0]) == (NOTE, "1 in the envelope")
    assert "not checked here" in signature.text


def test_encoders_without_weights_say_so(tmp_path: Path) -> None:
    """An API's kept answers and a function's digest are subjects; what cannot be checked is said."""
    shadow = small_config()["encoders"]["target"] | {"train_on": "shadow-member"}
    views = {"augmentation": shadow["augmentation"]}
    api = {"endpoint": {"url": "http://127.0.0.1:9/embed", "outputs": ["backbone"]}}
    code = {"load": "python:json:loads", "trust_code": True}
    for name, encoder in {"api": api, "code": code}.items():
        run = made_run(tmp_path / name, encoders={"target": encoder | views, "shadow": shadow}, **BACKBONE)
        write(str(run), None, str(tmp_path / "card.md"))
        checks = checked(run)
        assert not faults(checks)
        (line,) = [check for check in checks if check.outcome == OPEN]
        assert line.text.startswith("target, seed 0, cannot be checked offline: it is ")
        content = json.loads((run / "statement.json").read_text())
        (subject,) = content["subject"]
        assert subject["annotations"]["kind"] == {"api": "answers", "code": "code"}[name]
        assert subject["digest"]["sha256"] in (tmp_path / "card.md").read_text()
        jsonschema.validate(content, statement_schema())
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
        with pytest.raises(UserError, match=r"target\+noise, epoch 3: its weights do not have the fingerprint"):
            state(str(run))


def test_seeds_that_share_their_splits_name_them_once(copied: Path) -> None:
    """A seed that has the splits of another one points there."""
    shutil.rmtree(copied / "seed-1/splits")
    Splits.load(f"{copied}/seed-0").lend(f"{copied}/seed-1")
    edited(copied / "manifest.json", "registrations", lambda plans: [_lent(plans[0])])
    write(str(copied))
    assert not faults(checked(copied))
    path = copied / "seed-0/splits/shards.parquet"
    with flipped(path, 5, 1):
        assert faults(checked(copied)) == ["roles: seed-0/splits/shards.parquet has other bytes than stated"]


def _lent(plan: dict[str, Any]) -> dict[str, Any]:
    from pipelines.run.registration import plan_digest

    lent = plan | {"roles": {"0": plan["roles"]["0"], "1": plan["roles"]["0"]}}
    return lent | {"sha256": plan_digest(lent)}


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
